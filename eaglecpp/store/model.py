# SPDX-License-Identifier: MIT
"""`StoredModel`: one model of a store, read only when asked.

Layers become what the rest of the program works with: paths of GGUF files, a `Modelfile`, a config.
Nothing is written, except the folder of names that a split GGUF needs (see `VIEWS`).
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
"""Folders, each named by the digest of a split GGUF's first part, in which its parts have their names:
llama.cpp finds the others by the name of one (`x-00001-of-00003.gguf`), which blobs do not have.
"""
_TO_ALLOW = "to allow it, give it on the command line or in your own Modelfile"
_T = TypeVar("_T")


class _Turn(msgspec.Struct):
    role: str
    content: str


@dataclass(frozen=True)
class StoredModel:
    """A model by name.

    path:      the manifest file
    root:      the store it is in
    owner:     whose that is: "" ours, else the program that changes and removes it; that one is only read
    find_blob: the file of a layer, checked for its size; raises StoreError
    data:      the manifest's bytes
    mtime:     when it was written, in seconds
    made_up:   the config, where no blob holds it
    """

    name: ModelName
    manifest: Manifest
    path: Path
    root: Path
    owner: str
    find_blob: Callable[[Layer], Path] = field(repr=False, compare=False)
    data: bytes = field(repr=False, compare=False)
    mtime: float = field(repr=False, compare=False)
    made_up: Mapping[str, Any] | None = field(default=None, repr=False, compare=False)

    @property
    def short_name(self) -> str:
        """As a user would call it."""
        return str(self.name).removesuffix(":latest")

    @property
    def own(self) -> bool:
        """Whether it is in our own store."""
        return not self.owner

    @cached_property
    def digest(self) -> str:
        """64 hex digits that name this state of the model; `list` shows the first 12."""
        return hashlib.sha256(self.data).hexdigest()

    @property
    def modified(self) -> datetime:
        """When the manifest was written."""
        return datetime.fromtimestamp(self.mtime, UTC)

    @property
    def size(self) -> int:
        """Bytes of its blobs without its drafter's; of a drafter kept by itself, of all."""
        return self.manifest.n_bytes("" if self.is_drafter else "draft")

    @property
    def is_drafter(self) -> bool:
        """Whether it is a drafter kept by itself, without a target."""
        return not self.manifest.of_kind("model", "tensor") and bool(self.manifest.of_kind("draft"))

    @cached_property
    def config(self) -> Mapping[str, Any]:
        """What the model says of itself; empty when it says nothing."""
        if self.made_up is not None:
            return self.made_up
        layer = self.manifest.config
        return {} if layer is None else self._decoded(layer, "config", dict[str, Any])

    def text(self, key: str) -> str:
        """A value of the config that is a text, else ""."""
        value = self.config.get(key)
        return value if isinstance(value, str) else ""

    @property
    def draft_kind(self) -> str:
        """The drafter's kind or, where the config has none (Ollama's, and ours of before 28 November 2026),
        its architecture, of block drafters DFlash; "" when the model has no drafter or does not say.
        """
        draft = self.config.get("draft")
        value = draft.get("kind", draft.get("architecture")) if isinstance(draft, Mapping) else None
        return "DFlash" if value in keys.BLOCKS else value if isinstance(value, str) else ""

    def check_runnable(self) -> None:
        """Raises UnsupportedError for what is not a model on this machine or not a GGUF, with the reason."""
        if self.text("remote_host") or self.text("remote_model"):
            raise UnsupportedError(f"{self.name}: runs on {self.text('remote_host') or 'another machine'}")
        if self.manifest.of_kind("tensor") or self.text("model_format") not in ("", "gguf"):
            how = "pull a GGUF from the Hub: eaglecpp pull hf.co/USER/REPO:QUANT"
            raise UnsupportedError(f"{self.name}: this is an MLX model (safetensors); {how}")
        if not self.manifest.of_kind("model"):
            what = "a drafter, not a model to run" if self.is_drafter else "without a model layer"
            raise UnsupportedError(f"{self.name}: {what}; run its target, with this one as --draft")

    def target_files(self) -> tuple[Path, ...]:
        """The GGUF of the target; the parts of a split one in order. Raises StoreError, UnsupportedError."""
        self.check_runnable()
        layers = self.manifest.of_kind("model")
        return (self.find_blob(layers[0]),) if len(layers) == 1 else self._split_view(layers)

    def draft_file(self) -> Path | None:
        """The drafter's GGUF, of several the last; None without one. Raises StoreError."""
        return next(reversed(self.files("draft")), None)

    def files(self, kind: str) -> tuple[Path, ...]:
        """The files of a kind of layer, such as "adapter"."""
        return tuple(self.find_blob(layer) for layer in self.manifest.of_kind(kind))

    def texts(self, *kinds: str) -> tuple[str, ...]:
        """The texts of the layers of these kinds, in order. Raises StoreError."""
        layers = self.manifest.of_kind(*kinds)
        return tuple(self._bytes(layer, layer.kind).decode("utf-8", "replace") for layer in layers)

    def json(self, kind: str, type: type[_T], default: _T) -> _T:
        """The JSON value of the last layer of a kind. Raises StoreError."""
        layers = self.manifest.of_kind(kind)
        return self._decoded(layers[-1], kind.rpartition(".")[2], type) if layers else default

    @property
    def made_here(self) -> bool:
        """Whether this machine's user wrote its settings, not whoever published it: see `Manifest`."""
        return self.own and self.manifest.made_here

    @property
    def template_origin(self) -> str:
        """The model that the template was taken over from; "" when a Modelfile gave it, or there is none."""
        layers = self.manifest.of_kind("template", "prompt")
        return layers[-1].origin if layers else ""

    def pragmas(self) -> list[tuple[str, str]]:
        """The `#eaglecpp:` lines it was created with, as (name, value)."""
        return self.json(PRAGMAS, list[tuple[str, str]], [])

    def modelfile(self) -> Modelfile:
        """The Modelfile that would make this model again, with the paths of its blobs; of a model that was
        not made here, without what an untrusted one may not decide. What this version does not know (a
        parameter of a newer Ollama) becomes a notice, never an error: a stored model must stay usable.

        Raises StoreError.
        """
        parameters, notices = self._parameters()
        pragmas = tuple(Command(name, value, file=str(self.name)) for name, value in self.pragmas())
        if not self.made_here:
            parameters, pragmas, left_out = without_untrusted(parameters, pragmas)
            notices += [f"{self.name} was not made here, ignored: {text}; {_TO_ALLOW}" for text in left_out]
        notices += [f"{self.name}: unknown pragma {p.name}; ignored" for p in pragmas if not is_known(p.name)]
        texts: dict[str, Any] = {word: self.text(word) or None for word in ("renderer", "parser", "requires")}
        built = [(word, name) for word, name in texts.items() if name and word != "requires"]
        notices += [f"{self.name}: {built_in(*one)}" for one in built]
        targets = self.target_files()[:1] if self.manifest.of_kind("model") else ()
        turns = self.json("messages", list[_Turn], [])
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
        """Paths at which llama.cpp can open the parts of a split GGUF, first part first."""
        by_name = {layer.name: layer for layer in layers}
        try:
            names = in_order(by_name)
        except ValueError:
            found = ", ".join(layer.name or layer.digest[:19] for layer in layers)
            raise StoreError(f"{self.name}: model layers that are not a split GGUF: {found}") from None
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
            why = f"{error.strerror}; the store must be writable once"
            raise StoreError(f"{self.name}: split GGUF: cannot link in {folder}: {why}") from error
        return paths

    def _decoded(self, layer: Layer, what: str, type: type[_T]) -> _T:
        return decoded(self._bytes(layer, what), f"{self.name}: {what}", type)

    def _bytes(self, layer: Layer, what: str) -> bytes:
        if layer.size > MAX_JSON:  # more than any honest template, prompt or license has
            raise StoreError(f"{self.name}: {what}: {layer.size} bytes; at most {MAX_JSON} are read")
        return self.find_blob(layer).read_bytes()


def _commands(name: str, paths: tuple[Path, ...]) -> tuple[Command, ...]:
    return tuple(Command(name, str(path)) for path in paths)


@dataclass(frozen=True)
class Made:
    """What `create` or `pull` made.

    notices: what whoever asked for it should know
    """

    model: StoredModel
    notices: tuple[Notice, ...] = ()
