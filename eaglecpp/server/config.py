# SPDX-License-Identifier: MIT
"""The configuration of a server, and the models that its operator lists in one file: `serve --models FILE`.

[coder]
path = "qwen-coder.gguf"    # relative to this file; without a path, the stored model "coder"
draft = "qwen-eagle.gguf"
context = 16384
pinned = true
"""

from __future__ import annotations

import ipaddress
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from eaglecpp.data_dir import expanded
from eaglecpp.errors import EagleError, InvalidValueError
from eaglecpp.human import n_seconds_of
from eaglecpp.opening.find import find_here
from eaglecpp.options.checked import Checked, declare
from eaglecpp.references import is_path_text
from eaglecpp.server.errors import FieldError

OLLAMA_VERSION = "0.33.0"
"""The version of Ollama that the server emulates. Clients compare versions, so this version consists of
digits and dots.
"""

_OF_ONE_MODEL = ("mmproj", "lora")


_File = Annotated[str, Meta(min_length=1)]


class Adapter(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """An adapter in a preset."""

    path: _File
    scale: Annotated[float, Meta(ge=-100, le=100)] = 1.0


class Preset(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The operator's settings for serving one model: one table in the file of `--models`.

    path:   the model's file; None for a stored model
    draft:  reference of the drafter, as in `find_here`; None = the model's own drafter
    pinned: load the model at startup and never unload it
    """

    path: _File | None = None
    draft: _File | None = None
    context: Annotated[int, Meta(ge=-1)] = 0
    pinned: bool = False
    mmproj: _File | None = None
    adapters: tuple[Adapter | _File, ...] = ()

    @property
    def engine(self) -> dict[str, Any]:
        """Engine options of this model, which override the server's options."""
        lora = [(one, 1.0) if isinstance(one, str) else (one.path, one.scale) for one in self.adapters]
        options = {"n_ctx": self.context, "mmproj": self.mmproj, "lora": tuple(lora)}
        return {name: value for name, value in options.items() if value}


@dataclass(frozen=True)
class ServerConfig(Checked):
    """The settings of a server. Settings with a flag are options of `eaglecpp serve`.

    n_held:      maximum bytes of the bodies of all unanswered requests together
    n_connections: maximum open connections; 0 = half of the files that this process may open, up to 2048
    head_s:      maximum seconds for receiving the head of a request
    body_s:      maximum seconds for receiving each megabyte of a request's body
    n_unread:    number of unread tokens after which an answer is cancelled, 0 = no limit
    n_response_bytes: maximum bytes of kept responses for each API key
    hosts:       accepted host names, in addition to this machine's. Other host names are refused, because a
        malicious site could let its own host name resolve to this machine (DNS rebinding)
    engine:      options of every model, by field name of `ModelOptions` and `DraftOptions`. Options that name
    a file apply only to `model`
    model:       the model of the command line, which also serves requests without a model name
    draft:       the drafter of the command line
    presets:     the operator's settings for single models, by the name under which a model is listed
    strategy:    default drafting strategy of requests; "" = each model's own strategy
    learn_idle_s: seconds without a request before drafters learn
    """

    host: str = declare(
        "127.0.0.1", "address to listen on; 0.0.0.0 = all networks of this machine", envvar="EAGLECPP_HOST"
    )
    port: int = declare(11434, "port; 0 = any", low=0, high=65535)
    n_parallel: int = declare(
        4,
        "conversations per model at a time; each has its own context",
        low=1,
        high=128,
        flags="-np --parallel",
    )
    n_queue: int = declare(
        512, "requests that may wait for each model", low=0, flags="--max-queue", limit="503"
    )
    n_body: int = declare(
        32_000_000, "maximum size of a request's body", kind="bytes", flags="--max-body", limit="413"
    )
    request_s: float = declare(
        0.0,
        "maximum time for one answer, including the queue.  [default: no limit]",
        kind="seconds",
        flags="--max-time",
        limit="`timeout` in the stream",
    )
    slot_time_s: float = declare(
        300.0,
        "maximum time that an answer may use its slot or model memory while others wait; 0 = no limit",
        kind="seconds",
        flags="--max-slot-time --max-place",
        limit="`timeout` in the stream",
    )
    unread_s: float = declare(
        30.0,
        "cancel an answer if its client reads nothing for this long; 0 = never",
        kind="seconds",
        flags="--max-unread",
        limit="the connection closes",
    )
    keep_alive_s: float = declare(
        300.0,
        "how long an unused model stays in memory; negative = forever",
        kind="seconds",
        flags="--keep-alive --keepalive",
    )
    n_bytes: int = declare(
        0,
        "memory for all models.  [default: 85 % of the free memory at startup]",
        kind="bytes",
        flags="--memory",
        limit="unused models are unloaded; if that is too little, 503",
    )
    host_cache_bytes: int = declare(
        1_000_000_000,
        "host memory per model for swapped-out conversations, up to an eighth of the free memory; 0 = none, "
        "so their prompts are computed again",
        kind="bytes",
        flags="--cache-ram",
        limit="the least recently used conversation is evicted",
    )
    n_models: int = declare(
        3,
        "models in memory at a time; the least recently used model is unloaded first",
        low=1,
        flags="--max-models",
        limit="unused models are unloaded; if that is too little, 503",
    )
    n_responses: int = declare(
        0,
        "responses kept in memory per API key (up to 64M), for previous_response_id",
        low=0,
        flags="--keep-responses",
        limit="the least recently used response is dropped",
    )
    keys: tuple[str, ...] = declare(
        (), "required API key (repeatable)", flags="--api-key", envvar="EAGLECPP_API_KEY", metavar="KEY"
    )
    no_key: bool = declare(False, "allow access without a key from every machine that can reach --host")
    origins: tuple[str, ...] = declare(
        (),
        "allow web pages of this origin to use the server (repeatable); * = all",
        flags="--allow-origin",
        metavar="ORIGIN",
    )
    hosts: tuple[str, ...] = declare(
        (), "allow requests to this host name too (repeatable)", flags="--allow-host", metavar="NAME"
    )
    registries: tuple[str, ...] = declare(
        (),
        "another registry that requests may pull from, even in your own network (repeatable)",
        flags="--allow-registry",
        metavar="HOST[:PORT]",
    )
    insecure: bool = declare(False, "allow requests to pull over http or with invalid certificates")
    n_held: int = 256 << 20
    n_connections: int = 0
    head_s: float = 20.0
    body_s: float = 30.0
    n_unread: int = 2048
    n_response_bytes: int = 64 << 20
    grace_s: float = 5.0
    engine: Mapping[str, Any] = field(default_factory=dict)
    model: str = ""
    draft: str | None = None
    presets: Mapping[str, Preset] = field(default_factory=dict)
    strategy: str = ""
    learn_idle_s: float = 300.0

    def engine_of(self, name: str) -> dict[str, Any]:
        """Returns the options for opening a model. name: the model's listed name"""
        own = {key: v for key, v in self.engine.items() if key not in _OF_ONE_MODEL or name == self.model}
        return {**own, **self.presets.get(name, Preset()).engine}

    @property
    def n_answers(self) -> int:
        """Number of answers that a model can run and queue at a time, which is also the maximum for one
        request.
        """
        return self.n_parallel + self.n_queue

    def draft_of(self, name: str) -> str | None:
        """Returns the drafter that the operator gives a model, or None for the model's own."""
        return self.presets[name].draft if name in self.presets else self.draft

    def is_pinned(self, name: str) -> bool:
        """Returns whether a model stays in memory even if a request asks to unload it."""
        return name in self.presets and self.presets[name].pinned

    @property
    def is_loopback(self) -> bool:
        """True if the text of the server's address shows that only this machine can reach it."""
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return self.host == "localhost"


def keep_alive(value: float | str | None) -> float | None:
    """Converts a request's `keep_alive` to seconds; < 0 = forever, None = unset. Raises ApiError."""
    if value is None or isinstance(value, int | float):
        return value
    try:
        return n_seconds_of(value)
    except InvalidValueError as error:
        raise FieldError("keep_alive", str(error)) from None


class PresetError(EagleError):
    """The file of `--models` is invalid."""


def read_presets(file: Path) -> dict[str, Preset]:
    """Returns the presets in a file of `--models`, by model name. Paths in the file are relative to the
    file's folder. Raises PresetError, which names the table and the expected value.
    """
    try:
        tables = tomllib.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise PresetError(f"{file}: {getattr(error, 'strerror', None) or error}") from None
    if not tables:
        raise PresetError(f'{file}: expected at least one model, such as [name] and path = "model.gguf"')
    presets: dict[str, Preset] = {}
    for name, table in tables.items():
        try:
            if not name.isprintable() or not name.strip():
                raise PresetError("expected a printable name")
            listed, preset = _preset(name, msgspec.convert(table, Preset), file.absolute().parent)
            if listed in presets:
                raise PresetError("this model is listed twice")
        except (EagleError, OSError, msgspec.ValidationError) as error:
            why = str(error).replace("`", "").replace(" | null", "").replace(" object", " a table")
            raise PresetError(f"{file}: [{name}]: {why}") from None
        presets[listed] = preset
    return presets


def means_path(name: str) -> bool:
    """Returns whether a model name from a client is meant as a path."""
    return is_path_text(name) or name.startswith((".", "/", "~")) or "\\" in name


def _preset(name: str, preset: Preset, folder: Path) -> tuple[str, Preset]:
    """Returns the name under which a model is listed, and its preset with absolute paths. A missing file is
    reported to the operator at startup, instead of to a client later.
    """
    if preset.path is None and means_path(name):
        raise PresetError("expected the name of a stored model; set path for a file")

    def file(key: str, text: str) -> str:
        path = folder / expanded(text)
        if not path.is_file():
            raise PresetError(f"{key}: expected a file, found none at {path}")
        return str(path)

    adapters = tuple(Adapter(file("adapters", path), scale) for path, scale in preset.engine.get("lora", ()))
    whole = {key: file(key, text) for key in ("mmproj", "path") if (text := getattr(preset, key)) is not None}
    if preset.draft is not None and (folder / expanded(preset.draft)).is_file():
        whole["draft"] = str(folder / expanded(preset.draft))
    preset = msgspec.structs.replace(preset, adapters=adapters, **whole)
    files = find_here(name if preset.path is None else preset.path, preset.draft)
    return name if preset.path is not None else files.reference, preset
