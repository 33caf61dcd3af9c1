# SPDX-License-Identifier: MIT
"""Changes of our store: first the blobs, each under the digest of its content, then the manifest, atomically.

    with Transaction(stores) as transaction:
        layer = transaction.add_file("model", Path("target.gguf"))
        transaction.commit(name, [layer], config)

Blobs and manifests appear whole or not at all, and all blobs of a manifest exist. A kill leaves the old model
or the new one, and sometimes unused blobs. The blobs of a removed or replaced manifest are deleted at once,
unless a running process uses them. Other unused blobs and partial downloads are kept for `DAYS`, so that the
command can be repeated. While any manifest is unreadable, no blob is deleted, because this manifest might
need the blob.
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
from eaglecpp.store.content import MORE_ROOM, check_space, file_digest, known_digest, lock_store, try_lock
from eaglecpp.store.errors import DigestError, Report, Status, StoreError, silent
from eaglecpp.store.layout import LOCKS, blob_path, find_manifest, manifest_files, manifest_path
from eaglecpp.store.manifest import CONFIG, IMAGE, MAX_JSON, Layer, Manifest
from eaglecpp.store.model import VIEWS, StoredModel
from eaglecpp.store.store import Store, Stores

DAYS = 14
"""Days for which unused files of a store are kept."""
_TEMPORARY = "tmp"
_MARK = "eaglecpp.json"
_LAYOUT = b'{"layout": 1}'
_log = logging.getLogger("eaglecpp.store")


class Transaction:
    """Collects content for a manifest. An object is used once, by one thread.

    directory: folder with the content until the commit, locked while this process lives. Blobs in use are
    hard-linked into this folder, so that they survive if another process removes them from the store
    """

    def __init__(self, stores: Stores, report: Report = silent) -> None:
        self.stores = stores
        self.root = stores.own.root
        self.report = report

    def __enter__(self) -> Self:
        _prepare(self.root)
        for folder in (_TEMPORARY, "blobs"):
            make_folder(self.root / folder)
        # The lock is needed because a folder without a locked file would look abandoned.
        with lock_store(self.root):
            self.directory = Path(tempfile.mkdtemp(dir=self.root / _TEMPORARY))
            self._lock = try_lock(self.directory)
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        self._lock.release()
        shutil.rmtree(self.directory, ignore_errors=True)
        if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise StoreError(f"{self.root}: {os.strerror(error.errno)}; {MORE_ROOM}") from error

    def add_bytes(self, kind: str, data: bytes) -> Layer:
        """Adds a layer with this content. kind: Ollama's name for the kind of layer, or a complete media
        type.
        """
        path = self.directory / uuid.uuid4().hex
        path.touch(0o644)  # gives the file permissions that do not depend on the umask
        path.write_bytes(data)
        sync(path)
        return self._add(kind, path, f"sha256:{hashlib.sha256(data).hexdigest()}")

    def add_file(self, kind: str, file: Path, *, name: str = "") -> Layer:
        """Adds a layer with the content of a file. The file stays where it is and is hard-linked if the disk
        allows it. name: file name of a part of a split GGUF

        Raises OSError, and StoreError if the file must be copied but the disk has too little space.
        """
        path = self._take(file)
        step = Status("computing sha256 digest", file=file.name)
        return self._add(kind, path, file_digest(path, self.report, step), name)

    def add_layer(self, model: StoredModel, layer: Layer, *, origin: str = "") -> Layer:
        """Adds a layer of another model. If a blob of Ollama's store cannot be linked, it stays in Ollama's
        store, where later reads find it.

        Raises StoreError if the blob is missing or was changed, or if it must be copied but the disk has too
        little space.
        """
        file = model.find_blob(layer)
        if model.owner == "pip" and known_digest(file) != layer.digest:
            raise DigestError(f"{model.name}: the content of {file} is not {layer.digest}; install it again")
        self.add_shared(layer.digest, file)
        return msgspec.structs.replace(layer, origin=origin or layer.origin)

    def add_shared(self, digest: str, file: Path) -> None:
        """Adds a layer with the file of a given digest, which is a blob of any store or a file of a
        package.
        """
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
        is_local: bool = False,
    ) -> StoredModel:
        """Creates or replaces the model `name` with these layers.

        config:    the model's config, or its layer
        data:      the manifest's bytes, if they must be kept as they are
        is_local: as in `Manifest`
        Raises StoreError, OSError.
        """
        if not isinstance(config, Layer):
            config = self.add_bytes(CONFIG, msgspec.json.encode(config))
        manifest = Manifest(tuple(layers), config, is_local)
        self.report(Status("writing manifest"))
        with lock_store(self.root):
            for layer in manifest.blobs:
                self._publish(layer)
            path = find_manifest(self.root, name) or manifest_path(self.root, name)
            sync(self.root / "blobs")
            shutil.rmtree(self.directory, ignore_errors=True)
            _change(self.root, path, data or manifest.to_bytes())
            model = self.stores.own.find(name)  # the model is read before another process can remove it
        assert model is not None, path
        return model

    def _publish(self, layer: Layer) -> None:
        """Moves a layer's content from the transaction's directory into the store's blobs, unless an
        unchanged blob exists already.
        """
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
        """Hard-links a file into the transaction's directory. If the system cannot link the file, copies
        it.
        """
        path = self.directory / uuid.uuid4().hex
        try:
            os.link(os.path.realpath(file), path)
        except OSError:
            check_space(self.root, file.stat().st_size, f"a copy of {file}")
            path.touch(0o644)  # gives the file permissions that do not depend on the umask
            shutil.copyfile(file, path)
            sync(path)
        return path

    def _add(self, kind: str, path: Path, digest: str, name: str = "") -> Layer:
        layer = Layer(kind if "/" in kind else IMAGE + kind, digest, path.stat().st_size, name=name)
        path.replace(self._staged(digest))
        return layer


def remove_model(store: Store, name: ModelName) -> None:
    """Removes a model of our store, and the blobs that no other model needs.

    Raises StoreError if the model does not exist, or the store is not ours.
    """
    _prepare(store.root)
    with lock_store(store.root):
        path = find_manifest(store.root, name)
        if path is None:
            raise StoreError(f"model '{name}' not found in {store.root}")
        _change(store.root, path)


def copy_model(stores: Stores, model: StoredModel, name: ModelName, report: Report = silent) -> StoredModel:
    """Makes `name` a second name of a model. Both names share the blobs. Raises StoreError."""
    with Transaction(stores, report) as transaction:
        origin = "" if model.own else str(model.name)
        layers = [transaction.add_layer(model, layer, origin=origin) for layer in model.manifest.layers]
        layer, data = model.manifest.config, model.data if model.own else None
        config = model.config if layer is None else transaction.add_layer(model, layer)
        return transaction.commit(canonical(name), layers, config, data=data)


def discard(root: Path, digests: Set[str]) -> None:
    """Removes the given blobs, except blobs that a model needs."""
    with lock_store(root):
        _collect(root, digests)


def _prepare(root: Path) -> None:
    """Turns a folder into our store. Raises StoreError for a folder of another program, or a read-only
    one.
    """
    mark = root / _MARK
    try:
        # The mark is written before anything else, because another process may create our store at the same
        # time.
        if not (mark.exists() or (root / "manifests").exists() or (root / "blobs").exists()):
            replace_bytes(mark, _LAYOUT + b"\n")
        layout = read_limited(mark, 1000).strip()
    except FileNotFoundError:
        reason = f"{root} belongs to another program, so eaglecpp only reads it"
        raise StoreError(f"{reason}; set EAGLECPP_MODELS to another folder") from None
    except OSError as error:
        why = error.strerror or error
        raise StoreError(f"cannot write to {root}: {why}; set EAGLECPP_MODELS to another folder") from error
    if layout != _LAYOUT:
        raise StoreError(f"{mark}: expected {_LAYOUT!r}, found {layout!r}; a newer eaglecpp may read it")


def _digests(path: Path) -> set[str]:
    """Returns the digests in a manifest. Raises StoreError, OSError."""
    return {layer.digest for layer in Manifest.from_bytes(read_limited(path, MAX_JSON), str(path)).blobs}


def _change(root: Path, path: Path, data: bytes = b"") -> None:
    """Writes or removes a manifest, and removes blobs that only the old manifest needed. The caller must hold
    the store's lock.
    """
    dropped: set[str] = set()
    with contextlib.suppress(StoreError, OSError):  # a missing or damaged manifest needs no blobs
        dropped = _digests(path)
    if data:
        replace_bytes(path, data)
    else:
        path.unlink()
    _collect(root, dropped)


def _collect(root: Path, dropped: Set[str]) -> None:
    """Removes files of a store that no manifest needs: blobs in `dropped` at once, and other files when they
    are old. The caller must hold the store's lock.
    """
    for folder in root.glob(f"{_TEMPORARY}/*"):
        with contextlib.suppress(OSError):  # a timeout means that the folder's process is still running
            lock = try_lock(folder)
            shutil.rmtree(folder, ignore_errors=True)
            lock.release()
    needed: set[str] = set()
    try:
        for path in manifest_files(root):
            needed |= _digests(path)
    except (StoreError, OSError) as error:
        _log.warning("no unused files are removed, because a manifest cannot be read: %s", error)
        return
    oldest = time.time() - DAYS * 86400
    for path in [entry for name in ("blobs", VIEWS, LOCKS) for entry in root.glob(f"{name}/*")]:
        # The names of partial downloads and locks do not end in a digest, so only their age counts.
        digest = f"sha256:{path.name[-64:]}"
        if digest in needed or path.name == "store.lock":
            continue
        with contextlib.suppress(FileNotFoundError):
            stat = path.stat()  # for a linked file, ctime is the time when it got its name in this folder
            if digest in dropped or max(stat.st_ctime, stat.st_mtime) < oldest:
                shutil.rmtree(path) if path.is_dir() else path.unlink()
