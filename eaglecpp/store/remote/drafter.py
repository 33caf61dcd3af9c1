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
from pathlib import Path, PurePosixPath
from typing import Any

import requests

from eaglecpp.references.names import ModelName, ModelNameError
from eaglecpp.store.drafters import KnownDrafter
from eaglecpp.store.errors import DownloadError, OfflineError, Report, Status
from eaglecpp.store.facts import Facts
from eaglecpp.store.fit import check_fit, fits
from eaglecpp.store.layout import child, partial_path
from eaglecpp.store.locks import lock_blob
from eaglecpp.store.manifest import Layer
from eaglecpp.store.model import StoredModel
from eaglecpp.store.remote import hub
from eaglecpp.store.remote.download import fetch, need_space, new_session
from eaglecpp.store.remote.layers import obtain
from eaglecpp.store.store import Stores
from eaglecpp.store.transaction import Transaction

__all__ = ["DEFAULT_TYPE", "convert_drafter", "draft_config", "fetch_drafter"]

DEFAULT_TYPE = "Q8_0"
_ALWAYS = ("config.json", "README.md")
_WEIGHTS = (
    ("model.safetensors.index.json", ".safetensors"),
    ("pytorch_model.bin.index.json", ".bin"),
)
_NOT_WEIGHTS = ("training_args.bin", "optimizer.bin", "scheduler.bin")


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
        repository = self._repository()
        with new_session() as session, Transaction(self.stores, self.report) as transaction:
            drafter = hub.choose_drafter(repository, quant=self.type)
            if drafter is not None and drafter.digest:
                remote = repository.remote(drafter)
                need_space(self.stores.own.root, [remote])
                layer, file = obtain(transaction, session, "draft", remote, cached=drafter.cached)
                tag = hub.quant_of(drafter.name) or DEFAULT_TYPE
                return self._commit(transaction, layer, check_fit(file, self.target), tag)
            folder = self._checkpoint(transaction, session, repository)
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

    def _repository(self) -> hub.Repository:
        try:
            return hub.with_cached(hub.list_repository(self.known.repo))
        except OfflineError:
            cached = hub.list_cached(self.known.repo)
            if cached is None:
                raise
            return cached

    def _checkpoint(
        self, transaction: Transaction, session: requests.Session, repository: hub.Repository
    ) -> Path:
        """A folder with the checkpoint's files, named as the repository is."""
        folder = child(transaction.directory / "checkpoint", PurePosixPath(self.known.repo).name)
        folder.mkdir(parents=True)
        files = self._checkpoint_files(repository)
        large = [file for file in files if file.digest and file.cached is None]
        need_space(self.stores.own.root, [repository.remote(file) for file in large])
        for file in files:
            path = child(folder, file.name)
            if file.cached is not None:
                path.symlink_to(file.cached)
            elif file.digest:
                path.symlink_to(fetch(session, self.stores.own.root, repository.remote(file), self.report))
            else:
                path.write_bytes(hub.read_small(session, repository, file))
        return folder

    def _checkpoint_files(self, repository: hub.Repository) -> list[hub.HubFile]:
        inside = [
            file
            for file in repository.files
            if str(PurePosixPath(file.path).parent) == (self.known.folder or ".")
            and file.name not in _NOT_WEIGHTS
        ]
        for index, suffix in _WEIGHTS:
            weights = [file for file in inside if file.name.endswith(suffix) or file.name == index]
            if weights:
                return [*(file for file in inside if file.name in _ALWAYS), *weights]
        raise DownloadError(
            f"{f'{self.known.repo}/{self.known.folder}'.rstrip('/')}: no drafter in it: expected "
            "an eagle3-*.gguf, or a checkpoint (.safetensors or .bin)"
        )

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
