# SPDX-License-Identifier: MIT
"""Helpers for tests of stores: types for the fixtures of tests/unit/store/conftest.py, and functions that
write models into stores and a Hub cache.
"""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from eaglecpp.modelfile import Modelfile, ModelName
from eaglecpp.store import StoredModel, Stores
from eaglecpp.store.create import create_model
from helpers.gguf_writer import key_of
from helpers.hub_server import CONFIG, Layers, digest_of, manifest_of, pairs_of
from helpers.tiny_split import rewrite

OllamaModel = Callable[..., Path]
"""`ollama("library/llama3.2/3b", {"model": data, ...})`: writes a model into an Ollama store."""


@dataclass(frozen=True)
class Tiny:
    """A tiny target, its drafter as GGUF and as checkpoint, and a target that does not fit this drafter."""

    target: Path
    draft: Path
    checkpoint: Path
    other: Path


def make_model(stores: Stores, text: str, name: str = "m", **options: Any) -> StoredModel:
    """Creates the model of a Modelfile in a store, and returns the model."""
    modelfile = Modelfile.from_text(text)
    return create_model(stores, ModelName.parse(name), modelfile, Path.cwd(), **options)


def without_links(monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes hard links fail, as on a file system without them or across two file systems."""

    def refuse(source: object, destination: object, **options: object) -> None:
        raise OSError(errno.EXDEV, "Invalid cross-device link")

    monkeypatch.setattr(os, "link", refuse)


def files_of(tiny: Tiny) -> dict[str, bytes]:
    """Returns the files of the drafter's checkpoint by name, as in a repository."""
    return {path.name: path.read_bytes() for path in tiny.checkpoint.iterdir() if path.is_file()}


def put_into_ollama(store: Path, name: str, layers: Layers, config: bytes = CONFIG) -> Path:
    """Writes a model into an Ollama store, and returns the path of the model's manifest."""
    for data in (config, *(data for _, data in pairs_of(layers))):
        blob = store / "blobs" / digest_of(data).replace(":", "-")
        blob.parent.mkdir(parents=True, exist_ok=True)
        blob.write_bytes(data)
    manifest = store / "manifests" / "registry.ollama.ai" / name
    manifest.parent.mkdir(parents=True, exist_ok=True)
    manifest.write_text(json.dumps(manifest_of(layers, config)), encoding="utf-8")
    return manifest


def put_into_cache(home: Path, repo: str, files: Mapping[str, bytes]) -> None:
    """Writes a repository into a cache that is laid out like huggingface_hub's, in which file names are
    relative links.
    """
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
    """Writes a copy of the tiny target in which one token has another text."""
    texts = key_of(source, "tokenizer.ggml.tokens")
    texts[token] = "#" * len(texts[token])
    return rewrite(source, out, changed={"tokenizer.ggml.tokens": texts})
