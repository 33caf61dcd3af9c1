# SPDX-License-Identifier: MIT
"""Reads and writes manifests and config blobs, byte for byte as Ollama writes them.

Manifests may come from a server, so every digest and size is validated when read. No file is opened here.
Source of the format: ollama/ollama: manifest/manifest.go, types/model/config.go.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, TypeVar

import msgspec

from eaglecpp.store.errors import StoreError
from eaglecpp.store.layout import is_digest, is_file_name

MANIFEST = "application/vnd.docker.distribution.manifest.v2+json"
CONFIG = "application/vnd.docker.container.image.v1+json"
IMAGE = "application/vnd.ollama.image."
"""Prefix of Ollama's media types; a word follows: model, draft, template ..."""
PRAGMAS = "application/vnd.eaglecpp.image.pragmas"
"""Media type of a Modelfile's `#eaglecpp:` lines, as a JSON list of [name, value]. Ollama ignores such
layers.
"""
MAX_JSON = 16 << 20
"""Maximum size of a manifest or config in bytes. Valid manifests and configs are far smaller."""
_DECIDED_HERE, _SETTINGS = "decidedHere", "settings"
_LIST = "application/vnd.ollama.manifest.list.v2+json"
# accepted runners of a manifest list, in Ollama's order; mlx is not accepted
_RUNNERS = ("ollama", "llamacpp", "")
_NAMES = {"media_type": "mediaType", "origin": "from"}
_T = TypeVar("_T")


class _LayerError(StoreError, ValueError):
    """A layer has an invalid value."""


class Layer(msgspec.Struct, frozen=True, omit_defaults=True, rename=_NAMES):
    """One blob of a model.

    origin: name of the model that the layer was taken from ("from" in the file)
    name:   name among the layers of its kind. In a "model" layer, this is the file name of a part of a split
    GGUF, so only a bare file name is accepted (Ollama names MLX's tensors by path)
    """

    media_type: str
    digest: str
    size: Annotated[int, msgspec.Meta(ge=0)]
    origin: str = ""
    name: str = ""

    def __post_init__(self) -> None:
        if not is_digest(self.digest):
            raise _LayerError(f"digest: expected sha256: and 64 hex digits, found {self.digest!r}")
        if self.kind == "model" and self.name and not is_file_name(self.name):
            raise _LayerError(f"name: expected a bare file name, found {self.name!r}")
        msgspec.structs.force_setattr(self, "digest", self.digest.lower().replace("-", ":"))

    @property
    def kind(self) -> str:
        """ "model", "draft", "template", ...; the whole media type if it is not Ollama's."""
        return self.media_type.removeprefix(IMAGE)


@dataclass(frozen=True)
class Manifest:
    """The blobs of one model.

    config:   layer of the config, None in manifests without a config
    is_local: True if this machine's user wrote the settings (`create`). The flag is stored in the manifest,
              so that it changes together with the settings. A manifest from a registry never has the flag
    """

    layers: tuple[Layer, ...]
    config: Layer | None = None
    is_local: bool = False

    @property
    def blobs(self) -> tuple[Layer, ...]:
        """Every blob of the model. The config comes last."""
        return self.layers if self.config is None else (*self.layers, self.config)

    def n_bytes(self, without: str) -> int:
        """Returns the bytes of all blobs except one kind of layer. Layers with the same content count
        once.
        """
        return sum({layer.digest: layer.size for layer in self.blobs if layer.kind != without}.values())

    def of_kind(self, *kinds: str) -> tuple[Layer, ...]:
        """Returns the layers of these kinds, in the manifest's order."""
        return tuple(layer for layer in self.layers if layer.kind in kinds)

    def to_bytes(self) -> bytes:
        """Returns the content of the manifest's file: compact JSON with the keys in Ollama's order, and a
        newline.
        """
        value: dict[str, Any] = {"schemaVersion": 2, "mediaType": MANIFEST, "config": self.config}
        value |= {"layers": self.layers}
        value |= {_DECIDED_HERE: [_SETTINGS]} if self.is_local else {}
        return msgspec.json.encode(value) + b"\n"

    @classmethod
    def from_bytes(cls, data: bytes, where: str, read_blob: Callable[[str], bytes] | None = None) -> Manifest:
        """Reads a manifest. From a list of manifests, reads the manifest whose model llama.cpp can run.

        where: name of the manifest, for messages. read_blob: function that returns a blob by digest, for
        lists that refer to blobs. Raises StoreError.
        """
        value: Mapping[str, Any] = decoded(data, where, dict[str, Any])
        decided = value.get(_DECIDED_HERE)
        is_local = isinstance(decided, list) and _SETTINGS in decided
        if value.get("mediaType") == _LIST:
            value = _chosen(value, where, read_blob)
        config = value.get("config")
        has_config = isinstance(config, Mapping) and config.get("digest")
        try:
            layers = msgspec.convert(value.get("layers"), tuple[Layer, ...])
            return cls(layers, msgspec.convert(config, Layer) if has_config else None, is_local)
        except msgspec.ValidationError as error:
            raise StoreError(f"{where}: layers and config: {error}") from None


def decoded(data: bytes, where: str, type: type[_T]) -> _T:
    """Decodes JSON as a value of this type. Raises StoreError."""
    if len(data) > MAX_JSON:
        raise StoreError(f"{where}: expected at most {MAX_JSON} bytes, found {len(data)}")
    try:
        return msgspec.json.decode(data, type=type)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise StoreError(f"{where}: expected JSON: {error}") from None


def _chosen(
    value: Mapping[str, Any], where: str, read_blob: Callable[[str], bytes] | None
) -> Mapping[str, Any]:
    """Returns the entry of a manifest list whose model llama.cpp can run."""
    listed = value.get("manifests")
    valid = [entry for entry in listed if isinstance(entry, Mapping)] if isinstance(listed, list) else []
    entries = {str(entry.get("runner") or "").lower(): entry for entry in reversed(valid)}
    for entry in (entries[runner] for runner in _RUNNERS if runner in entries):
        if "layers" in entry:
            return entry
        if is_digest(entry.get("digest")) and read_blob is not None:
            return decoded(read_blob(str(entry["digest"])), f"{where}: {entry['digest']}", dict[str, Any])
    runners = ", ".join(entries) or "none"
    raise StoreError(f"{where}: no variant for llama.cpp; the model has variants for: {runners}")
