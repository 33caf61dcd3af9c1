# SPDX-License-Identifier: MIT
"""What tests of stores share: types of their fixtures (tests/unit/store/conftest.py), a cache of the Hub."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from helpers.hub_server import digest_of

__all__ = ["OllamaModel", "Tiny", "put_into_cache", "rename_token"]

OllamaModel = Callable[..., Path]
"""`ollama("library/llama3.2/3b", {"model": data, ...})`: puts a model into an Ollama store made by hand."""


@dataclass(frozen=True)
class Tiny:
    """A tiny target, its drafter as GGUF and as checkpoint, and a target that it does not fit."""

    target: Path
    draft: Path
    checkpoint: Path
    other: Path


def put_into_cache(home: Path, repo: str, files: Mapping[str, bytes]) -> None:
    """As huggingface_hub and llama.cpp lay out their cache: names are links, relative to where they are."""
    folder = home / "cache" / f"models--{repo.replace('/', '--')}"
    snapshot = folder / "snapshots" / ("a" * 40)
    (folder / "blobs").mkdir(parents=True)
    (folder / "refs").mkdir()
    (folder / "refs" / "main").write_text("a" * 40)
    for name, data in files.items():
        blob = folder / "blobs" / digest_of(data).removeprefix("sha256:")
        blob.write_bytes(data)
        path = snapshot / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.symlink_to(os.path.relpath(blob, path.parent))


def rename_token(source: Path, out: Path, token: int) -> Path:
    """The target with another text for one token."""
    import gguf

    reader = gguf.GGUFReader(source)
    text = reader.fields["tokenizer.ggml.tokens"].contents()[token].encode()
    data = source.read_bytes()
    old = len(text).to_bytes(8, "little") + text
    new = len(text).to_bytes(8, "little") + b"#" * len(text)
    assert data.count(old) == 1
    out.write_bytes(data.replace(old, new))
    return out
