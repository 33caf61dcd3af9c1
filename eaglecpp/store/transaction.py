# SPDX-License-Identifier: MIT
"""Changes of our store: blobs first, each under the digest of its content, then the manifest, in one step.

    with Transaction(stores) as transaction:
        layer = transaction.add_file("model", Path("target.gguf"))
        transaction.commit(name, [layer], config)

A blob appears whole or not at all, and so does a manifest, whose blobs are all there: a kill leaves the old
model or the new one, and perhaps blobs that no manifest names. Blobs of a manifest that was removed or
replaced go at once, unless a running process uses them; others wait `DAYS` for the command to be given again,
as half a download does. While a manifest cannot be read, nothing is removed: it might be the one that needs
it.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import logging
import os
import shutil
import tempfile
import time
import uuid
from collections.abc import Iterable, Mapping, Set
from pathlib import Path
from typing import Any, Self

import msgspec

from eaglecpp.files import make_folder, read_limited, replace_bytes, sync
from eaglecpp.references import ModelName, canonical
from eaglecpp.store.content import (
    MORE_ROOM,
    check_space,
    file_digest,
    known_digest,
    lock_store,
    try_lock,
)
from eaglecpp.store.errors import DigestError, Report, Status, StoreError, silent
from eaglecpp.store.layout import LOCKS, blob_path, find_manifest, manifest_files, manifest_path
from eaglecpp.store.manifest import CONFIG, IMAGE, MAX_JSON, Layer, Manifest
from eaglecpp.store.model import VIEWS, StoredModel
from eaglecpp.store.store import Store, Stores

DAYS = 14
"""How long what no model needs is kept."""
_TEMPORARY = "tmp"
_MARK = "eaglecpp.json"
_LAYOUT = b'{"layout": 1}'
_log = logging.getLogger("eaglecpp.store")


class Transaction:
    """Content on its way to a manifest. Used once, by one thread.

    directory: where it is until then, locked as long as this process lives. A blob that is used has a second
    name there: whoever removes it in the meantime takes away only the first
    """

    def __init__(self, stores: Stores, report: Report = silent) -> None:
        self.stores = stores
        self.root = stores.own.root
        self.report = report

    def __enter__(self) -> Self:
        _prepare(self.root)
        for folder in (_TEMPORARY, "blobs"):
            make_folder(self.root / folder)
        with lock_store(self.root):  # nobody takes it for a dead one's before it is locked
            self.directory = Path(tempfile.mkdtemp(dir=self.root / _TEMPORARY))
            self._lock = try_lock(self.directory)
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        self._lock.release()
        shutil.rmtree(self.directory, ignore_errors=True)
        if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise StoreError(f"{self.root}: {os.strerror(error.errno)}; {MORE_ROOM}") from error

    def add_bytes(self, kind: str, data: bytes) -> Layer:
        """A layer with this content. kind: a word of Ollama's, or a whole media type."""
        path = self.directory / uuid.uuid4().hex
        path.touch(0o644)  # whatever the umask
        path.write_bytes(data)
        sync(path)
        return self._add(kind, path, f"sha256:{hashlib.sha256(data).hexdigest()}")

    def add_file(self, kind: str, file: Path, *, name: str = "") -> Layer:
        """A layer with the content of a file, which stays where it is and takes no second space where a disk
        lets it have two names. name: of a part of a split GGUF

        Raises OSError, and StoreError when it must be copied and the disk is too full.
        """
        path = self._take(file)
        step = Status("computing sha256 digest", file=file.name)
        return self._add(kind, path, file_digest(path, self.report, step), name)

    def add_layer(self, model: StoredModel, layer: Layer, *, origin: str = "") -> Layer:
        """A layer of another model. A blob of Ollama's store that this one cannot have by a second name stays
        there, and is found there.

        Raises StoreError when it is missing, was changed, or must be copied and the disk is too full.
        """
        file = model.find_blob(layer)
        if model.owner == "pip" and known_digest(file) != layer.digest:
            raise DigestError(f"{model.name}: {file}: its content is not {layer.digest}; install it again")
        self.add_shared(layer.digest, file)
        return msgspec.structs.replace(layer, origin=origin or layer.origin)

    def add_shared(self, digest: str, file: Path) -> None:
        """Takes over a file with that content: a blob of any store, or what a package brings."""
        with contextlib.suppress(OSError):
            os.link(os.path.realpath(file), self._staged(digest))
        if not self._staged(digest).exists() and self.stores.own.blob(digest) is None:
            self._take(file).replace(self._staged(digest))

    def commit(
        self,
        name: ModelName,
        layers: Iterable[Layer],
        config: Mapping[str, Any] | Layer,
        *,
        data: bytes | None = None,
        made_here: bool = False,
    ) -> StoredModel:
        """Makes (or replaces) the model `name` of these layers.

        config:    what the model says of itself, or the layer that holds it
        data:      the manifest's bytes, when they are to stay as they are
        made_here: of `Manifest`
        Raises StoreError, OSError.
        """
        if not isinstance(config, Layer):
            config = self.add_bytes(CONFIG, msgspec.json.encode(config))
        manifest = Manifest(tuple(layers), config, made_here)
        self.report(Status("writing manifest"))
        with lock_store(self.root):
            for layer in manifest.blobs:
                self._publish(layer)
            path = find_manifest(self.root, name) or manifest_path(self.root, name)
            sync(self.root / "blobs")
            shutil.rmtree(self.directory, ignore_errors=True)
            _change(self.root, path, data or manifest.to_bytes())
            found = self.stores.own.find(name)  # before another process can remove it
        assert found is not None, path
        return found

    def _publish(self, layer: Layer) -> None:
        """What is here becomes a blob, unless one is there already that nobody else can have changed."""
        staged, blob = self._staged(layer.digest), blob_path(self.root, layer.digest)
        is_kept = blob.exists() and blob.stat().st_nlink == 1 and blob.stat().st_size == layer.size
        if staged.exists() and not is_kept:
            staged.replace(blob)
        elif self.stores.own.blob(layer.digest) is None:
            gone = f"{layer.kind} blob {layer.digest} was removed by another process"
            raise StoreError(f"{gone} in the meantime; try again")

    def _staged(self, digest: str) -> Path:
        return self.directory / blob_path(self.root, digest).name

    def _take(self, file: Path) -> Path:
        """A second name of a file; a copy where the system cannot give it one."""
        path = self.directory / uuid.uuid4().hex
        try:
            os.link(os.path.realpath(file), path)
        except OSError:
            check_space(self.root, file.stat().st_size, f"a copy of {file}")
            path.touch(0o644)  # whatever the umask
            shutil.copyfile(file, path)
            sync(path)
        return path

    def _add(self, kind: str, path: Path, digest: str, name: str = "") -> Layer:
        layer = Layer(kind if "/" in kind else IMAGE + kind, digest, path.stat().st_size, name=name)
        path.replace(self._staged(digest))
        return layer


def remove_model(store: Store, name: ModelName) -> None:
    """Removes a model of our store, and the blobs no other one needs.

    Raises StoreError when there is no such model, or the store is not ours.
    """
    _prepare(store.root)
    with lock_store(store.root):
        path = find_manifest(store.root, name)
        if path is None:
            raise StoreError(f"model '{name}' not found in {store.root}")
        _change(store.root, path)


def copy_model(stores: Stores, model: StoredModel, name: ModelName, report: Report = silent) -> StoredModel:
    """Makes `name` a second name of a model; blobs are shared. Raises StoreError."""
    with Transaction(stores, report) as transaction:
        origin = "" if model.own else str(model.name)
        layers = [transaction.add_layer(model, layer, origin=origin) for layer in model.manifest.layers]
        layer, data = model.manifest.config, model.data if model.own else None
        config = model.config if layer is None else transaction.add_layer(model, layer)
        return transaction.commit(canonical(name), layers, config, data=data)


def discard(root: Path, digests: Set[str]) -> None:
    """Removes those of these blobs that no model needs."""
    with lock_store(root):
        _collect(root, digests)


def _prepare(root: Path) -> None:
    """Makes a folder our store. Raises StoreError for a folder that holds someone else's, or is read-only."""
    mark = root / _MARK
    try:
        # The mark is always made first: another process may be making ours.
        if not (mark.exists() or (root / "manifests").exists() or (root / "blobs").exists()):
            replace_bytes(mark, _LAYOUT + b"\n")
        layout = read_limited(mark, 1000).strip()
    except FileNotFoundError:
        theirs = f"{root} has another program's models, which are only read"
        raise StoreError(f"{theirs}: set EAGLECPP_MODELS elsewhere") from None
    except OSError as error:
        why = error.strerror or error
        raise StoreError(f"{root}: cannot be written: {why}; set EAGLECPP_MODELS elsewhere") from error
    if layout != _LAYOUT:
        raise StoreError(f"{mark}: expected {_LAYOUT!r}, found {layout!r}; written by a newer eaglecpp?")


def _digests(path: Path) -> set[str]:
    """What a manifest names. Raises StoreError, OSError."""
    return {layer.digest for layer in Manifest.from_bytes(read_limited(path, MAX_JSON), str(path)).blobs}


def _change(root: Path, path: Path, data: bytes = b"") -> None:
    """Writes a manifest, or removes it, with what it alone needed. The caller holds the lock."""
    dropped: set[str] = set()
    with contextlib.suppress(StoreError, OSError):  # what is missing or damaged names nothing
        dropped = _digests(path)
    if data:
        replace_bytes(path, data)
    else:
        path.unlink()
    _collect(root, dropped)


def _collect(root: Path, dropped: Set[str]) -> None:
    """Removes what no model needs: `dropped` at once, the rest when it is old. The caller holds the lock."""
    for folder in root.glob(f"{_TEMPORARY}/*"):
        with contextlib.suppress(OSError):  # a Timeout is one: its process lives
            lock = try_lock(folder)
            shutil.rmtree(folder, ignore_errors=True)
            lock.release()
    needed: set[str] = set()
    try:
        for path in manifest_files(root):
            needed |= _digests(path)
    except (StoreError, OSError) as error:
        _log.warning("nothing is removed, because a manifest cannot be read: %s", error)
        return
    oldest = time.time() - DAYS * 86400
    for path in [entry for name in ("blobs", VIEWS, LOCKS) for entry in root.glob(f"{name}/*")]:
        digest = f"sha256:{path.name[-64:]}"  # which half a download and a lock have not
        if digest in needed or path.name == "store.lock":
            continue
        with contextlib.suppress(FileNotFoundError):
            stat = path.stat()  # ctime: when a user's file got its name here
            if digest in dropped or max(stat.st_ctime, stat.st_mtime) < oldest:
                shutil.rmtree(path) if path.is_dir() else path.unlink()
