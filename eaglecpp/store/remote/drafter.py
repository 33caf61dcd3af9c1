# SPDX-License-Identifier: MIT
"""Finds the drafter that a reference names, for a target: on this machine, or on the Hub.

A drafter from the Hub is downloaded, converted once, checked against its target and kept as
`hf.co/<user>/<repo>:<TYPE>`, a model with nothing but a draft layer, so `list` shows it, `rm` removes it, and
any number of targets share it. A drafter carries its target's tokenizer: for a target with another one the
same checkpoint is converted again, in its place; models that were pulled with the first one keep it.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from eaglecpp.errors import MismatchError, ModelNotFoundError, UnsupportedError
from eaglecpp.options import TEXT
from eaglecpp.references.names import ModelName, ModelNameError
from eaglecpp.references.reference import FileSearchError, Reference, read_reference
from eaglecpp.store.drafters import KnownDrafter, known_drafters
from eaglecpp.store.errors import DownloadError, Report, Status
from eaglecpp.store.facts import Facts, check_fit
from eaglecpp.store.manifest import Layer
from eaglecpp.store.model import StoredModel
from eaglecpp.store.remote import hub
from eaglecpp.store.remote.download import fetch_layer
from eaglecpp.store.remote.reach import Session
from eaglecpp.store.store import Stores
from eaglecpp.store.transaction import Transaction, discard

DEFAULT_TYPE = "Q8_0"


@dataclass(frozen=True)
class FoundDraft:
    """A drafter that was found.

    file:  its GGUF; the checkpoint itself when that still has to be converted, to `type`
    model: the stored model it belongs to, None for a file of the user's
    known: what the table knows of a checkpoint beyond what that says
    """

    file: Path
    model: StoredModel | None = None
    type: str | None = None
    known: KnownDrafter | None = None

    @classmethod
    def of(cls, model: StoredModel) -> FoundDraft:
        """A stored model's. Raises StoreError."""
        return cls(model.files("draft")[-1], model)

    def add_to(self, transaction: Transaction, target: Facts) -> tuple[Layer, Facts]:
        """A layer of the transaction with this drafter, and its facts.

        Raises MismatchError when it does not fit the target, ConvertError when it cannot be converted.
        """
        file = self.file
        if self.type is not None:
            file = transaction.directory / "draft.gguf"
            _convert(self.file, target, file, self.type, self.known, transaction.report)
        facts = check_fit(file, target)
        if self.model is None:
            return transaction.add_file("draft", file), facts
        layer = self.model.manifest.of_kind("draft")[-1]
        return transaction.add_layer(self.model, layer, origin=layer.origin or str(self.model.name)), facts


def find_draft(
    stores: Stores,
    text: str | Reference,
    directory: Path,
    target: Facts,
    *,
    type: str = "",
    report: Report,
) -> FoundDraft:
    """What `text` names: a path, a checkpoint folder, the name of a stored model or drafter, or a repository
    of the Hub. A stored model without a drafter is itself one: a small model.

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
        return FoundDraft(reference.path, type=type if reference.kind == "checkpoint" else None)
    assert reference.name is not None
    model = stores.find(reference.name)
    if model is not None:
        has_draft = bool(model.manifest.of_kind("draft"))
        return FoundDraft.of(model) if has_draft else FoundDraft(model.target_files()[0])
    if not reference.name.is_hub:
        raise ModelNotFoundError(
            f"drafter '{reference.text}' not found: no such file, no stored model of that name; for a "
            "repository on the Hub write hf.co/USER/REPO"
        )
    repo, tag = reference.repository, reference.name.tag
    known = next((k for k in known_drafters() if k.repo.lower() == repo.lower()), KnownDrafter.unlisted(repo))
    kind = type or ("" if tag == "latest" else tag)
    return fetch_drafter(stores, known, target, type=kind, report=report)


def fetch_drafter(
    stores: Stores, known: KnownDrafter, target: Facts, *, type: str = "", report: Report
) -> FoundDraft:
    """The drafter of a Hub repository, ready for `target`; nothing is downloaded twice.

    known: the repository, and what is known of it beyond what the checkpoint says
    type:  tensor type of a checkpoint that has to be converted, "" for the default
    Raises DownloadError, MismatchError when it does not fit, ConvertError when it cannot be converted.
    """
    type = type.upper()
    stored = _stored(stores, known, target, type)
    return FoundDraft.of(stored or _made(stores, known, target, type, report))


def draft_config(facts: Facts) -> dict[str, str]:
    """The config blob's `draft` entry."""
    return {"model_format": "gguf", "architecture": facts.architecture}


def _stored(stores: Stores, known: KnownDrafter, target: Facts, type: str) -> StoredModel | None:
    """What an earlier call made of this repository, if it fits and is of the type asked for."""
    for model in stores.models():
        if model.is_drafter and model.name.same_as(_name(known, type or model.name.tag)):
            with contextlib.suppress(MismatchError, UnsupportedError):
                check_fit(model.files("draft")[-1], target)
                return model
    return None


def _made(stores: Stores, known: KnownDrafter, target: Facts, type: str, report: Report) -> StoredModel:
    """Downloads, converts if need be, checks, stores."""
    report(Status(f"pulling drafter {known.repo}"))
    root, repository = stores.own.root, hub.find_repository(known.repo)
    with Transaction(stores, report) as transaction:
        drafter = hub.choose_drafter(repository, quant=type)
        if drafter is not None and drafter.digest:
            with Session() as session:
                layer, file = fetch_layer(transaction, session, "draft", repository.remote(drafter))
            facts, tag = check_fit(file, target), hub.quant_of(drafter.name) or DEFAULT_TYPE
        else:
            into, tag = transaction.directory / "hub", type or DEFAULT_TYPE
            checkpoint = hub.fetch_checkpoint(root, repository, known.folder, into, report)
            layer, facts = FoundDraft(checkpoint, type=tag, known=known).add_to(transaction, target)
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

    options: dict[str, Any] = {"type": type or DEFAULT_TYPE, "progress": tell, "hub_id": known and known.repo}
    readings: dict[str, str] = {"feed": known.feed} if known is not None and known.feed else {}
    try:
        convert_checkpoint(source, target.file.path, out, readings=readings, **options)
    except errors.LayerIdError:
        if known is None or known.layer_ids == "default":
            raise
        readings |= {"layer_ids": known.layer_ids}
        convert_checkpoint(source, target.file.path, out, readings=readings, **options)


def _name(known: KnownDrafter, tag: str) -> ModelName:
    try:
        return ModelName.parse(f"hf.co/{known.repo}:{tag}")
    except ModelNameError as error:
        raise DownloadError(f"{known.repo}: {error}") from error
