# SPDX-License-Identifier: MIT
"""`StoredModel`: one model of a store, read only when asked.

Layers become what the rest of the program works with: paths of GGUF files, a `Modelfile` value, a config.
Nothing is written, except the folder of names that a split GGUF needs (see `shards`).
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cached_property
from pathlib import Path
from typing import Any

from eaglecpp.errors import UnsupportedError
from eaglecpp.references.names import ModelName
from eaglecpp.store.errors import StoreError
from eaglecpp.store.manifest import PRAGMAS, Config, Layer, Manifest

__all__ = ["BlobFinder", "StoredModel"]

_MAX_TEXT = 16 << 20
"""Bytes of a template, system prompt, license ...: more than any honest one has."""

BlobFinder = Callable[[Layer], Path]
"""The file of a layer, checked for its size; raises StoreError."""


@dataclass(frozen=True)
class StoredModel:
    """A model by name.

    path:     the manifest file
    root:     the store it is in
    own:      whether that is our own store; the others are only read
    made:     digests of settings that were written on this machine, by `create`
    """

    name: ModelName
    manifest: Manifest
    path: Path
    root: Path
    own: bool
    find_blob: BlobFinder = field(repr=False, compare=False)
    made: frozenset[str] = field(default=frozenset(), repr=False, compare=False)

    @property
    def keeper(self) -> str:
        """Whose it is: "" ours, else the program that changes and removes it."""
        return "" if self.own else "Ollama"

    @cached_property
    def digest(self) -> str:
        """64 hex digits that name this state of the model; `list` shows the first 12."""
        return hashlib.sha256(self.path.read_bytes()).hexdigest()

    @property
    def modified(self) -> datetime:
        """When the manifest was written."""
        return datetime.fromtimestamp(self.path.stat().st_mtime, UTC)

    @property
    def size(self) -> int:
        """Bytes of all its blobs."""
        return self.manifest.size

    @property
    def is_drafter(self) -> bool:
        """Whether it is a drafter kept by itself, without a target."""
        return not self.manifest.of_kind("model", "tensor") and bool(self.manifest.of_kind("draft"))

    @cached_property
    def config(self) -> Config:
        """What the model says of itself; empty when it says nothing."""
        layer = self.manifest.config
        return Config() if layer is None else Config.from_bytes(self._bytes(layer), f"{self.name}: config")

    def check_runnable(self) -> None:
        """Raises UnsupportedError for what is not a model on this machine or not a GGUF, with the reason."""
        config = self.config
        if config.text("remote_host") or config.text("remote_model"):
            raise UnsupportedError(f"{self.name}: runs on {config.text('remote_host') or 'another machine'}")
        if self.manifest.of_kind("tensor") or config.text("model_format") not in ("", "gguf"):
            raise UnsupportedError(
                f"{self.name}: this is an MLX model (safetensors); eaglecpp runs GGUF models. Pull a GGUF "
                "version from the Hub: eaglecpp pull hf.co/USER/REPO:QUANT"
            )
        if not self.manifest.of_kind("model"):
            what = "a drafter, not a model to run" if self.is_drafter else "without a model layer"
            raise UnsupportedError(f"{self.name}: {what}; run its target, with this one as --draft")

    def target_files(self) -> tuple[Path, ...]:
        """The GGUF of the target; the parts of a split one in order. Raises StoreError, UnsupportedError."""
        self.check_runnable()
        layers = self.manifest.of_kind("model")
        if len(layers) == 1:
            return (self.find_blob(layers[0]),)
        from eaglecpp.store.shards import split_view

        return split_view(self.root, self.name, layers, self.find_blob)

    def draft_file(self) -> Path | None:
        """The drafter's GGUF, of several the last; None without one. Raises StoreError."""
        layers = self.manifest.of_kind("draft")
        return self.find_blob(layers[-1]) if layers else None

    def files(self, kind: str) -> tuple[Path, ...]:
        """The files of a kind of layer, such as "adapter"."""
        return tuple(self.find_blob(layer) for layer in self.manifest.of_kind(kind))

    def texts(self, *kinds: str) -> tuple[str, ...]:
        """The texts of the layers of these kinds, in order. Raises StoreError."""
        layers = self.manifest.of_kind(*kinds)
        return tuple(self._bytes(layer).decode("utf-8", "replace") for layer in layers)

    def json(self, kind: str) -> Any:
        """The JSON value of the last layer of a kind; None without one. Raises StoreError."""
        layers = self.manifest.of_kind(kind)
        if not layers:
            return None
        try:
            return json.loads(self._bytes(layers[-1]))
        except (ValueError, RecursionError) as error:
            raise StoreError(f"{self.name}: {kind}: expected JSON: {error}") from None

    def made_here(self, kind: str) -> bool:
        """Whether all layers of a kind were written on this machine, not by whoever published the model."""
        return all(layer.digest in self.made for layer in self.manifest.of_kind(kind))

    @property
    def template_origin(self) -> str:
        """The model that the template was taken over from; "" when a Modelfile gave it, or there is none."""
        layers = self.manifest.of_kind("template", "prompt")
        return layers[-1].origin if layers else ""

    def pragmas(self) -> list[tuple[str, str]]:
        """The `#eaglecpp:` lines it was created with, as (name, value)."""
        value = self.json(PRAGMAS)
        pairs = value if isinstance(value, list) else []
        if not all(isinstance(p, list) and len(p) == 2 and all(isinstance(t, str) for t in p) for p in pairs):
            raise StoreError(f"{self.name}: pragmas: expected a list of [name, value], found {pairs!r:.80}")
        return [(name, text) for name, text in pairs]

    def _bytes(self, layer: Layer) -> bytes:
        if layer.size > _MAX_TEXT:
            raise StoreError(f"{self.name}: {layer.kind}: {layer.size} bytes; at most {_MAX_TEXT} are read")
        return self.find_blob(layer).read_bytes()
