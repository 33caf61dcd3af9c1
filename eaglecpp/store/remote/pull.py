# SPDX-License-Identifier: MIT
"""`pull`: a model by name into our store, from the Hub or an Ollama registry, with its drafter if wanted; and
`find_draft`: the drafter that a reference names, for a target, on this machine or on the Hub.

    result = pull("hf.co/user/repo:Q4_K_M", draft="auto", report=print)

What was pulled before is not downloaded again, not even in part. A drafter that the model already has is kept
when a pull brings a newer target and says nothing about drafters.

A drafter from the Hub is downloaded, converted once, checked against its target and kept as
`hf.co/<user>/<repo>:<TYPE>`, a model with nothing but a draft layer, so `list` shows it, `rm` removes it, and
any number of targets share it. A drafter carries its target's tokenizer: for a target with another one the
same checkpoint is converted again, in its place; models that were pulled with the first one keep it.

The registry's protocol is Docker's: `GET /v2/<namespace>/<model>/manifests/<tag>` and `.../blobs/<digest>`.
Models that need a login are refused with advice on what to do. Source: ollama/ollama: server/images.go,
server/download.go.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from eaglecpp.errors import MismatchError, ModelNotFoundError, UnsupportedError
from eaglecpp.files import read_limited
from eaglecpp.modelfile.errors import Notice
from eaglecpp.options import TEXT
from eaglecpp.references.names import ModelName, ModelNameError, canonical
from eaglecpp.references.reference import FileSearchError, Reference, model_name, read_reference
from eaglecpp.store.drafters import KnownDrafter, best_known, known_drafters
from eaglecpp.store.errors import DigestError, DownloadError, Report, Status, StoreError, silent
from eaglecpp.store.facts import Facts, check_fit, read_facts
from eaglecpp.store.manifest import MANIFEST, MAX_JSON, Layer, Manifest, decoded
from eaglecpp.store.model import Made, StoredModel
from eaglecpp.store.packaged import Packaged, find_packaged
from eaglecpp.store.remote import hub
from eaglecpp.store.remote.download import Remote, fetch_layer, get
from eaglecpp.store.remote.reach import Session, require_allowed
from eaglecpp.store.store import Stores
from eaglecpp.store.transaction import Transaction, discard

DEFAULT_TYPE = "Q8_0"
_TEXTS = ("template", "system", "params")
"""Small files with which a repository overrides what its GGUF says."""
_MAX_LAYERS = 1000
"""Of a model; a split GGUF has a layer for each part."""
_MAX_TAG = 80


def pull(
    reference: str | ModelName,
    *,
    draft: str | None = None,
    insecure: bool = False,
    report: Report = silent,
    stores: Stores | None = None,
) -> Made:
    """Brings a model into our store, or up to date, and returns what was pulled.

    draft:    "auto" looks for one (in the repository, then in the table), "none" leaves or makes the model
              without, anything else names one; None keeps what the model has
    insecure: allow http, and TLS certificates that do not check out
    stores:   None = those of this user
    Raises ModelNotFoundError for what is no name, DownloadError (HostRefusedError where it must not be
    asked), DigestError, StoreError, MismatchError, UnsupportedError, ConvertError.
    """
    asked = model_name(reference) if isinstance(reference, str) else reference
    packaged = find_packaged(asked)
    name = canonical(asked if packaged is None else packaged.hub)
    if not name.is_hub:
        require_allowed(name.host)  # before anything is reported
    stores = stores or Stores.open()
    report(Status("pulling manifest"))
    with Session(verify=not insecure) as session, Transaction(stores, report) as transaction:
        job = _Pull(transaction, session, name, draft)
        result = job.from_hub(packaged) if name.is_hub else job.from_registry(insecure)
    report(Status("success"))
    return result


@dataclass
class _Pull:
    """layers:  what the publisher gives; files: its target's GGUF
    values:   the config, empty for what the GGUF says
    original: config layer and manifest as they came, for when nothing is added to them; None in place of a
              manifest that is to be written anew
    sibling:  a drafter in the target's repository
    """

    transaction: Transaction
    session: Session
    name: ModelName
    draft: str | None
    layers: list[Layer] = field(default_factory=list)
    files: list[Path] = field(default_factory=list)
    values: dict[str, Any] = field(default_factory=dict)
    original: tuple[Layer, bytes | None] | None = None
    sibling: tuple[hub.Repository, hub.HubFile] | None = None
    notices: list[Notice] = field(default_factory=list)

    @property
    def has_draft(self) -> bool:
        return any(layer.kind == "draft" for layer in self.layers)

    def from_hub(self, packaged: Packaged | None) -> Made:
        """packaged: what it is to be"""
        id = f"{self.name.namespace}/{self.name.model}"
        repository = hub.find_repository(id, report=self.transaction.report)
        parts = hub.choose_model(repository, self.name.tag)
        found = parts[0].digest
        if packaged is not None and found != packaged.digest:
            how = packaged.how_to_get
            raise DigestError(f"{id}: expected {packaged.digest}, the Hub has {found}; to get it: {how}")
        for part in parts:
            if not part.digest:
                raise DownloadError(f"{id}: {part.path}: the Hub gives no digest for it")
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
        if name.scheme != "https" and not (name.scheme == "http" and insecure):
            raise DownloadError(f"{name}: not encrypted; add --insecure to `pull` or `run` to allow http")
        help = f"Check the name, or try `ollama pull`; on the Hub: hf.co/USER/REPO:QUANT (asked: {name.host})"
        url = f"{name.scheme}://{name.host}/v2/{name.namespace}/{name.model}"
        data = get(self.session, f"{url}/manifests/{name.tag}", str(name), help, Accept=MANIFEST)
        manifest = Manifest.from_bytes(data, f"{name}: manifest of {name.host}", None)
        if (n_layers := len(manifest.layers)) > _MAX_LAYERS:
            raise DownloadError(f"{name}: expected at most {_MAX_LAYERS} layers, found {n_layers}")
        if manifest.of_kind("tensor") or not manifest.of_kind("model"):
            what = "an MLX model" if manifest.of_kind("tensor") else "no GGUF model"
            raise DownloadError(f"{name}: this is {what}; eaglecpp runs GGUF models")
        for layer in manifest.blobs:
            kind = "config" if layer is manifest.config else layer.kind
            blob = f"{url}/blobs/{layer.digest}"
            file = self._fetch(kind, Remote(blob, layer.digest, layer.size, kind, str(name), help=help))
        self.layers = [*manifest.layers]
        if manifest.config is not None:
            self.values = decoded(read_limited(file, MAX_JSON), f"{name}: config", dict[str, Any])
            self.original = manifest.config, None if manifest.decided_here else data
        return self._finish()

    def _fetch(self, kind: str, remote: Remote, name: str = "") -> Path:
        layer, file = fetch_layer(self.transaction, self.session, kind, remote, name)
        self.layers.append(layer)
        self.files += [file] if kind == "model" else []
        return file

    def _finish(self) -> Made:
        """Adds the drafter to the target's layers and makes the model."""
        facts = read_facts(self.files)
        values, layers, commit = self.values or facts.config(), self.layers, self.transaction.commit
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
            model = commit(self.name, layers, self.original[0], data=self.original[1])
        else:
            is_kept = is_decided and (drafter is not None or left_out)
            model = commit(self.name, layers, values, decided_here=frozenset({"draft"} if is_kept else ()))
        return Made(model, tuple(self.notices))

    def _drafter(self, facts: Facts, old: StoredModel | None) -> tuple[Layer, Facts] | None:
        """The drafter's layer and facts; None for what the target comes with, or for none.

        old: what is replaced, when nothing was said of a drafter. One that the user named stays until he
        names another one; else the publisher's comes first.
        """
        if self.draft == "none":
            return None
        stores, report = self.transaction.stores, self.transaction.report
        if self.draft is not None and self.draft != "auto":
            found = find_draft(stores, self.draft, Path.cwd(), facts, report=report)
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
        known, why = best_known(str(self.name), self.files[0].name, facts)
        if known is None:
            self.notices.append(Notice(f"{why}; make one with eaglecpp train"))
            return None
        return fetch_drafter(stores, known, facts, report=report).add_to(self.transaction, facts)


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
            self._convert(target, file, transaction.report)
        facts = check_fit(file, target)
        if self.model is None:
            return transaction.add_file("draft", file), facts
        layer = self.model.manifest.of_kind("draft")[-1]
        return transaction.add_layer(self.model, layer, origin=layer.origin or str(self.model.name)), facts

    def _convert(self, target: Facts, out: Path, report: Report) -> None:
        """The checkpoint to GGUF, with what the table knows of it. Raises ConvertError."""
        from eaglecpp.convert import Progress, convert_checkpoint, errors

        known = self.known
        name = self.file.name if known is None else known.repo

        def tell(progress: Progress) -> None:
            report(Status("converting the drafter", "", progress.total, progress.done, name))

        options: dict[str, Any] = {"type": self.type or DEFAULT_TYPE, "progress": tell}
        options |= {"hub_id": known and known.repo}
        readings: dict[str, str] = {"feed": known.feed} if known is not None and known.feed else {}
        try:
            convert_checkpoint(self.file, target.file.path, out, readings=readings, **options)
        except errors.LayerIdError:
            if known is None or known.layer_ids == "default":
                raise
            readings |= {"layer_ids": known.layer_ids}
            convert_checkpoint(self.file, target.file.path, out, readings=readings, **options)


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
        how = "write `DRAFT text` in a Modelfile, or run with --draft text (a file of that name is ./text)"
        raise ModelNotFoundError(f"drafter 'text' means drafts from the text itself: {how}")
    try:
        reference = read_reference(text, directory) if isinstance(text, str) else text
    except (FileSearchError, OSError, ModelNameError) as error:
        raise ModelNotFoundError(f"drafter {text!r}: {error}") from None
    if reference.name is None:
        return FoundDraft(reference.path, type=type if reference.kind == "checkpoint" else None)
    if (model := stores.find(reference.name)) is not None:
        has_draft = bool(model.manifest.of_kind("draft"))
        return FoundDraft.of(model) if has_draft else FoundDraft(model.target_files()[0])
    if not reference.name.is_hub:
        how = "for a repository on the Hub write hf.co/USER/REPO"
        raise ModelNotFoundError(f"drafter '{reference.text}': no such file or stored model; {how}")
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
    type, name = type.upper(), ModelName.parse(f"hf.co/{known.repo}:{type or 'latest'}")
    for model in stores.models():
        if model.is_drafter and model.name.same_as(name if type else name.with_tag(model.name.tag)):
            with contextlib.suppress(MismatchError, UnsupportedError):
                check_fit(model.files("draft")[-1], target)
                return FoundDraft.of(model)
    report(Status(f"pulling drafter {known.repo}"))
    repository = hub.find_repository(known.repo)
    with Transaction(stores, report) as transaction:
        drafter = hub.choose_drafter(repository, quant=type)
        if drafter is not None and drafter.digest:
            with Session() as session:
                layer, file = fetch_layer(transaction, session, "draft", repository.remote(drafter))
            facts = check_fit(file, target)
            # never the name of a target in the same repository, which a quantisation alone may be
            name = name if type else name.with_tag(drafter.name.removesuffix(".gguf")[:_MAX_TAG])
        else:
            into, name = transaction.directory / "hub", name.with_tag(type or DEFAULT_TYPE)
            checkpoint = hub.fetch_checkpoint(stores.own.root, repository, known.folder, into, report)
            layer, facts = FoundDraft(checkpoint, type=name.tag, known=known).add_to(transaction, target)
        config = {**facts.config(), "draft": draft_config(facts)}
        model = transaction.commit(name, [layer], config)
    discard(stores.own.root, {file.digest for file in repository.files})  # a checkpoint, converted now
    return FoundDraft.of(model)


def draft_config(facts: Facts) -> dict[str, str]:
    """The config blob's `draft` entry."""
    return {"model_format": "gguf", "architecture": facts.architecture}
