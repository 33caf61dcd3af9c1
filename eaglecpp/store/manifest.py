# SPDX-License-Identifier: MIT
"""Manifests and config blobs: bytes to values and back, byte for byte as Ollama writes them.

Checked on the way in, because a manifest may come from a server: every digest is a digest and every size a
size. No file is opened here. Source of the format: ollama/ollama: manifest/manifest.go,
types/model/config.go.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from eaglecpp.store.errors import StoreError
from eaglecpp.store.layout import is_digest, is_file_name

__all__ = ["CONFIG", "IMAGE", "MANIFEST", "MAX_JSON", "PRAGMAS", "Config", "Layer", "Manifest"]

MANIFEST = "application/vnd.docker.distribution.manifest.v2+json"
CONFIG = "application/vnd.docker.container.image.v1+json"
IMAGE = "application/vnd.ollama.image."
"""Ollama's media types are this and a word: model, draft, template ..."""
PRAGMAS = "application/vnd.eaglecpp.image.pragmas"
"""The `#eaglecpp:` lines of a Modelfile, as a JSON list of [name, value]; Ollama passes over it."""
MAX_JSON = 16 << 20
"""Bytes of a manifest or config: more than any honest one has."""
_LIST = "application/vnd.ollama.manifest.list.v2+json"
_RUNNERS = ("ollama", "llamacpp", "")  # of a manifest list, in Ollama's order of preference; never mlx


@dataclass(frozen=True)
class Layer:
    """One blob of a model.

    origin: the name of the model it was taken over from ("from" in the file)
    name:   what it is called among its kind; of a "model" the file name of a part of a split GGUF, which
            becomes a file, so nothing but a bare file name is taken (Ollama names MLX's tensors by path)
    """

    media_type: str
    digest: str
    size: int
    origin: str = ""
    name: str = ""

    def __post_init__(self) -> None:
        if self.kind == "model" and self.name and not is_file_name(self.name):
            raise StoreError(f"name: expected the bare name of a file, found {self.name!r}")

    @property
    def kind(self) -> str:
        """ "model", "draft", "template", ...; the whole media type when it is none of Ollama's."""
        return self.media_type.removeprefix(IMAGE)

    def to_json(self) -> dict[str, Any]:
        """As it stands in a manifest."""
        entry: dict[str, Any] = {"mediaType": self.media_type, "digest": self.digest, "size": self.size}
        if self.origin:
            entry["from"] = self.origin
        if self.name:
            entry["name"] = self.name
        return entry


@dataclass(frozen=True)
class Manifest:
    """The blobs of one model. config: None in manifests that have none."""

    layers: tuple[Layer, ...]
    config: Layer | None = None

    @property
    def blobs(self) -> tuple[Layer, ...]:
        """Every blob, the config last."""
        return self.layers if self.config is None else (*self.layers, self.config)

    @property
    def size(self) -> int:
        """Bytes of all blobs, each counted once."""
        return sum({layer.digest: layer.size for layer in self.blobs}.values())

    def of_kind(self, *kinds: str) -> tuple[Layer, ...]:
        """The layers of these kinds, in the manifest's order."""
        return tuple(layer for layer in self.layers if layer.kind in kinds)

    def to_bytes(self) -> bytes:
        """The file's content: compact JSON with the keys in Ollama's order, and a newline."""
        value = {
            "schemaVersion": 2,
            "mediaType": MANIFEST,
            "config": None if self.config is None else self.config.to_json(),
            "layers": [layer.to_json() for layer in self.layers],
        }
        return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode() + b"\n"

    @classmethod
    def from_bytes(cls, data: bytes, where: str, read_blob: Callable[[str], bytes] | None = None) -> Manifest:
        """Reads a manifest; of a list of manifests the one that llama.cpp can run.

        where:     its name, for messages. read_blob: content by digest, for lists that refer to blobs.
        Raises StoreError.
        """
        value = _object(data, where)
        if value.get("mediaType") == _LIST:
            value = _chosen(value, where, read_blob)
        layers = value.get("layers")
        if not isinstance(layers, list):
            raise StoreError(f"{where}: layers: expected a list, found {type(layers).__name__}")
        config = value.get("config")
        has_config = isinstance(config, Mapping) and config.get("digest")
        return cls(
            tuple(_layer(entry, f"{where}: layers[{i}]") for i, entry in enumerate(layers)),
            _layer(config, f"{where}: config") if has_config else None,
        )


@dataclass(frozen=True)
class Config:
    """The config blob: what a model says of itself. Keys that are not known are kept."""

    values: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def from_bytes(cls, data: bytes, where: str) -> Config:
        """Raises StoreError for anything but a JSON object."""
        return cls(_object(data, where))

    def to_bytes(self) -> bytes:
        """Compact JSON."""
        return json.dumps(dict(self.values), ensure_ascii=False, separators=(",", ":")).encode()

    def text(self, key: str) -> str:
        """A value that is a text, else ""."""
        value = self.values.get(key)
        return value if isinstance(value, str) else ""

    def number(self, key: str) -> int | None:
        """A value that is a whole number, else None."""
        value = self.values.get(key)
        return value if isinstance(value, int) and not isinstance(value, bool) else None

    @property
    def draft_architecture(self) -> str:
        """Architecture of the drafter, "" when the model has none or does not say."""
        draft = self.values.get("draft")
        value = draft.get("architecture") if isinstance(draft, Mapping) else None
        return value if isinstance(value, str) else ""


def _object(data: bytes, where: str) -> Mapping[str, Any]:
    if len(data) > MAX_JSON:
        raise StoreError(f"{where}: {len(data)} bytes; at most {MAX_JSON} are read")
    try:
        value = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise StoreError(f"{where}: expected JSON: {error}") from None
    if not isinstance(value, Mapping):
        raise StoreError(f"{where}: expected a JSON object, found {type(value).__name__}")
    return value


def _layer(entry: Any, where: str) -> Layer:
    if not isinstance(entry, Mapping):
        raise StoreError(f"{where}: expected an object, found {type(entry).__name__}")
    digest, size = entry.get("digest"), entry.get("size")
    if not is_digest(digest):
        raise StoreError(f"{where}: digest: expected sha256: and 64 hex digits, found {digest!r}")
    if not isinstance(size, int) or isinstance(size, bool) or size < 0:
        raise StoreError(f"{where}: size: expected a number of bytes, found {size!r}")
    texts = [entry.get(key, "") for key in ("mediaType", "from", "name")]
    if not all(isinstance(text, str) for text in texts):
        raise StoreError(f"{where}: mediaType, from, name: expected texts, found {texts!r}")
    try:
        return Layer(texts[0], str(digest).lower().replace("-", ":"), size, texts[1], texts[2])
    except StoreError as error:
        raise StoreError(f"{where}: {error}") from None


def _chosen(
    value: Mapping[str, Any], where: str, read_blob: Callable[[str], bytes] | None
) -> Mapping[str, Any]:
    """The entry of a manifest list that llama.cpp can run."""
    entries = [entry for entry in value.get("manifests") or [] if isinstance(entry, Mapping)]
    for runner in _RUNNERS:
        for entry in entries:
            if str(entry.get("runner") or "").lower() != runner:
                continue
            if "layers" in entry:
                return entry
            if is_digest(entry.get("digest")) and read_blob is not None:
                return _object(read_blob(str(entry["digest"])), f"{where}: {entry['digest']}")
    runners = ", ".join(str(entry.get("runner")) for entry in entries) or "none"
    raise StoreError(f"{where}: no variant for llama.cpp; the variants are for: {runners}")
