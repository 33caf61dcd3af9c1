# SPDX-License-Identifier: MIT
"""Where stores are, and which file of a store is which: Ollama's layout, names to paths and back.

    <root>/manifests/<host>/<namespace>/<model>/<tag>     one manifest
    <root>/blobs/sha256-<64 hex>                          content
    <root>/blobs/sha256-<64 hex>-partial                  content that is still being downloaded

Looks at names of files only. Sources: ollama/ollama: manifest/paths.go (also for `manifests-v2`, which newer
releases write), types/model/name.go.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path

from eaglecpp.data_dir import data_dir
from eaglecpp.references.names import ModelName, ModelNameError, canonical
from eaglecpp.store.errors import StoreError

__all__ = [
    "blob_path",
    "child",
    "default_root",
    "find_manifest",
    "is_digest",
    "is_file_name",
    "manifest_path",
    "manifests",
    "ollama_roots",
    "partial_path",
]

_DIGEST = re.compile(r"sha256[:-]([0-9a-fA-F]{64})")
_OLLAMA_V2_HOSTS = {"registry.ollama.ai": "ollama.com"}
_FOLDERS = ("manifests-v2", "manifests")
_NO_NAME = re.compile(r'[\x00-\x1f\x7f<>:"/\\|?*]|[. ]$')
_RESERVED = re.compile(
    r"(?:con|prn|aux|nul|com[0-9¹²³]|lpt[0-9¹²³]|conin\$|conout\$)(?: *\..*)?", re.IGNORECASE
)
_MAX_NAME_BYTES = 200  # file systems take 255; temporary names add to it


def default_root() -> Path:
    """The folder of our own store: `EAGLECPP_MODELS`, or the platform's place for data of programs."""
    override = os.environ.get("EAGLECPP_MODELS")
    return Path(override).expanduser() if override else data_dir() / "models"


def ollama_roots() -> list[Path]:
    """Places where Ollama keeps models, whether they exist or not; the first one with a name wins."""
    given = os.environ.get("OLLAMA_MODELS")
    places = [Path(given).expanduser()] if given else []
    places.append(Path.home() / ".ollama" / "models")
    if os.name == "posix":
        places += [Path("/usr/share/ollama/.ollama/models"), Path("/var/lib/ollama/.ollama/models")]
    return list(dict.fromkeys(places))


def is_file_name(text: object) -> bool:
    """Whether the text is the name of a file and nothing else, on every system: no separator, drive letter,
    stream, reserved or hidden name. What names of strangers have to be before they touch a disk.
    """
    if (
        not isinstance(text, str)
        or not text
        or text.startswith(".")
        or len(text.encode(errors="replace")) > _MAX_NAME_BYTES
    ):
        return False
    return _NO_NAME.search(text) is None and _RESERVED.fullmatch(text) is None


def child(folder: Path, name: str) -> Path:
    """The file of that name in a folder, never anywhere else. Raises StoreError unless it is a bare name."""
    if not is_file_name(name):
        raise StoreError(f"{name!r}: expected the bare name of a file (no folders, drives, reserved names)")
    return folder / name


def is_digest(text: object) -> bool:
    """Whether the text is `sha256:` (or `sha256-`) and 64 hex digits."""
    return isinstance(text, str) and _DIGEST.fullmatch(text) is not None


def blob_path(root: Path, digest: str) -> Path:
    """Where the content of a digest is. Raises StoreError for a text that is not a digest."""
    match = _DIGEST.fullmatch(digest)
    if match is None:
        raise StoreError(f"{digest!r} is not a digest: expected sha256: and 64 hex digits")
    return root / "blobs" / f"sha256-{match[1].lower()}"


def partial_path(root: Path, digest: str) -> Path:
    """Where the content of a digest grows while it is downloaded; Ollama skips files of this name too."""
    path = blob_path(root, digest)
    return path.with_name(path.name + "-partial")


def manifest_path(root: Path, name: ModelName) -> Path:
    """Where our own store writes the manifest of a name."""
    return root.joinpath("manifests", *canonical(name).parts)


def find_manifest(root: Path, name: ModelName) -> Path | None:
    """The manifest of a name, upper and lower case not told apart; None when there is none."""
    name = canonical(name)
    v2_host = _OLLAMA_V2_HOSTS.get(name.host.lower())
    hosts = [name.host] if v2_host is None else [name.host, v2_host]
    for folder in _FOLDERS:
        for host in hosts:
            found = _descend(root / folder, (host, *name.parts[1:]))
            if found is not None:
                return found
    return None


def manifests(root: Path) -> Iterator[tuple[ModelName, Path]]:
    """Every name in a store with its manifest, sorted; files that cannot be manifests are passed over."""
    seen: set[tuple[str, ...]] = set()
    for folder in _FOLDERS:
        base = root / folder
        for path in sorted(base.glob("*/*/*/*")):
            host, namespace, model, tag = path.relative_to(base).parts
            try:
                name = canonical(ModelName.parse(f"{host}/{namespace}/{model}:{tag}"))
            except ModelNameError:
                continue
            key = tuple(part.lower() for part in name.parts)
            if key not in seen and not path.is_dir():
                seen.add(key)
                yield name, path


def _descend(path: Path, parts: tuple[str, ...]) -> Path | None:
    for part in parts:
        exact = path / part
        if os.path.lexists(exact):
            path = exact
            continue
        try:
            same = sorted(entry for entry in path.iterdir() if entry.name.lower() == part.lower())
        except (FileNotFoundError, NotADirectoryError):
            return None
        if not same:
            return None
        path = same[0]
    return None if path.is_dir() else path
