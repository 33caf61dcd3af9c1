# SPDX-License-Identifier: MIT
"""Location and layout of stores, in Ollama's format: names to paths and back.

    <root>/manifests/<host>/<namespace>/<model>/<tag>     one manifest
    <root>/blobs/sha256-<64 hex>                          content
    <root>/blobs/sha256-<64 hex>-partial                  content that is still being downloaded

This module only looks at file names. Sources: ollama/ollama: manifest/paths.go (also for `manifests-v2`,
which newer releases write), types/model/name.go.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterator
from pathlib import Path

from eaglecpp.data_dir import data_dir, folder_named
from eaglecpp.references import ModelName, ModelNameError, canonical
from eaglecpp.store.errors import StoreError

LOCKS = "locks"
_DIGEST = re.compile(r"sha256[:-]([0-9a-fA-F]{64})")
_FOLDERS = ("manifests-v2", "manifests")
_NO_NAME = re.compile(r'[\x00-\x1f\x7f<>:"/\\|?*]|[. ]$')
_RESERVED = re.compile(
    r"(?:con|prn|aux|nul|com[0-9¹²³]|lpt[0-9¹²³]|conin\$|conout\$)(?: *\..*)?", re.IGNORECASE
)
_MAX_NAME_BYTES = 200  # File systems allow 255 bytes, but temporary names are longer than final names


def default_root() -> Path:
    """Returns the folder of our store: `EAGLECPP_MODELS`, or a folder below `data_dir()`."""
    return folder_named("EAGLECPP_MODELS") or data_dir() / "models"


def ollama_roots() -> list[Path]:
    """Returns the folders in which Ollama may keep models. A folder need not exist. A name is looked up in
    the first folder first.
    """
    chosen = folder_named("OLLAMA_MODELS")
    folders = [] if chosen is None else [chosen]
    with contextlib.suppress(RuntimeError):  # the user may have no home folder
        folders.append(Path.home() / ".ollama" / "models")
    if os.name == "posix":
        folders += [Path("/usr/share/ollama/.ollama/models"), Path("/var/lib/ollama/.ollama/models")]
    return list(dict.fromkeys(folders))


def is_file_name(text: object) -> bool:
    """Returns whether a text is a bare file name on every system: no separator, drive letter, stream,
    reserved or hidden name. Untrusted names must pass this check before any disk access.
    """
    return (
        isinstance(text, str)
        and text != ""
        and not text.startswith(".")
        and len(text.encode(errors="replace")) <= _MAX_NAME_BYTES
        and _NO_NAME.search(text) is None
        and _RESERVED.fullmatch(text) is None
    )


def child(folder: Path, name: str) -> Path:
    """Returns the path of a file directly in a folder. Raises StoreError if the name is not a bare file
    name.
    """
    if not is_file_name(name):
        raise StoreError(f"{name!r}: expected a bare file name (no folders, drives or reserved names)")
    return folder / name


def is_digest(text: object) -> bool:
    """Returns whether the text is `sha256:` (or `sha256-`) and 64 hex digits."""
    return isinstance(text, str) and _DIGEST.fullmatch(text) is not None


def blob_path(root: Path, digest: str) -> Path:
    """Returns the path of a digest's content. Raises StoreError for a text that is not a digest."""
    match = _DIGEST.fullmatch(digest)
    if match is None:
        raise StoreError(f"{digest!r} is not a digest: expected sha256: and 64 hex digits")
    return root / "blobs" / f"sha256-{match[1].lower()}"


def partial_path(root: Path, digest: str) -> Path:
    """Returns the path of a blob during its download. Ollama also ignores files with such names."""
    path = blob_path(root, digest)
    return path.with_name(path.name + "-partial")


def manifest_path(root: Path, name: ModelName) -> Path:
    """Returns the path where our store writes the manifest of a name."""
    return root.joinpath("manifests", *canonical(name).parts)


def find_manifest(root: Path, name: ModelName) -> Path | None:
    """Returns the path of a name's manifest, ignoring case, or None if the manifest does not exist."""
    exact = manifest_path(root, name)
    if os.path.lexists(exact) and not exact.is_dir():
        return exact
    return next((path for other, path in manifests(root) if other.same_as(canonical(name))), None)


def manifest_files(root: Path) -> Iterator[Path]:
    """Yields every file that may be a manifest, including files whose names eaglecpp does not read. Raises
    OSError for an unreadable folder.
    """

    def fail(error: OSError) -> None:
        raise error

    for folder in _FOLDERS:
        if (root / folder).is_dir():
            for path, _, names in os.walk(root / folder, onerror=fail, followlinks=True):
                yield from (Path(path, name) for name in names if not name.startswith("."))


def manifests(root: Path) -> Iterator[tuple[ModelName, Path]]:
    """Yields every name in a store with the path of its manifest, in sorted order. Skips files that cannot be
    manifests.
    """
    seen: set[tuple[str, ...]] = set()
    for folder in _FOLDERS:
        base = root / folder
        for path in sorted(base.glob("*/*/*/*")):
            host, namespace, model, tag = path.relative_to(base).parts
            try:
                name = canonical(ModelName.parse(f"{host}/{namespace}/{model}:{tag}"))
            except ModelNameError:
                continue
            if name.key not in seen and not path.is_dir():
                seen.add(name.key)
                yield name, path
