# SPDX-License-Identifier: MIT
"""`StoredModel`: one model of a store, read lazily.

It turns layers into the types that the rest of the program uses: paths of GGUF files, a `Modelfile`, a
config. It only writes the folder of links that a split GGUF needs (see `VIEWS`).
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from eaglecpp.chat.message import Message
from eaglecpp.convert import keys
from eaglecpp.errors import UnsupportedError
from eaglecpp.files import link, make_folder
from eaglecpp.modelfile.model import Modelfile, built_in
from eaglecpp.modelfile.parameters import DEPRECATED, ParameterError, ParameterValue, from_json
from eaglecpp.modelfile.pragmas import is_known, without_untrusted
from eaglecpp.modelfile.syntax import Command, Notice
from eaglecpp.references import ModelName, in_order
from eaglecpp.store.errors import StoreError
from eaglecpp.store.layout import child
from eaglecpp.store.manifest import MAX_JSON, PRAGMAS, Layer, Manifest, decoded

VIEWS = "views"
"""Folders of links to the parts of split GGUFs, each folder named by the digest of the first part. llama.cpp
finds all parts by the file name of one part (`x-00001-of-00003.gguf`), which blobs do not have.
"""
_TO_ALLOW = "To allow it, set it on the command line or in your own Modelfile"
_T = TypeVar("_T")


class _StoredMessage(msgspec.Struct):
    role: str
    content: str


@dataclass(frozen=True)
class StoredModel:
    """One model of a store.

    root:      folder of the store
    owner:     "" for our store, else the program that manages the store; other stores are read-only
    find_blob: function that returns the file of a layer, after checking its size; raises StoreError
    data:      the manifest's bytes
    mtime:     modification time of the manifest in seconds
    made_up:   the model's config, if no blob holds it
    notices:   notices of `create` and `pull`, which the caller shows to the user
    """

    name: ModelName
    manifest: Manifest
    root: Path
    owner: str
    find_blob: Callable[[Layer], Path] = field(repr=False, compare=False)
    data: bytes = field(repr=False, compare=False)
    mtime: float = field(repr=False, compare=False)
    made_up: Mapping[str, Any] | None = field(default=None, repr=False, compare=False)
    notices: tuple[Notice, ...] = field(default=(), repr=False, compare=False)

    @property
    def short_name(self) -> str:
        """The name that a user would type."""
        return str(self.name).removesuffix(":latest")

    @property
    def own(self) -> bool:
        """True if the model is in our own store."""
        return not self.owner

    @cached_property
    def digest(self) -> str:
        """SHA-256 of the manifest in hex, which identifies this state of the model. `list` shows the first 12
        digits.
        """
        return hashlib.sha256(self.data).hexdigest()

    @property
    def modified(self) -> datetime:
        """Modification time of the manifest."""
        return datetime.fromtimestamp(self.mtime, UTC)

    @property
    def size(self) -> int:
        """Bytes of the model's blobs, excluding the model's drafter. If the model is itself a drafter, bytes
        of all blobs.
        """
        return self.manifest.n_bytes("" if self.is_drafter else "draft")

    @property
    def is_drafter(self) -> bool:
        """True for a drafter stored without a target."""
        return not self.manifest.of_kind("model", "tensor") and bool(self.manifest.of_kind("draft"))

    @cached_property
    def config(self) -> Mapping[str, Any]:
        """The model's config, or an empty config for a model without a config."""
        if self.made_up is not None:
            return self.made_up
        layer = self.manifest.config
        return {} if layer is None else self._decoded(layer, "config", dict[str, Any])

    def text(self, key: str) -> str:
        """Returns the text under a key of the config, or "" if the config has no text under this key."""
        value = self.config.get(key)
        return value if isinstance(value, str) else ""

    @property
    def draft_kind(self) -> str:
        """The drafter's kind. If the config does not state the kind (as in Ollama's configs, and in ours
        before 28 November 2026), this is the drafter's architecture, with DFlash for every block drafter. ""
        if the model has no drafter, or if the config states neither kind nor architecture.
        """
        draft = self.config.get("draft")
        value = draft.get("kind", draft.get("architecture")) if isinstance(draft, Mapping) else None
        return "DFlash" if value in keys.BLOCKS else value if isinstance(value, str) else ""

    def check_runnable(self) -> None:
        """Raises UnsupportedError for a model that runs remotely or is not a GGUF."""
        if self.text("remote_host") or self.text("remote_model"):
            raise UnsupportedError(f"{self.name} runs on {self.text('remote_host') or 'another machine'}")
        if self.manifest.of_kind("tensor") or self.text("model_format") not in ("", "gguf"):
            how = "pull a GGUF from the Hub: eaglecpp pull hf.co/USER/REPO:QUANT"
            raise UnsupportedError(f"{self.name}: this is an MLX model (safetensors); {how}")
        if not self.manifest.of_kind("model"):
            what = "is a drafter, not a model to run" if self.is_drafter else "has no model layer"
            raise UnsupportedError(f"{self.name} {what}; run its target with --draft {self.name}")

    def target_files(self) -> tuple[Path, ...]:
        """Returns the paths of the target's GGUF, or of the parts of a split GGUF in order. Raises
        StoreError, UnsupportedError.
        """
        self.check_runnable()
        layers = self.manifest.of_kind("model")
        return (self.find_blob(layers[0]),) if len(layers) == 1 else self._split_view(layers)

    def draft_file(self) -> Path | None:
        """Returns the drafter's GGUF (the last layer, if there are several), or None. Raises StoreError."""
        return next(reversed(self.files("draft")), None)

    def files(self, kind: str) -> tuple[Path, ...]:
        """Returns the files of the layers of this kind, such as "adapter"."""
        return tuple(self.find_blob(layer) for layer in self.manifest.of_kind(kind))

    def texts(self, *kinds: str) -> tuple[str, ...]:
        """Returns the texts of the layers of these kinds, in order. Raises StoreError."""
        layers = self.manifest.of_kind(*kinds)
        return tuple(self._bytes(layer, layer.kind).decode("utf-8", "replace") for layer in layers)

    def json(self, kind: str, type: type[_T], default: _T) -> _T:
        """Returns the JSON value of the last layer of this kind. Raises StoreError."""
        layers = self.manifest.of_kind(kind)
        return self._decoded(layers[-1], kind.rpartition(".")[2], type) if layers else default

    @property
    def is_local(self) -> bool:
        """True if this machine's user wrote the model's settings, instead of the model's publisher (see
        `Manifest`).
        """
        return self.own and self.manifest.is_local

    @property
    def template_origin(self) -> str:
        """Name of the model from which the template was taken. "" if the template is from a Modelfile, or if
        there is no template.
        """
        layers = self.manifest.of_kind("template", "prompt")
        return layers[-1].origin if layers else ""

    def pragmas(self) -> list[tuple[str, str]]:
        """Returns the `#eaglecpp:` lines of the Modelfile that created the model, as (name, value)."""
        return self.json(PRAGMAS, list[tuple[str, str]], [])

    def modelfile(self) -> Modelfile:
        """Returns the Modelfile that would recreate this model, with the paths of its blobs. Settings that an
        untrusted model may not change are left out, unless this machine's user created the model. Unknown
        settings, such as a parameter of a newer Ollama, become notices instead of errors, because a stored
        model must stay usable.

        Raises StoreError.
        """
        parameters, notices = self._parameters()
        pragmas = tuple(Command(name, value, file=str(self.name)) for name, value in self.pragmas())
        if not self.is_local:
            parameters, pragmas, left_out = without_untrusted(parameters, pragmas)
            notices += [f"{self.name} was not made here: {text}. {_TO_ALLOW}" for text in left_out]
        notices += [f"{self.name}: unknown pragma {p.name}; ignored" for p in pragmas if not is_known(p.name)]
        texts: dict[str, Any] = {word: self.text(word) or None for word in ("renderer", "parser", "requires")}
        formats = [(word, name) for word, name in texts.items() if name and word != "requires"]
        notices += [f"{self.name}: {built_in(*item)}" for item in formats]
        targets = self.target_files()[:1] if self.manifest.of_kind("model") else ()
        turns = self.json("messages", list[_StoredMessage], [])
        return Modelfile(
            from_=_commands("model", (*targets, *self.files("projector"))),
            draft=_commands("draft", self.files("draft")[-1:]),
            adapters=_commands("adapter", self.files("adapter")),
            template=next(reversed(self.texts("template", "prompt")), None),
            system=next(reversed(self.texts("system")), None),
            messages=tuple(Message(turn.role, turn.content) for turn in turns),
            parameters=parameters,
            license=self.texts("license"),
            pragmas=tuple(p for p in pragmas if is_known(p.name)),
            notices=tuple(map(Notice, notices)),
            **texts,
        )

    def _parameters(self) -> tuple[dict[str, ParameterValue], list[str]]:
        parameters: dict[str, ParameterValue] = {}
        notices = []
        for name, value in self.json("params", dict[str, Any], {}).items():
            if value is None or name in DEPRECATED:
                continue
            try:
                parameters[name] = from_json(name, value)
            except ParameterError as error:
                notices.append(f"{self.name}: {error}; ignored")
        return parameters, notices

    def _split_view(self, layers: Sequence[Layer]) -> tuple[Path, ...]:
        """Returns paths by which llama.cpp can open the parts of a split GGUF, first part first."""
        by_name = {layer.name: layer for layer in layers}
        try:
            names = in_order(by_name)
        except ValueError:
            found = ", ".join(layer.name or layer.digest[:19] for layer in layers)
            raise StoreError(f"{self.name}: expected the parts of one split GGUF, found {found}") from None
        folder = child(self.root / VIEWS, by_name[names[0]].digest[-64:])
        paths = tuple(child(folder, name) for name in names)
        try:
            make_folder(folder)
            for name, path in zip(names, paths, strict=True):
                blob = self.find_blob(by_name[name])
                if not (path.exists() and path.samefile(blob)):
                    temporary = path.with_name(f".{name}.{os.getpid()}")
                    temporary.unlink(missing_ok=True)
                    link(blob, temporary)
                    temporary.replace(path)
        except OSError as error:
            why = f"{error.strerror}; the store must be writable when the model is first opened"
            raise StoreError(f"{self.name}: split GGUF: cannot link in {folder}: {why}") from error
        return paths

    def _decoded(self, layer: Layer, what: str, type: type[_T]) -> _T:
        return decoded(self._bytes(layer, what), f"{self.name}: {what}", type)

    def _bytes(self, layer: Layer, what: str) -> bytes:
        if layer.size > MAX_JSON:  # valid templates, prompts and licenses are much smaller
            raise StoreError(f"{self.name}: {what}: expected at most {MAX_JSON} bytes, found {layer.size}")
        return self.find_blob(layer).read_bytes()


def _commands(name: str, paths: tuple[Path, ...]) -> tuple[Command, ...]:
    return tuple(Command(name, str(path)) for path in paths)
