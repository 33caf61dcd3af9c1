# SPDX-License-Identifier: MIT
"""Removes what no model in our store needs any more: blobs, views, leftovers of killed processes.

Runs at the end of every change, under the store's lock. Never touches a store that is not ours, never removes
a blob while a manifest cannot be read (it might be the one that needs it), and leaves downloads that are
under way or could be resumed.
"""

from __future__ import annotations

import contextlib
import json
import logging
import re
import shutil
import time
from collections.abc import Iterable, Mapping
from pathlib import Path

from eaglecpp.files import replace_bytes
from eaglecpp.store.content import read_small
from eaglecpp.store.errors import StoreError
from eaglecpp.store.layout import blob_path, is_digest, manifests, partial_path
from eaglecpp.store.locks import LOCKS, lock_path, try_lock
from eaglecpp.store.manifest import MAX_JSON, Manifest
from eaglecpp.store.shards import VIEWS
from eaglecpp.store.store import LINKED, MADE, Store

__all__ = ["TEMPORARY", "collect", "write_links", "write_made"]

TEMPORARY = "tmp"
"""Folders of running operations; each is locked by its operation as long as that lives."""
PARTIAL_DAYS = 14
"""How long an interrupted download waits to be resumed."""

_BLOB = re.compile(r"sha256-[0-9a-f]{64}")
_log = logging.getLogger("eaglecpp.store")


def collect(root: Path) -> None:
    """Tidies our store. The caller holds its lock."""
    _drop_dead_operations(root / TEMPORARY)
    needed = _needed(root)
    if needed is not None:
        _drop_blobs(root, needed)
        _drop_views(root, needed)
        _drop_links(root)
        _drop_made(root)
    _drop_locks(root)
    _prune(root / "manifests")


def _needed(root: Path) -> set[str] | None:
    """Digests that the manifests name; None when one of them cannot be read."""
    digests: set[str] = set()
    for name, path in manifests(root):
        try:
            manifest = Manifest.from_bytes(read_small(path, MAX_JSON), str(path))
        except (StoreError, OSError) as error:
            _log.warning("not cleaning up, because %s cannot be read: %s", name, error)
            return None
        digests |= {layer.digest for layer in manifest.blobs}
    return digests


def _drop_blobs(root: Path, needed: set[str]) -> None:
    names = {digest.replace(":", "-") for digest in needed}
    oldest = time.time() - PARTIAL_DAYS * 86400
    for path in _entries(root / "blobs"):
        if _BLOB.fullmatch(path.name):
            if path.name not in names:
                path.unlink(missing_ok=True)
        elif _is_partial(path) and _is_over(path, oldest):
            with try_lock(lock_path(root, path.name.removesuffix("-partial"))) as free:
                if free:
                    path.unlink(missing_ok=True)


def _is_over(partial: Path, oldest: float) -> bool:
    """Whether a download is stored by now, or has been left alone for long."""
    if partial.with_name(partial.name.removesuffix("-partial")).exists():
        return True
    with contextlib.suppress(FileNotFoundError):  # its own process may move it at any time
        return partial.stat().st_mtime < oldest
    return False


def _is_partial(path: Path) -> bool:
    return path.name.endswith("-partial") and bool(_BLOB.fullmatch(path.name.removesuffix("-partial")))


def _drop_links(root: Path) -> None:
    """Notes about links that are gone."""
    before = Store(root).linked()
    after = {digest: entry for digest, entry in before.items() if blob_path(root, digest).exists()}
    if after != before:
        write_links(root, after)


def _drop_made(root: Path) -> None:
    """Notes about settings that are gone."""
    before = Store(root).made()
    after = {digest for digest in before if is_digest(digest) and blob_path(root, digest).exists()}
    if after != before:
        write_made(root, after)


def write_made(root: Path, digests: Iterable[str]) -> None:
    """Writes what `Store.made` reads."""
    replace_bytes(root / MADE, json.dumps(sorted(digests), separators=(",", ":")).encode())


def write_links(root: Path, links: Mapping[str, tuple[int, int]]) -> None:
    """Writes what `Store.linked` reads."""
    replace_bytes(root / LINKED, json.dumps(links, separators=(",", ":")).encode())


def _drop_views(root: Path, needed: set[str]) -> None:
    for folder in _entries(root / VIEWS):
        if f"sha256:{folder.name}" not in needed:
            shutil.rmtree(folder, ignore_errors=True)


def _drop_dead_operations(folder: Path) -> None:
    for path in _entries(folder):
        lock = path if path.suffix == ".lock" else path.with_name(path.name + ".lock")
        with try_lock(lock) as dead:
            if dead:
                shutil.rmtree(lock.with_suffix(""), ignore_errors=True)
                with contextlib.suppress(OSError):  # Windows keeps an open file
                    lock.unlink()


def _drop_locks(root: Path) -> None:
    """Lock files of downloads that are over."""
    for path in _entries(root / LOCKS):
        blob = path.name.removesuffix(".lock")
        if not _BLOB.fullmatch(blob) or partial_path(root, blob).exists():
            continue
        with try_lock(path) as free:
            if free:
                with contextlib.suppress(OSError):
                    path.unlink()


def _prune(folder: Path) -> None:
    """Removes folders in which no manifest is left, and halves of manifests that a kill left."""
    for path in sorted(folder.glob("**/*"), reverse=True):
        if path.is_dir():
            if not any(path.iterdir()):
                path.rmdir()
        elif path.name.startswith(".") and path.name.endswith(".tmp"):
            path.unlink(missing_ok=True)


def _entries(folder: Path) -> list[Path]:
    try:
        return sorted(folder.iterdir())
    except FileNotFoundError:
        return []
