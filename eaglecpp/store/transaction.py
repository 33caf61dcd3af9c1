# SPDX-License-Identifier: MIT
"""`Transaction`: gathers the blobs of one model, then makes the model in one step.

    with Transaction(stores) as transaction:
        layer = transaction.add_file("model", Path("target.gguf"))
        transaction.commit(name, [layer], config)

Until `commit` nothing of it can be seen, and everything is in a temporary folder that the next change of the
store removes if this process dies. `commit` moves the blobs into place and renames the manifest last, under
the store's lock: a kill in between leaves blobs that no manifest names, which the next change removes too.
"""

from __future__ import annotations

import hashlib
import json
import os
import uuid
from collections.abc import Iterable, Mapping
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from eaglecpp.files import replace_bytes
from eaglecpp.references.names import ModelName, canonical
from eaglecpp.store.collect import TEMPORARY, collect, write_links, write_made
from eaglecpp.store.content import file_digest, place, share
from eaglecpp.store.errors import Report, Status, StoreError, silent
from eaglecpp.store.layout import blob_path, find_manifest, manifest_path
from eaglecpp.store.locks import lock_store, try_lock
from eaglecpp.store.manifest import CONFIG, IMAGE, Config, Layer, Manifest
from eaglecpp.store.model import StoredModel
from eaglecpp.store.store import Store, Stores

__all__ = ["Transaction", "copy_model", "remove_model"]

_MARK = "eaglecpp.json"
_LAYOUT = 1


class Transaction:
    """Blobs on their way into our store. Used once, by one thread."""

    def __init__(self, stores: Stores, report: Report = silent) -> None:
        self.stores = stores
        self.root = stores.own.root
        self.report = report
        self.directory = self.root / TEMPORARY / uuid.uuid4().hex
        self._staged: dict[str, Path] = {}
        self._links: dict[str, tuple[int, int]] = {}  # what `LINKED` will say of them
        self._made: set[str] = set()  # what `MADE` will say
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        prepare(self.root)
        with lock_store(self.root):  # nobody who tidies up takes it for dead before it is locked
            self._stack.enter_context(try_lock(self.directory.with_name(self.directory.name + ".lock")))
            self.directory.mkdir(parents=True)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        import shutil

        shutil.rmtree(self.directory, ignore_errors=True)
        self._stack.close()
        self.directory.with_name(self.directory.name + ".lock").unlink(missing_ok=True)

    def add_bytes(self, kind: str, data: bytes) -> Layer:
        """A layer with this content. kind: a word of Ollama's, or a whole media type."""
        digest = f"sha256:{hashlib.sha256(data).hexdigest()}"
        path = self._place_for()
        path.write_bytes(data)
        return self._stage(kind, digest, path)

    def add_own(self, kind: str, data: bytes) -> Layer:
        """As `add_bytes`, for settings that the user of this machine wrote: they are believed later."""
        layer = self.add_bytes(kind, data)
        self._made.add(layer.digest)
        return layer

    def add_file(self, kind: str, file: Path, *, name: str = "") -> Layer:
        """A layer with the content of a user's file, which stays where it is and is shared if possible.

        Raises OSError, and StoreError when it must be copied and the disk is too full.
        """
        known = self._known_digest(file)
        if known is not None:
            self.add_shared(known, file)
            return Layer(_media_type(kind), known, file.stat().st_size, name=name)
        path = self._place_for()
        how = place(file, path)
        stat = path.stat()
        digest = self._hash(path, file.name)
        if how == "link":
            self._links[digest] = (stat.st_size, stat.st_mtime_ns)
        return self._stage(kind, digest, path, name)

    def add_output(self, kind: str, file: Path) -> Layer:
        """A layer with a file that was made in `directory`; the file is moved."""
        path = self._place_for()
        file.replace(path)
        return self._stage(kind, self._hash(path, file.name), path)

    def add_download(self, kind: str, digest: str, file: Path, *, name: str = "") -> Layer:
        """A layer with a finished download, whose digest was checked; the file is moved at `commit`."""
        return self._stage(kind, digest, file, name)

    def add_layer(self, model: StoredModel, layer: Layer, *, origin: str = "") -> Layer:
        """A layer of another model, of ours or of Ollama's store.

        A blob that can be neither cloned nor linked is left where it is, and found there.
        Raises StoreError when it is missing.
        """
        self.add_shared(layer.digest, model.find_blob(layer))
        return Layer(layer.media_type, layer.digest, layer.size, origin or layer.origin, layer.name)

    def sound_blob(self, layer: Layer) -> Path | None:
        """Where a layer's content already is, in our store or another; None when it is missing or damaged."""
        final = blob_path(self.root, layer.digest)
        if _is_good(final, layer, self.stores.own.linked()):
            return final
        found = self.stores.own.blob(layer.digest)
        return found if found not in (None, final) and found.stat().st_size == layer.size else None

    def add_shared(self, digest: str, file: Path) -> Path:
        """Takes over a blob of any store, and returns where it is until `commit`: where it was, if it can be
        neither cloned nor linked.
        """
        path = self.keep(file)
        if path != file:
            self._staged[digest] = path
            noted = self.stores.own.linked().get(digest)
            if noted is not None:
                self._links[digest] = noted
        return path

    def keep(self, file: Path) -> Path:
        """A name of our own for a file that another process may move or remove meanwhile; its own where the
        system cannot give it two.
        """
        path = self._place_for()
        return file if share(file, path) is None else path

    def commit(
        self,
        name: ModelName,
        layers: Iterable[Layer],
        config: Config | Mapping[str, Any] | Layer,
        *,
        data: bytes | None = None,
    ) -> StoredModel:
        """Makes (or replaces) the model `name` of these layers.

        config: what the model says of itself, or the layer that holds it
        data:   the manifest's bytes, when they come from a registry and are to stay as they are
        Raises StoreError, OSError.
        """
        if not isinstance(config, Layer):
            values = config if isinstance(config, Config) else Config(config)
            config = Layer(CONFIG, *self._content(values.to_bytes()))
        manifest = Manifest(tuple(layers), config)
        self.report(Status("writing manifest"))
        with lock_store(self.root):
            self._publish(manifest)
            path = find_manifest(self.root, name) or manifest_path(self.root, name)
            replace_bytes(path, data or manifest.to_bytes())
            collect(self.root)
        found = self.stores.own.find(name)
        if found is None:
            raise StoreError(f"{path}: vanished right after it was written")
        return found

    def _content(self, data: bytes) -> tuple[str, int]:
        layer = self.add_bytes("", data)
        return layer.digest, layer.size

    def _place_for(self) -> Path:
        return self.directory / uuid.uuid4().hex

    def _stage(self, kind: str, digest: str, path: Path, name: str = "") -> Layer:
        self._staged[digest] = path
        return Layer(_media_type(kind), digest, path.stat().st_size, name=name)

    def _hash(self, path: Path, label: str) -> str:
        return file_digest(path, self.report, Status("computing sha256 digest", file=label))

    def _known_digest(self, file: Path) -> str | None:
        """The digest of a file that already is one of our blobs, unchanged since; saves hashing it again."""
        stat = file.stat()
        try:
            entries = [entry for entry in os.scandir(self.root / "blobs") if entry.inode() == stat.st_ino]
        except FileNotFoundError:
            return None
        for entry in entries:
            digest = entry.name.replace("sha256-", "sha256:", 1)
            before = self.stores.own.linked().get(digest)
            same = os.path.samestat(Path(entry.path).stat(), stat)  # scandir has no device number
            if same and not entry.name.endswith("-partial"):
                unchanged = before is None or before == (stat.st_size, stat.st_mtime_ns)
                return digest if unchanged else None
        return None

    def _publish(self, manifest: Manifest) -> None:
        """Moves the staged blobs into place and notes which are links; the caller holds the lock."""
        (self.root / "blobs").mkdir(exist_ok=True)
        before = self.stores.own.linked()
        after = {digest: entry for digest, entry in before.items() if blob_path(self.root, digest).exists()}
        for layer in manifest.blobs:
            final, staged = blob_path(self.root, layer.digest), self._staged.get(layer.digest)
            if _is_good(final, layer, before):
                continue
            if staged is not None and staged.exists():
                staged.replace(final)
                after.pop(layer.digest, None)
                if layer.digest in self._links:
                    after[layer.digest] = self._links[layer.digest]
            elif self.stores.own.blob(layer.digest) in (None, final):
                raise StoreError(
                    f"{layer.kind} blob {layer.digest} was removed or changed by another process in the "
                    "meantime; try again"
                )
        if after != before:
            write_links(self.root, after)
        if not self._made <= self.stores.own.made():
            write_made(self.root, self.stores.own.made() | self._made)


def prepare(root: Path) -> None:
    """Makes a folder our store. Raises StoreError for a folder that holds someone else's, or is read-only."""
    mark = root / _MARK
    try:
        # Looked for before the mark, which is always made before them: another process may be making ours.
        has_models = (root / "manifests").exists() or (root / "blobs").exists()
        if not mark.exists():
            if has_models:
                raise StoreError(
                    f"{root} contains another program's models (Ollama's store?), which eaglecpp reads "
                    "but does not change: set EAGLECPP_MODELS to another folder"
                )
            replace_bytes(mark, json.dumps({"layout": _LAYOUT}).encode() + b"\n")
        layout = json.loads(mark.read_bytes()).get("layout")
    except OSError as error:
        raise StoreError(
            f"{root}: cannot be written: {error.strerror or error}; set EAGLECPP_MODELS to a folder of "
            "your own"
        ) from error
    except (ValueError, AttributeError):
        layout = None
    if layout != _LAYOUT:
        raise StoreError(f"{mark}: expected layout {_LAYOUT}, found {layout!r}; written by a newer eaglecpp?")


def remove_model(store: Store, name: ModelName) -> None:
    """Removes a model of our store, and the blobs no other one needs.

    Raises StoreError when there is no such model, or the store is not ours.
    """
    prepare(store.root)
    with lock_store(store.root):
        path = find_manifest(store.root, name)
        if path is None:
            raise StoreError(f"model '{name}' not found in {store.root}")
        path.unlink()
        collect(store.root)


def copy_model(stores: Stores, model: StoredModel, name: ModelName, report: Report = silent) -> StoredModel:
    """Makes `name` a second name of a model; blobs are shared. Raises StoreError."""
    with Transaction(stores, report) as transaction:
        origin = "" if model.own else str(model.name)
        layers = [transaction.add_layer(model, layer, origin=origin) for layer in model.manifest.layers]
        config: Config | Layer = model.config
        if model.manifest.config is not None:
            config = transaction.add_layer(model, model.manifest.config)
        data = model.path.read_bytes() if model.own else None
        return transaction.commit(canonical(name), layers, config, data=data)


def _media_type(kind: str) -> str:
    return kind if "/" in kind else IMAGE + kind


def _is_good(final: Path, layer: Layer, linked: Mapping[str, tuple[int, int]]) -> bool:
    """Whether a blob is there, of the right size, and not changed behind our back."""
    try:
        stat = final.stat()
    except FileNotFoundError:
        return False
    before = linked.get(layer.digest)
    return stat.st_size == layer.size and (before is None or before == (stat.st_size, stat.st_mtime_ns))
