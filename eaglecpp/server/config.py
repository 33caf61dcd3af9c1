# SPDX-License-Identifier: MIT
"""The configuration of a server, and the models that its operator lists in one file: `serve --models FILE`.

[coder]
path = "qwen-coder.gguf"    # beside this file; without it, the stored model of that name
draft = "qwen-eagle.gguf"
context = 16384
pinned = true
"""

from __future__ import annotations

import ipaddress
import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from eaglecpp.data_dir import expanded
from eaglecpp.errors import EagleError
from eaglecpp.opening.find import find_here
from eaglecpp.references.reference import is_path_text
from eaglecpp.server.errors import FieldError

OLLAMA_VERSION = "0.33.0"
"""The version of Ollama whose API this is. Clients compare it; it must be digits and dots."""

_OF_ONE_MODEL = ("mmproj", "lora")
_DURATION_CHARS = 100
_NUMBER = "[0-9]+[.]?[0-9]*|[.][0-9]+"
_DURATION = re.compile(f"([+-]?)(?:({_NUMBER})|((?:(?:{_NUMBER})(?:ns|us|µs|ms|s|m|h))+))")
_PART = re.compile(f"({_NUMBER})(ns|us|µs|ms|s|m|h)")
_UNITS = {"ns": 1e-9, "us": 1e-6, "µs": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0}


@dataclass(frozen=True)
class Preset:
    """A model as the operator wants it served.

    path:   its file; None for a stored model
    draft:  its drafter, as `find_here` takes one; None = the model's own
    pinned: it is loaded at the start, and stays
    engine: options over those of the server
    """

    path: Path | None = None
    draft: str | None = None
    pinned: bool = False
    engine: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class ServerConfig:
    """n_parallel: conversations of one model at a time; n_queue: requests that may wait for each model
    n_body:      bytes of a request's body
    n_held:      bytes of bodies that all requests together hold until they are answered
    n_connections: at a time; 0 = what this system lets a process open, and leaves for models and downloads
    head_s:      how long a client may take to send the head of a request
    body_s:      how long for each further megabyte of its body
    request_s:   the longest that one answer may take, queue included; 0 = no limit
    place_s:     how long an answer may take while others wait for its place, 0 = to its end
    unread_s:    how long a client may take nothing of what was sent before its answer ends; 0 = for ever
    n_unread:    rounds of an answer that may wait until the client has read those before, 0 = any number
    keep_alive_s: how long an unused model stays loaded; < 0 = for ever
    n_bytes:     memory that loaded models may take; 0 = what is free when the server starts, less a part
    n_park_bytes: memory beside that for each model's conversations that wait to go on
    n_models:    models loaded at a time
    n_responses: that are kept for each key, so that requests may continue them; 0 = none
    n_response_bytes: of these, for each key
    keys:        API keys of which a request must carry one; () = none is asked for
    origins:     origins allowed besides those of this machine; ("*",) = all
    hosts:       names by which the server is reached, besides addresses and localhost; others are refused,
                 since a page elsewhere could give one of its own to this machine (DNS rebinding)
    registries:  servers (HOST or HOST:PORT) that requests may name for a download, besides the known ones
    engine:      options of every model that is loaded, by field name of `ModelOptions` and `DraftOptions`;
                 files that fit one model alone are for `model`
    model:       the one named on the command line, which requests mean that name none
    draft:       its drafter, if it is a file
    presets:     models by the name that lists have, which are served as these say
    strategy:    for all requests that say nothing, "" = each model's own
    learn_idle_s: without a request before drafters learn, where `engine` or a model says that they do
    """

    host: str = "127.0.0.1"
    port: int = 11434
    n_parallel: int = 4
    n_queue: int = 512
    n_body: int = 32 << 20
    n_held: int = 256 << 20
    n_connections: int = 0
    head_s: float = 20.0
    body_s: float = 30.0
    request_s: float = 0.0
    place_s: float = 300.0
    unread_s: float = 30.0
    n_unread: int = 1024
    keep_alive_s: float = 300.0
    n_bytes: int = 0
    n_park_bytes: int = 1 << 30
    n_models: int = 3
    n_responses: int = 0
    n_response_bytes: int = 64 << 20
    grace_s: float = 5.0
    keys: tuple[str, ...] = ()
    origins: tuple[str, ...] = ()
    hosts: tuple[str, ...] = ()
    registries: tuple[str, ...] = ()
    engine: Mapping[str, Any] = field(default_factory=dict)
    model: str = ""
    draft: str | None = None
    presets: Mapping[str, Preset] = field(default_factory=dict)
    strategy: str = ""
    insecure: bool = False
    learn_idle_s: float = 300.0

    def engine_of(self, name: str) -> dict[str, Any]:
        """The options of a model. name: in the one spelling that lists have"""
        own = {key: v for key, v in self.engine.items() if key not in _OF_ONE_MODEL or name == self.model}
        return {**own, **self.presets.get(name, Preset()).engine}

    @property
    def n_answers(self) -> int:
        """Answers that a model gives and queues at a time: the maximum of one request."""
        return self.n_parallel + self.n_queue

    def draft_of(self, name: str) -> str | None:
        """The drafter that the command line names for a model, in place of its own."""
        return self.presets[name].draft if name in self.presets else self.draft

    def is_pinned(self, name: str) -> bool:
        """Whether a model stays in memory, whatever requests say."""
        return name in self.presets and self.presets[name].pinned

    @property
    def is_loopback(self) -> bool:
        """Whether only this machine can reach it, as far as the address tells."""
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return self.host == "localhost"


def keep_alive(value: float | str | None) -> float | None:
    """Seconds; < 0 = for ever; None where nothing was said. Raises ApiError."""
    if value is None or isinstance(value, int | float):
        return value
    found = _DURATION.fullmatch(value.strip()) if len(value) <= _DURATION_CHARS else None
    if found is None:
        raise FieldError("keep_alive", f"expected seconds, or a duration such as 10m, found {value[:80]!r}")
    sign, seconds, parts = found.groups()
    length = float(seconds) if seconds else sum(float(n) * _UNITS[u] for n, u in _PART.findall(parts))
    return -length if sign == "-" else length


_File = Annotated[str, Meta(min_length=1)]


class PresetError(EagleError):
    """The file of `--models` does not say what to serve."""


class _Adapter(msgspec.Struct, forbid_unknown_fields=True):
    path: _File
    scale: Annotated[float, Meta(ge=-100, le=100)] = 1.0


class _Table(msgspec.Struct, forbid_unknown_fields=True):
    path: _File | None = None
    draft: _File | None = None
    context: Annotated[int, Meta(ge=-1)] = 0
    pinned: bool = False
    mmproj: _File | None = None
    adapters: list[_Adapter | _File] = []


def read_presets(file: Path) -> dict[str, Preset]:
    """The models that a file lists, by name. Paths are relative to its folder. Raises PresetError with the
    place and what was expected.
    """
    try:
        tables = tomllib.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise PresetError(f"{file}: {error}") from None
    if not tables:
        raise PresetError(f'{file}: expected at least one model, such as [name] and path = "model.gguf"')
    found: dict[str, Preset] = {}
    for name, table in tables.items():
        try:
            if not name.isprintable() or not name.strip():
                raise PresetError("expected a name that can be read")
            listed, preset = _preset(name, msgspec.convert(table, _Table), file.absolute().parent)
            if listed in found:
                raise PresetError("this model is listed twice")
        except (EagleError, OSError, msgspec.ValidationError) as error:
            why = str(error).replace("`", "").replace(" | null", "").replace(" object", " a table")
            raise PresetError(f"{file}: [{name}]: {why}") from None
        found[listed] = preset
    return found


def means_path(name: str) -> bool:
    """Whether a request's model is meant as a path."""
    return is_path_text(name) or name.startswith((".", "/", "~")) or "\\" in name


def _preset(name: str, table: _Table, folder: Path) -> tuple[str, Preset]:
    """One model, and its name as lists have it. Its files are looked for now: an operator wants to know
    before a client does.
    """
    if table.path is None and means_path(name):
        raise PresetError("expected the name of a stored model; a file is given as path")
    draft = table.draft
    if draft is not None and (folder / expanded(draft)).is_file():
        draft = str(folder / expanded(draft))
    adapters = [_Adapter(one) if isinstance(one, str) else one for one in table.adapters]
    engine: dict[str, Any] = {}
    if table.context:
        engine["n_ctx"] = table.context
    if table.mmproj is not None:
        engine["mmproj"] = str(_file("mmproj", table.mmproj, folder))
    if adapters:
        engine["lora"] = tuple((str(_file("adapters", one.path, folder)), one.scale) for one in adapters)
    path = None if table.path is None else _file("path", table.path, folder)
    found = find_here(name if path is None else path, draft)
    listed = name if path is not None else found.model.reference
    return listed, Preset(path, draft, table.pinned, engine)


def _file(key: str, text: str, folder: Path) -> Path:
    path = folder / expanded(text)
    if not path.is_file():
        raise PresetError(f"{key}: expected a file, found none at {path}")
    return path
