# SPDX-License-Identifier: MIT
"""Finds the drafter that a reference names, for a target: on this machine, or on the Hub.

A drafter from the Hub is downloaded, converted once, checked against its target and kept as
`hf.co/<user>/<repo>:<TYPE>`, a model with nothing but a draft layer, so `list` shows it, `rm` removes it, and
any number of targets share it. A drafter carries its target's tokenizer: for a target with another one the
same checkpoint is converted again, in its place; models that were pulled with the first one keep it.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from eaglecpp.errors import ModelNotFoundError
from eaglecpp.options import TEXT
from eaglecpp.references.names import ModelName, ModelNameError
from eaglecpp.references.reference import FileSearchError, Reference, read_reference
from eaglecpp.store.drafters import KnownDrafter, known_drafters
from eaglecpp.store.errors import DownloadError, Report, Status
from eaglecpp.store.facts import Facts
from eaglecpp.store.fit import check_fit, fits
from eaglecpp.store.manifest import Layer
from eaglecpp.store.model import StoredModel
from eaglecpp.store.remote import hub
from eaglecpp.store.remote.download import fetch_layer
from eaglecpp.store.remote.reach import Session
from eaglecpp.store.store import Stores
from eaglecpp.store.transaction import Transaction, discard

__all__ = ["FoundDraft", "draft_config", "fetch_drafter", "find_draft"]

DEFAULT_TYPE = "Q8_0"


@dataclass(frozen=True)
class FoundDraft:
    """A drafter that was found.

    file:  its GGUF; the checkpoint itself when that still has to be converted, to `type`
    model: the stored model it belongs to, None for a file of the user's
    """

    file: Path
    report: Report
    model: StoredModel | None = None
    is_checkpoint: bool = False
    type: str = ""

    def add_to(self, transaction: Transaction, target: Facts) -> tuple[Layer, Facts]:
        """A layer of the transaction with this drafter, and its facts.

        Raises MismatchError when it does not fit the target, ConvertError when it cannot be converted.
        """
        if self.is_checkpoint:
            out = transaction.directory / "draft.gguf"
            _convert(self.file, target, out, self.type, None, self.report)
            facts = check_fit(out, target)
            return transaction.add_file("draft", out), facts
        facts = check_fit(self.file, target)
        if self.model is not None:
            layer = self.model.manifest.of_kind("draft")[-1]
            return transaction.add_layer(self.model, layer, origin=str(self.model.name)), facts
        return transaction.add_file("draft", self.file), facts


def find_draft(
    stores: Stores,
    text: str | Reference,
    directory: Path,
    target: Facts,
    *,
    type: str = "",
    report: Report,
) -> FoundDraft:
    """What `text` names: a path, a checkpoint folder, a blob's digest, the name of a stored model or drafter,
    or a repository of the Hub. A stored model without a drafter is itself one: a small model.

    directory: relative paths are below it; type: of a checkpoint that has to be converted.
    Raises ModelNotFoundError, DownloadError, MismatchError, ConvertError.
    """
    if text == TEXT:
        raise ModelNotFoundError(
            "drafter 'text': this means drafts from the text itself, for which nothing is stored; "
            "write `DRAFT text` in a Modelfile, or run with --draft text (a file of that name is ./text)"
        )
    try:
        reference = read_reference(text, directory) if isinstance(text, str) else text
    except (FileSearchError, OSError, ModelNameError) as error:
        raise ModelNotFoundError(f"drafter {text!r}: {error}") from None
    if reference.kind in ("path", "checkpoint"):
        return FoundDraft(reference.path, report, None, reference.kind == "checkpoint", type)
    if reference.kind == "digest":
        blob = stores.own.blob(reference.text)
        if blob is None:
            raise ModelNotFoundError(f"drafter {reference.text}: no blob with this digest is stored")
        return FoundDraft(blob, report)
    assert reference.name is not None
    model = stores.look_up(reference.name)
    if model is not None:
        file = model.draft_file()
        return FoundDraft(file or model.target_files()[0], report, model if file else None)
    if not reference.name.is_hub:
        raise ModelNotFoundError(
            f"drafter '{reference.text}' not found: no such file, no stored model of that name; for a "
            "repository on the Hub write hf.co/USER/REPO"
        )
    repo, tag = reference.repository, reference.name.tag
    known = next((k for k in known_drafters() if k.repo.lower() == repo.lower()), KnownDrafter.unlisted(repo))
    kind = type or ("" if tag == "latest" else tag)
    found = fetch_drafter(stores, known, target, type=kind, report=report)
    file = found.draft_file()
    assert file is not None
    return FoundDraft(file, report, found)


def fetch_drafter(
    stores: Stores, known: KnownDrafter, target: Facts, *, type: str = "", report: Report
) -> StoredModel:
    """The drafter of a Hub repository, ready for `target`; nothing is downloaded twice.

    known: the repository, and what is known of it beyond what the checkpoint says
    type:  tensor type of a checkpoint that has to be converted, "" for the default
    Raises DownloadError, MismatchError when it does not fit, ConvertError when it cannot be converted.
    """
    type = type.upper()
    return _stored(stores, known, target, type) or _made(stores, known, target, type, report)


def draft_config(facts: Facts) -> dict[str, str]:
    """The config blob's `draft` entry."""
    return {"model_format": "gguf", "architecture": facts.architecture}


def _stored(stores: Stores, known: KnownDrafter, target: Facts, type: str) -> StoredModel | None:
    """What an earlier call made of this repository, if it fits and is of the type asked for."""
    for model in stores.models():
        is_asked_for = model.name.same_as(_name(known, type or model.name.tag))
        if is_asked_for and model.is_drafter and (file := model.draft_file()) and fits(file, target):
            return model
    return None


def _made(stores: Stores, known: KnownDrafter, target: Facts, type: str, report: Report) -> StoredModel:
    """Downloads, converts if need be, checks, stores."""
    report(Status(f"pulling drafter {known.repo}"))
    root, repository = stores.own.root, hub.find_repository(known.repo)
    with Session() as session, Transaction(stores, report) as transaction:
        drafter = hub.choose_drafter(repository, quant=type)
        if drafter is not None and drafter.digest:
            remote = repository.remote(drafter)
            layer, file = fetch_layer(transaction, session, "draft", remote, cached=drafter.cached)
            facts, tag = check_fit(file, target), hub.quant_of(drafter.name) or DEFAULT_TYPE
        else:
            files = hub.checkpoint_files(repository, known.folder)
            folder = hub.fetch_folder(session, root, repository, files, transaction.directory / "hub", report)
            out, tag = transaction.directory / "draft.gguf", type or DEFAULT_TYPE
            _convert(folder, target, out, tag, known, report)
            facts = check_fit(out, target)
            layer = transaction.add_file("draft", out)
        config = {**facts.config(), "draft": draft_config(facts)}
        model = transaction.commit(_name(known, tag), [layer], config)
    discard(root, {file.digest for file in repository.files})  # a checkpoint that is converted now
    return model


def _convert(
    source: Path, target: Facts, out: Path, type: str, known: KnownDrafter | None, report: Report
) -> None:
    """A checkpoint to GGUF, with what the table knows of it. Raises ConvertError."""
    from eaglecpp.convert import Progress, convert_checkpoint, errors

    name = known.repo if known is not None else source.name

    def tell(progress: Progress) -> None:
        report(Status("converting the drafter", "", progress.total, progress.done, name))

    options: dict[str, Any] = {"type": type or DEFAULT_TYPE, "progress": tell}
    if known is not None:
        options |= {"hub_id": known.repo, "feed": known.feed or None}
    try:
        convert_checkpoint(source, target.file.path, out, **options)
    except errors.LayerIdError:
        if known is None or known.layer_ids == "default":
            raise
        convert_checkpoint(source, target.file.path, out, layer_ids=known.layer_ids, **options)


def _name(known: KnownDrafter, tag: str) -> ModelName:
    try:
        return ModelName.parse(f"hf.co/{known.repo}:{tag}")
    except ModelNameError as error:
        raise DownloadError(f"{known.repo}: {error}") from error
