# SPDX-License-Identifier: MIT
"""Which files a `FROM`, `ADAPTER` or `DRAFT` path means: Ollama's search, unchanged.

A path is taken as it is, against the home directory, or against the directory of the Modelfile. A directory
stands for the first kind of weights found in it. Only names and the first 512 bytes of files are looked at.
Source of the rules: ollama/ollama: parser/parser.go.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from eaglecpp.references.reference import FileSearchError, expand_path

__all__ = ["FileSearchError", "expand_path", "model_files", "same_path"]

_CONTROL_BYTES = frozenset([*range(0x09), 0x0B, *range(0x0E, 0x1B), *range(0x1C, 0x20)])


def same_path(first: Path, second: Path) -> bool:
    """Whether two existing paths are one file or directory once symlinks are followed."""
    return os.path.realpath(first) == os.path.realpath(second)


def model_files(path: Path) -> list[Path]:
    """The files that a path stands for, symlinks followed; `path` itself when it is a file.

    Raises FileNotFoundError when there is nothing there, FileSearchError when there is nothing usable.
    """
    if not path.is_dir():
        if not path.exists():
            raise FileNotFoundError(f"stat {path}: no such file or directory")
        return [path]
    root = Path(os.path.realpath(path))
    files = []
    for found in _search(path):
        real = Path(os.path.realpath(found))
        if not real.is_relative_to(root):
            raise FileSearchError(f"insecure path: {os.path.relpath(real, root)}")
        files.append(path / real.relative_to(root))
    return files


def _search(path: Path) -> list[Path]:
    weights = _weights(path)
    if not weights:
        raise FileSearchError("no Modelfile or safetensors files found")
    extra = [*_glob(path, "*.json"), *_glob(path, "*/*.json"), *_glob(path, "chat_template.jinja")]
    for file in extra:
        if _is_binary(file):
            raise FileSearchError(f"invalid content type: expected text for {file}")
    tokenizers = [file for file in _glob(path, "tokenizer.model") if _is_binary(file)]
    return [*weights, *extra, *tokenizers]


def _weights(path: Path) -> list[Path]:
    """The first kind of weights that is there. One file of the wrong content rules its whole kind out."""
    safetensors = _glob(path, "model*.safetensors")
    if safetensors:
        return [*safetensors, *_glob(path, "*/model*.safetensors")]
    kinds: tuple[tuple[str, Callable[[Path], bool] | None], ...] = (
        ("consolidated*.safetensors", None),
        ("pytorch_model*.bin", _is_zip),
        ("consolidated*.pth", _is_zip),
        ("*.gguf", _is_binary),
        ("*.bin", _is_binary),
    )
    for pattern, check in kinds:
        found = _glob(path, pattern)
        if found and (check is None or all(check(file) for file in found)):
            return found
    return []


def _glob(path: Path, pattern: str) -> list[Path]:
    return sorted(found for found in path.glob(pattern) if found.is_file())


def _head(file: Path) -> bytes:
    with file.open("rb") as stream:
        return stream.read(512)


def _is_zip(file: Path) -> bool:
    return _head(file).startswith(b"PK\x03\x04")


def _is_binary(file: Path) -> bool:
    """Whether the first bytes are not text; a Git LFS pointer is text, the file it stands for is not."""
    head = _head(file)
    if head.startswith((b"\xfe\xff", b"\xff\xfe", b"\xef\xbb\xbf")):
        return False
    return any(byte in _CONTROL_BYTES for byte in head)
