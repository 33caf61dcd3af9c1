# SPDX-License-Identifier: MIT
"""The configuration of a server."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

__all__ = ["OLLAMA_VERSION", "ServerConfig"]

OLLAMA_VERSION = "0.33.0"
"""The version of Ollama whose API this is. Clients compare it; it must be digits and dots."""

_OF_ONE_MODEL = ("mmproj", "lora")


@dataclass(frozen=True)
class ServerConfig:
    """n_parallel: conversations of one model at a time; n_queue: requests that may wait for each model
    n_body:      bytes of a request's body, uploads of blobs aside
    request_s:   the longest that one answer may take, queue included; 0 = no limit
    place_s:     how long an answer may take while others wait for its place, 0 = to its end
    unread_s:    how long a client may take nothing of what was sent before its answer ends; 0 = for ever
    n_unread:    rounds of an answer that may wait until the client has read those before, 0 = any number
    keep_alive_s: how long an unused model stays loaded; < 0 = for ever
    n_bytes:     memory that loaded models may take; 0 = what is free when the server starts, less a part
    n_park_bytes: memory beside that for each model's conversations that wait to go on
    n_models:    models loaded at a time
    keys:        API keys of which a request must carry one; () = none is asked for
    origins:     origins allowed besides those of this machine; ("*",) = all
    hosts:       names by which the server is reached, checked on a loopback address against DNS rebinding
    engine:      options of every model that is loaded, by field name of `ModelOptions` and `DraftOptions`;
                 files that fit one model alone are for `model`
    model:       the one named on the command line, which requests mean that name none
    draft:       its drafter, if it is a file
    strategy:    for all requests that say nothing, "" = each model's own
    learn_idle_s: without a request before drafters learn, where `engine` or a model says that they do
    """

    host: str = "127.0.0.1"
    port: int = 11434
    n_parallel: int = 4
    n_queue: int = 512
    n_body: int = 32 << 20
    request_s: float = 0.0
    place_s: float = 300.0
    unread_s: float = 30.0
    n_unread: int = 1024
    keep_alive_s: float = 300.0
    n_bytes: int = 0
    n_park_bytes: int = 1 << 30
    n_models: int = 3
    grace_s: float = 5.0
    keys: tuple[str, ...] = ()
    origins: tuple[str, ...] = ()
    hosts: tuple[str, ...] = ()
    engine: Mapping[str, Any] = field(default_factory=dict)
    model: str = ""
    draft: str | None = None
    strategy: str = ""
    insecure: bool = False
    learn_idle_s: float = 300.0

    def engine_of(self, name: str) -> dict[str, Any]:
        """The options of a model. name: in the one spelling that lists have"""
        return {key: v for key, v in self.engine.items() if key not in _OF_ONE_MODEL or name == self.model}

    @property
    def is_loopback(self) -> bool:
        """Whether only this machine can reach it."""
        return self.host in ("localhost", "::1") or self.host.startswith("127.")
