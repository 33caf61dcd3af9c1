# SPDX-License-Identifier: MIT
"""Finds the drafter that a reference names, for a target: the one place that knows every kind of reference.

A path, a checkpoint folder, a blob's digest, the name of a stored model or drafter, or a Hub repository. A
stored model without a drafter is itself one: a small model. The answer is a file that fits, and how to make
it a layer.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from eaglecpp.errors import ModelNotFoundError
from eaglecpp.options import TEXT
from eaglecpp.references.names import ModelNameError, canonical
from eaglecpp.references.reference import FileSearchError, Reference, read_reference
from eaglecpp.store.drafters import known_drafters
from eaglecpp.store.errors import OfflineError, Report
from eaglecpp.store.facts import Facts
from eaglecpp.store.fit import check_fit
from eaglecpp.store.manifest import Layer
from eaglecpp.store.model import StoredModel
from eaglecpp.store.remote.drafter import convert_drafter, fetch_drafter
from eaglecpp.store.store import Stores
from eaglecpp.store.transaction import Transaction

__all__ = ["FoundDraft", "find_draft"]


@dataclass(frozen=True)
class FoundDraft:
    """A drafter that was found.

    file:  its GGUF; the checkpoint itself when that still has to be converted
    model: the stored model it belongs to, None for a file of the user's
    """

    file: Path
    model: StoredModel | None = None
    is_checkpoint: bool = False
    type: str = ""
    report: Report = lambda status: None

    def add_to(self, transaction: Transaction, target: Facts) -> tuple[Layer, Facts]:
        """A layer of the transaction with this drafter, and its facts.

        Raises MismatchError when it does not fit the target, ConvertError when it cannot be converted.
        """
        if self.is_checkpoint:
            out = transaction.directory / "draft.gguf"
            convert_drafter(self.file, target.file.path, out, type=self.type, known=None, report=self.report)
            facts = check_fit(out, target)
            return transaction.add_output("draft", out), facts
        facts = check_fit(self.file, target)
        if self.model is not None:
            layer = self.model.manifest.of_kind("draft")[-1]
            return transaction.add_layer(self.model, layer, origin=str(self.model.name)), facts
        return transaction.add_file("draft", self.file), facts


def find_draft(
    stores: Stores,
    text: str | Reference,
    directory: Path,
    target_files: Sequence[Path],
    target: Facts,
    *,
    type: str = "",
    download: bool = True,
    report: Report,
) -> FoundDraft:
    """What `text` names; relative paths are below `directory`.

    type: of a checkpoint that has to be converted. download: whether the network may be used.
    Raises ModelNotFoundError, DownloadError, MismatchError, ConvertError.
    """
    if text == TEXT:
        raise ModelNotFoundError(
            "drafter 'text': this means drafts from the text itself, for which nothing is stored; "
            "write `DRAFT text` in a Modelfile, or run with --draft text (a file of that name is ./text)"
        )
    reference = _read(text, directory) if isinstance(text, str) else text
    if reference.kind in ("path", "checkpoint"):
        return FoundDraft(reference.path, None, reference.kind == "checkpoint", type, report)
    if reference.kind == "digest":
        blob = stores.own.blob(reference.text)
        if blob is None:
            raise ModelNotFoundError(f"drafter {reference.text}: no blob with this digest is stored")
        return FoundDraft(blob)
    assert reference.name is not None
    model = stores.look_up(reference.name)
    if model is not None and model.manifest.of_kind("draft"):
        file = model.draft_file()
        assert file is not None
        return FoundDraft(file, model)
    if model is not None:
        return FoundDraft(model.target_files()[0])  # a small model that drafts
    name = canonical(reference.name)
    if not name.is_hub:
        raise ModelNotFoundError(
            f"drafter '{reference.text}' not found: no such file, no stored model of that name; for a "
            "repository on the Hub write hf.co/USER/REPO"
        )
    if not download:
        raise OfflineError(
            f"drafter '{reference.text}' is not stored: eaglecpp pull TARGET --draft {reference.text}"
        )
    repo = reference.repository
    known = next((k for k in known_drafters() if k.repo.lower() == repo.lower()), None)
    kind = type or ("" if name.tag == "latest" else name.tag)
    found = fetch_drafter(stores, known or repo, target, type=kind, report=report)
    file = found.draft_file()
    assert file is not None
    return FoundDraft(file, found)


def _read(text: str, directory: Path) -> Reference:
    try:
        return read_reference(text, directory)
    except (FileSearchError, OSError, ModelNameError) as error:
        raise ModelNotFoundError(f"drafter {text!r}: {error}") from None
