# SPDX-License-Identifier: MIT
"""`pull`: a model by name into our store, from the Hub or an Ollama registry, with its drafter if wanted.

    result = pull("hf.co/user/repo:Q4_K_M", draft="auto", report=print)

What was pulled before is not downloaded again, not even in part. A drafter that the model already has is kept
when a pull brings a newer target and says nothing about drafters.

The registry's protocol is Docker's: `GET /v2/<namespace>/<model>/manifests/<tag>` and `.../blobs/<digest>`.
Models that need a login are refused with advice on what to do. Source: ollama/ollama: server/images.go,
server/download.go.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from eaglecpp.errors import MismatchError
from eaglecpp.files import read_limited
from eaglecpp.modelfile.errors import Notice
from eaglecpp.references.names import ModelName, canonical
from eaglecpp.references.reference import model_name
from eaglecpp.store.drafters import KnownDrafter, Match, find_drafters, first_runnable, why_none
from eaglecpp.store.errors import DigestError, DownloadError, Report, Status, StoreError, silent
from eaglecpp.store.facts import Facts, check_fit, metadata, read_facts
from eaglecpp.store.manifest import MANIFEST, MAX_JSON, Layer, Manifest, decoded
from eaglecpp.store.model import Made, StoredModel
from eaglecpp.store.packaged import Packaged, find_packaged
from eaglecpp.store.remote import hub
from eaglecpp.store.remote.download import Remote, fetch_layer, get
from eaglecpp.store.remote.drafter import FoundDraft, draft_config, fetch_drafter, find_draft
from eaglecpp.store.remote.reach import Session, require_allowed
from eaglecpp.store.store import Stores
from eaglecpp.store.transaction import Transaction

_TEXTS = ("template", "system", "params")
"""Small files with which a repository overrides what its GGUF says."""
_MAX_LAYERS = 1000
"""Of a model; a split GGUF has a layer for each part."""


def pull(
    reference: str | ModelName,
    *,
    draft: str | None = None,
    draft_type: str = "",
    insecure: bool = False,
    report: Report = silent,
    stores: Stores | None = None,
) -> Made:
    """Brings a model into our store, or up to date, and returns what was pulled.

    draft:      "auto" looks for one (in the repository, then in the table), "none" leaves or makes the model
                without, anything else names one; None keeps what the model has and only looks for an offer
    draft_type: tensor type of a drafter that has to be converted
    insecure:   allow http, and TLS certificates that do not check out
    stores:     None = those of this user
    Raises ModelNotFoundError for what is no name, DownloadError (HostRefusedError where it must not be
    asked), DigestError, StoreError, MismatchError, UnsupportedError, ConvertError.
    """
    name = model_name(reference) if isinstance(reference, str) else reference
    packaged = find_packaged(name)
    asked, name = name, canonical(name if packaged is None else packaged.hub)
    if not name.is_hub:
        require_allowed(name.host)  # before anything is reported
    stores = stores or Stores.open()
    report(Status("pulling manifest"))
    try:
        with Session(verify=not insecure) as session, Transaction(stores, report) as transaction:
            job = _Pull(transaction, session, name, draft, draft_type, packaged)
            result = job.from_hub() if name.is_hub else job.from_registry(insecure)
    except DownloadError as error:
        if stores.find(name) is None and (near := stores.near(str(asked))):
            raise type(error)(f"{error}{near}") from error
        raise
    report(Status("success"))
    return result


@dataclass
class _Pull:
    """packaged: what it is to be
    layers:  what the publisher gives; files: its target's GGUF
    values:   the config, empty for what the GGUF says
    original: config layer and manifest as they came, for when nothing is added to them; None in place of a
              manifest that is to be written anew
    sibling:  a drafter in the target's repository
    """

    transaction: Transaction
    session: Session
    name: ModelName
    draft: str | None
    draft_type: str
    packaged: Packaged | None
    layers: list[Layer] = field(default_factory=list)
    files: list[Path] = field(default_factory=list)
    values: dict[str, Any] = field(default_factory=dict)
    original: tuple[Layer, bytes | None] | None = None
    sibling: tuple[hub.Repository, hub.HubFile] | None = None
    notices: list[Notice] = field(default_factory=list)

    @property
    def has_draft(self) -> bool:
        return any(layer.kind == "draft" for layer in self.layers)

    def from_hub(self) -> Made:
        id, report = f"{self.name.namespace}/{self.name.model}", self.transaction.report
        repository = hub.find_repository(id, report=report)
        parts = hub.choose_model(repository, self.name.tag)
        if self.packaged is not None and parts[0].digest != self.packaged.digest:
            raise DigestError(
                f"{self.name}: expected {self.packaged.digest}, the Hub has {parts[0].digest}; to get it: "
                f"{self.packaged.how_to_get}"
            )
        for part in parts:
            if not part.digest:
                raise DownloadError(f"{repository.id}: {part.path}: the Hub gives no digest for it")
            self._fetch("model", repository.remote(part), part.name if len(parts) > 1 else "")
        for kind in _TEXTS:
            if (file := repository.file(kind)) is not None:
                data = hub.read_small(self.session, repository, file)
                self.layers.append(self.transaction.add_bytes(kind, data))
        drafter = hub.choose_drafter(repository, parts[0])
        self.sibling = None if drafter is None else (repository, drafter)
        return self._finish()

    def from_registry(self, insecure: bool) -> Made:
        name = self.name
        if name.scheme not in ("http", "https"):
            raise DownloadError(f"{name}: expected http:// or https://, found {name.scheme}://")
        if name.scheme == "http" and not insecure:
            raise DownloadError(
                f"{name}: http is not encrypted; add --insecure to `pull` or `run` to allow it"
            )
        help = (
            "Check the name; a private model must be pulled by `ollama pull`, whose store is read in place. "
            f"For a model on the Hub write hf.co/USER/REPO:QUANT (asked: {name.host})"
        )
        url = f"{name.scheme}://{name.host}/v2/{name.namespace}/{name.model}"
        data = get(self.session, f"{url}/manifests/{name.tag}", str(name), help, Accept=MANIFEST)
        manifest = Manifest.from_bytes(data, f"{name}: manifest of {name.host}", None)
        if len(manifest.layers) > _MAX_LAYERS:
            n_layers = len(manifest.layers)
            raise DownloadError(f"{name}: expected at most {_MAX_LAYERS} layers, found {n_layers}")
        if manifest.of_kind("tensor") or not manifest.of_kind("model"):
            what = "an MLX model" if manifest.of_kind("tensor") else "no GGUF model"
            raise DownloadError(f"{name}: this is {what}; eaglecpp runs GGUF models")

        def remote(layer: Layer, label: str) -> Remote:
            return Remote(
                f"{url}/blobs/{layer.digest}", layer.digest, layer.size, label, str(name), help=help
            )

        for layer in manifest.layers:
            self._fetch(layer.kind, remote(layer, layer.kind))
        self.layers = [*manifest.layers]
        if (config := manifest.config) is not None:
            file = fetch_layer(self.transaction, self.session, config.kind, remote(config, "config"))[1]
            self.values = decoded(read_limited(file, MAX_JSON), f"{name}: config", dict[str, Any])
            self.original = config, None if manifest.decided_here else data
        return self._finish()

    def _fetch(self, kind: str, remote: Remote, name: str = "") -> None:
        layer, file = fetch_layer(self.transaction, self.session, kind, remote, name)
        self.layers.append(layer)
        self.files += [file] if kind == "model" else []

    def _finish(self) -> Made:
        """Adds the drafter to the target's layers and makes the model."""
        facts = read_facts(self.files)
        values, layers = self.values or facts.config(), self.layers
        old = None
        with contextlib.suppress(StoreError):  # what is replaced, if it can be read
            old = self.transaction.stores.own.find(self.name) if self.draft is None else None
        is_decided = self.draft not in (None, "auto") or (old is not None and "draft" in old.decided_here)
        if old is not None and is_decided and not old.manifest.of_kind("draft"):
            self.draft = "none"
        drafter = self._drafter(facts, old)
        left_out = self.has_draft and (drafter is not None or self.draft == "none")
        if left_out:
            layers = [layer for layer in layers if layer.kind != "draft"]
            values.pop("draft", None)
        if drafter is not None:
            layers, values = [*layers, drafter[0]], {**values, "draft": draft_config(drafter[1])}
        if self.original is not None and drafter is None and not left_out:
            model = self.transaction.commit(self.name, layers, self.original[0], data=self.original[1])
        else:
            is_kept = is_decided and (drafter is not None or left_out)
            decided = frozenset({"draft"} if is_kept else ())
            model = self.transaction.commit(self.name, layers, values, decided_here=decided)
        offered = None
        if self.draft is None and drafter is None and self.sibling is not None:
            offered = KnownDrafter.unlisted(self.sibling[0].id, "the same repository")
        elif self.draft is None and drafter is None and not self.has_draft:
            match = first_runnable(self._known(facts))
            offered = None if match is None else match.drafter
        return Made(model, tuple(self.notices), offered)

    def _drafter(self, facts: Facts, old: StoredModel | None) -> tuple[Layer, Facts] | None:
        """The drafter's layer and facts; None for what the target comes with, or for none.

        old: what is replaced, when nothing was said of a drafter. One that the user named stays until he
        names another one; else the publisher's comes first.
        """
        if self.draft == "none":
            return None
        stores, report, type = self.transaction.stores, self.transaction.report, self.draft_type
        if self.draft is not None and self.draft != "auto":
            found = find_draft(stores, self.draft, Path.cwd(), facts, type=type, report=report)
            return found.add_to(self.transaction, facts)
        has_old = old is not None and bool(old.manifest.of_kind("draft"))
        is_published = self.has_draft or self.sibling is not None
        if old is not None and has_old and ("draft" in old.decided_here or not is_published):
            try:
                return FoundDraft.of(old).add_to(self.transaction, facts)
            except (MismatchError, StoreError) as error:
                self.notices.append(Notice(f"the old drafter was removed: {error}"))
                return None
        if self.sibling is not None and not self.has_draft and (self.draft == "auto" or has_old):
            repository, file = self.sibling
            layer, path = fetch_layer(self.transaction, self.session, "draft", repository.remote(file))
            return layer, check_fit(path, facts)
        if self.has_draft or self.draft is None:
            return None
        known = self._known(facts)
        match = first_runnable(known)
        if match is None:
            why = why_none(str(self.name), known)
            self.notices.append(Notice(f"{why}; make one with eaglecpp train"))
            return None
        found = fetch_drafter(stores, match.drafter, facts, type=type, report=report)
        self.notices += [Notice(match.warning)] if match.warning else []
        return found.add_to(self.transaction, facts)

    def _known(self, facts: Facts) -> list[Match]:
        """What the table has for the self."""
        return find_drafters([str(self.name), self.files[0].name], metadata(facts.file))
