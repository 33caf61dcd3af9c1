# SPDX-License-Identifier: MIT
"""The engine: a loaded target with its drafter (`engine`), conversations (`session`), running generations,
and what they need. Raises and logs, never prints.

Names load on first use: `grammar` is also used without llama.cpp.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from eaglecpp.engine.async_engine import AsyncEngine
    from eaglecpp.engine.async_stream import AsyncStream
    from eaglecpp.engine.engine import Engine
    from eaglecpp.engine.loading import CancelFlag
    from eaglecpp.engine.session import Session
    from eaglecpp.engine.stream import Stream

_HOMES = {
    "AsyncEngine": "async_engine",
    "AsyncStream": "async_stream",
    "CancelFlag": "loading",
    "Engine": "engine",
    "Session": "session",
    "Stream": "stream",
}
__all__ = ["AsyncEngine", "AsyncStream", "CancelFlag", "Engine", "Session", "Stream"]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
    globals()[name] = value
    return value
