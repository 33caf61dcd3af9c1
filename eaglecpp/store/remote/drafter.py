# SPDX-License-Identifier: MIT
"""A drafter from the Hub, as a model of our store: downloaded, converted once, checked against its target.

It is kept as `hf.co/<user>/<repo>:<TYPE>`, a model with nothing but a draft layer, so `list` shows it, `rm`
removes it, and any number of targets share it. A drafter carries its target's tokenizer; for a target with
another one the same checkpoint is converted again, under a tag that says so.
"""

from __future__ import annotations

import hashlib
import struct
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from eaglecpp.references.names import ModelName, ModelNameError
from eaglecpp.store.drafters import KnownDrafter
from eaglecpp.store.errors import DownloadError, Report, Status
from eaglecpp.store.facts import Facts
from eaglecpp.store.fit import check_fit, fits
from eaglecpp.store.layout import partial_path
from eaglecpp.store.locks import lock_blob
from eaglecpp.store.manifest import Layer
from eaglecpp.store.model import StoredModel
from eaglecpp.store.remote import hub
from eaglecpp.store.remote.checkpoint import checkpoint_files, fetch_folder, find_repository
from eaglecpp.store.remote.download import need_space, new_session
from eaglecpp.store.remote.layers import fetch_layer
from eaglecpp.store.store import Stores
from eaglecpp.store.transaction import Transaction

__all__ = ["DEFAULT_TYPE", "convert_drafter", "draft_config", "fetch_drafter"]

DEFAULT_TYPE = "Q8_0"


def fetch_drafter(
    stores: Stores, repo: str | KnownDrafter, target: Facts, *, type: str = "", report: Report
) -> StoredModel:
    """The drafter of a Hub repository, ready for `target`; nothing is downloaded twice.

    repo: "user/name", or a row of the table, which may know more than the checkpoint says
    type: tensor type of a checkpoint that has to be converted, "" for the default
    Raises DownloadError, MismatchError when it does not fit, ConvertError when it cannot be converted.
    """
    known = repo if isinstance(repo, KnownDrafter) else KnownDrafter.unlisted(repo)
    job = _Job(stores, known, target, type.upper(), report)
    return job.stored() or job.make()


def convert_drafter(
    source: Path, target: Path, out: Path, *, type: str, known: KnownDrafter | None, report: Report
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
        convert_checkpoint(source, target, out, **options)
    except errors.LayerIdError:
        if known is None or known.layer_ids == "default":
            raise
        convert_checkpoint(source, target, out, layer_ids=known.layer_ids, **options)


def draft_config(facts: Facts) -> dict[str, str]:
    """The config blob's `draft` entry."""
    return {"model_format": "gguf", "architecture": facts.architecture}


@dataclass(frozen=True)
class _Job:
    """One drafter for one target."""

    stores: Stores
    known: KnownDrafter
    target: Facts
    type: str
    report: Report

    def stored(self) -> StoredModel | None:
        """What an earlier call made of this repository, if it fits and is of the type asked for."""
        wanted = self._name("any")
        for model in self.stores.models():
            if not (model.is_drafter and replace(model.name, tag="any").same_as(wanted)):
                continue
            if self.type and model.name.tag.upper().partition("-")[0] != self.type:
                continue
            file = model.draft_file()
            if file is not None and fits(file, self.target):
                return model
        return None

    def make(self) -> StoredModel:
        """Downloads, converts if need be, checks, stores."""
        self.report(Status(f"pulling drafter {self.known.repo}"))
        repository = find_repository(self.known.repo)
        with new_session() as session, Transaction(self.stores, self.report) as transaction:
            drafter = hub.choose_drafter(repository, quant=self.type)
            if drafter is not None and drafter.digest:
                remote = repository.remote(drafter)
                need_space(self.stores.own.root, [remote])
                layer, file = fetch_layer(transaction, session, "draft", remote, cached=drafter.cached)
                tag = hub.quant_of(drafter.name) or DEFAULT_TYPE
                return self._commit(transaction, layer, check_fit(file, self.target), tag)
            root, files = self.stores.own.root, checkpoint_files(repository, self.known.folder)
            into = transaction.directory / "checkpoint"
            folder = fetch_folder(session, root, repository, files, into, self.report)
            out = transaction.directory / "draft.gguf"
            tag = self.type or DEFAULT_TYPE
            convert_drafter(
                folder, self.target.file.path, out, type=tag, known=self.known, report=self.report
            )
            facts = check_fit(out, self.target)
            model = self._commit(transaction, transaction.add_output("draft", out), facts, tag)
        self._forget(repository)
        return model

    def _commit(self, transaction: Transaction, layer: Layer, facts: Facts, tag: str) -> StoredModel:
        if self.stores.own.find(self._name(tag)) is not None:  # made for another tokenizer
            tag = f"{tag}-{_fingerprint(self.target)}"
        return transaction.commit(self._name(tag), [layer], {**facts.config(), "draft": draft_config(facts)})

    def _forget(self, repository: hub.Repository) -> None:
        """Drops downloads of a checkpoint that is converted now."""
        root = self.stores.own.root
        for file in repository.files:
            if file.digest and partial_path(root, file.digest).exists():
                with lock_blob(root, file.digest, self.report):
                    partial_path(root, file.digest).unlink(missing_ok=True)

    def _name(self, tag: str) -> ModelName:
        try:
            return ModelName.parse(f"hf.co/{self.known.repo}:{tag}")
        except ModelNameError as error:
            raise DownloadError(f"{self.known.repo}: {error}") from error


def _fingerprint(target: Facts) -> str:
    """8 hex digits of the vocabulary."""
    sha = hashlib.sha256()
    for token in target.tokens:
        sha.update(struct.pack("<I", len(token)) + token)
    return sha.hexdigest()[:8]
