# SPDX-License-Identifier: MIT
"""`pull`: a model by name into our store, from the Hub or an Ollama registry, with its drafter if wanted.

    result = pull("hf.co/user/repo:Q4_K_M", draft="auto", report=print)

What was pulled before is not downloaded again, not even in part. A drafter that the model already has is kept
when a pull brings a newer target and says nothing about drafters.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import requests

from eaglecpp.errors import MismatchError
from eaglecpp.modelfile.errors import Notice
from eaglecpp.references.names import ModelName, canonical
from eaglecpp.references.reference import model_name
from eaglecpp.store.content import read_small
from eaglecpp.store.drafters import KnownDrafter, Match, find_drafters, why_none
from eaglecpp.store.errors import DownloadError, OfflineError, Report, Status, StoreError, silent
from eaglecpp.store.facts import Facts, metadata, read_facts
from eaglecpp.store.fit import check_fit
from eaglecpp.store.manifest import MAX_JSON, Config, Layer
from eaglecpp.store.model import StoredModel
from eaglecpp.store.packaged import find_packaged
from eaglecpp.store.remote import hub
from eaglecpp.store.remote.download import need_space, new_session
from eaglecpp.store.remote.drafter import draft_config, fetch_drafter
from eaglecpp.store.remote.find_draft import find_draft
from eaglecpp.store.remote.layers import fetch_layer
from eaglecpp.store.remote.registry import find_registered
from eaglecpp.store.store import Stores
from eaglecpp.store.transaction import Transaction

__all__ = ["Pulled", "known_matches", "offer_drafter", "pull"]

_TEXTS = ("template", "system", "params")
"""Small files with which a repository overrides what its GGUF says."""


@dataclass(frozen=True)
class Pulled:
    """What a pull made. offered: a drafter known for the model that was not asked for."""

    model: StoredModel
    offered: KnownDrafter | None = None
    notices: tuple[Notice, ...] = ()


def pull(
    reference: str | ModelName,
    *,
    draft: str | None = None,
    draft_type: str = "",
    insecure: bool = False,
    report: Report = silent,
    stores: Stores | None = None,
) -> Pulled:
    """Brings a model into our store, or up to date, and returns what was pulled.

    draft:      "auto" looks for one (in the repository, then in the table), "none" leaves or makes the model
                without, anything else names one; None keeps what the model has and only looks for an offer
    draft_type: tensor type of a drafter that has to be converted
    insecure:   allow http, and TLS certificates that do not check out
    stores:     None = those of this user
    Raises ModelNotFoundError for what is no name, DownloadError, DigestError, StoreError, MismatchError,
    UnsupportedError, ConvertError.
    """
    name = model_name(reference) if isinstance(reference, str) else reference
    packaged = find_packaged(name)
    asked, name = name, canonical(name if packaged is None else packaged.hub)
    stores = stores or Stores.open()
    with new_session(verify=not insecure) as session:
        puller = _HubPull if name.is_hub else _RegistryPull
        try:
            result = puller(stores, session, name, draft, draft_type, insecure, report).run()
        except DownloadError as error:
            if stores.find(name) is None and (near := stores.near(str(asked))):
                raise type(error)(f"{error}{near}") from error
            raise
    if packaged is not None:
        packaged.check(result.model)
    report(Status("success"))
    return result


def known_matches(name: ModelName | None, files: Sequence[Path], facts: Facts) -> list[Match]:
    """What the table has for a target, by its name, its files and their metadata."""
    names = [] if name is None else [str(name), f"{name.namespace}/{name.model}", f"{name.model}:{name.tag}"]
    return find_drafters([*names, *(file.name for file in files[:1])], metadata(facts.file))


def offer_drafter(name: ModelName | None, files: Sequence[Path], facts: Facts) -> Match | None:
    """The first of them that can run."""
    return next((match for match in known_matches(name, files, facts) if not match.drafter.refused), None)


@dataclass
class _Pull:
    """One pull; the subclasses know where the target comes from."""

    stores: Stores
    session: requests.Session
    name: ModelName
    draft: str | None
    draft_type: str
    insecure: bool
    report: Report

    def run(self) -> Pulled:
        raise NotImplementedError

    def finish(
        self,
        transaction: Transaction,
        layers: list[Layer],
        files: Sequence[Path],
        config: Config,
        *,
        original: tuple[Layer, bytes] | None = None,
        sidecar: tuple[hub.Repository, hub.HubFile] | None = None,
    ) -> Pulled:
        """Adds the drafter to a target's layers and makes the model.

        files:    the target's GGUF
        config:   what the target's origin says of it; empty for what its GGUF says
        original: config layer and manifest as they came, for when nothing is added to them
        sidecar:  a drafter that lies beside the target
        """
        facts = read_facts(files)
        values = config.values or _base_config(facts)
        drafter, notices = self._drafter(transaction, files, facts, sidecar)
        if drafter is not None:
            layer, drafter_facts = drafter
            values = {**values, "draft": draft_config(drafter_facts)}
            model = transaction.commit(self.name, [*layers, layer], values)
            return Pulled(model, None, tuple(notices))
        if original is not None:
            model = transaction.commit(self.name, layers, original[0], data=original[1])
        else:
            model = transaction.commit(self.name, layers, values)
        offered = None
        if self.draft is None and sidecar is not None:
            offered = KnownDrafter.unlisted(sidecar[0].id, "the same repository")
        elif self.draft is None:
            match = offer_drafter(self.name, files, facts)
            offered = None if match is None else match.drafter
        return Pulled(model, offered, tuple(notices))

    def _drafter(
        self,
        transaction: Transaction,
        files: Sequence[Path],
        facts: Facts,
        sidecar: tuple[hub.Repository, hub.HubFile] | None,
    ) -> tuple[tuple[Layer, Facts] | None, list[Notice]]:
        if self.draft == "none":
            return None, []
        if self.draft is None:
            return self._kept(transaction, facts)
        if self.draft != "auto":
            found = find_draft(
                self.stores, self.draft, Path.cwd(), files, facts, type=self.draft_type, report=self.report
            )
            return found.add_to(transaction, facts), []
        if sidecar is not None:
            return self._drafter_beside_target(transaction, facts, *sidecar), []
        match = offer_drafter(self.name, files, facts)
        if match is None:
            matches = known_matches(self.name, files, facts)
            return None, [Notice(f"{why_none(str(self.name), matches)}; make one with eaglecpp train")]
        model = fetch_drafter(self.stores, match.drafter, facts, type=self.draft_type, report=self.report)
        layer = model.manifest.of_kind("draft")[-1]
        notices = [Notice(match.warning)] if match.warning else []
        return (transaction.add_layer(model, layer), read_facts([model.find_blob(layer)])), notices

    def _kept(
        self, transaction: Transaction, facts: Facts
    ) -> tuple[tuple[Layer, Facts] | None, list[Notice]]:
        """The drafter that the model already has, as long as it fits the new target."""
        old = self.stores.own.find(self.name)
        layers = old.manifest.of_kind("draft") if old is not None else ()
        if old is None or not layers:
            return None, []
        try:
            drafter = check_fit(old.find_blob(layers[-1]), facts)
        except (MismatchError, StoreError) as error:
            return None, [Notice(f"the old drafter was removed: {error}")]
        return (transaction.add_layer(old, layers[-1]), drafter), []

    def _drafter_beside_target(
        self, transaction: Transaction, facts: Facts, repository: hub.Repository, file: hub.HubFile
    ) -> tuple[Layer, Facts]:
        remote = repository.remote(file)
        need_space(self.stores.own.root, [remote])
        layer, path = fetch_layer(transaction, self.session, "draft", remote, cached=file.cached)
        return layer, check_fit(path, facts)


class _HubPull(_Pull):
    def run(self) -> Pulled:
        self.report(Status("pulling manifest"))
        repository = self._repository()
        parts = hub.choose_model(repository, self.name.tag)
        for part in parts:
            if not part.digest:
                raise DownloadError(f"{repository.id}: {part.path}: the Hub gives no digest for it")
        with Transaction(self.stores, self.report) as transaction:
            need_space(self.stores.own.root, [repository.remote(p) for p in parts if p.cached is None])
            layers: list[Layer] = []
            files: list[Path] = []
            for part in parts:
                label = part.name if len(parts) > 1 else ""
                layer, file = fetch_layer(
                    transaction,
                    self.session,
                    "model",
                    repository.remote(part),
                    name=label,
                    cached=part.cached,
                )
                layers.append(layer)
                files.append(file)
            layers += self._texts(transaction, repository)
            beside = hub.choose_drafter(repository, parts[0])
            sidecar = None if beside is None else (repository, beside)
            return self.finish(transaction, layers, files, Config(), sidecar=sidecar)

    def _repository(self) -> hub.Repository:
        repo = f"{self.name.namespace}/{self.name.model}"
        try:
            return hub.with_cached(hub.list_repository(repo))
        except OfflineError as error:
            cached = hub.list_cached(repo)
            if cached is None:
                raise
            with contextlib.suppress(DownloadError):
                hub.choose_model(cached, self.name.tag)
                self.report(Status(f"{error}; using the copy in the local cache"))
                return cached
            raise

    def _texts(self, transaction: Transaction, repository: hub.Repository) -> list[Layer]:
        files = [(kind, repository.file(kind)) for kind in _TEXTS]
        return [
            transaction.add_bytes(kind, hub.read_small(self.session, repository, file))
            for kind, file in files
            if file is not None
        ]


class _RegistryPull(_Pull):
    def run(self) -> Pulled:
        self.report(Status("pulling manifest"))
        found = find_registered(self.session, self.name, insecure=self.insecure)
        manifest = found.manifest
        if manifest.of_kind("tensor") or not manifest.of_kind("model"):
            what = "an MLX model" if manifest.of_kind("tensor") else "no GGUF model"
            raise DownloadError(f"{self.name}: this is {what}; eaglecpp runs GGUF models")
        with Transaction(self.stores, self.report) as transaction:
            remotes = {layer: found.remote(layer) for layer in manifest.blobs}
            missing = [r for layer, r in remotes.items() if transaction.sound_blob(layer) is None]
            need_space(self.stores.own.root, missing)
            files = {
                layer: fetch_layer(transaction, self.session, layer.kind, remotes[layer])[1]
                for layer in manifest.blobs
            }
            config, original = Config(), None
            if manifest.config is not None:
                data = read_small(files[manifest.config], MAX_JSON)
                config = Config.from_bytes(data, f"{self.name}: config")
                original = manifest.config, found.data
            targets = [files[layer] for layer in manifest.of_kind("model")]
            return self.finish(transaction, [*manifest.layers], targets, config, original=original)


def _base_config(facts: Facts) -> dict[str, Any]:
    return {**facts.config(), "architecture": "amd64", "os": "linux"}
