# SPDX-License-Identifier: MIT
"""EAGLE speculative decoding for GGUF models on llama.cpp: the same text, faster.

    with eaglecpp.Engine.open("target.gguf", draft="draft.gguf") as engine:
        print(engine.generate("def main():", max_tokens=64).text)

    eaglecpp.pull("hf.co/owner/model-GGUF:Q4_K_M", draft="auto")
    eaglecpp.convert_checkpoint("hf.co/owner/drafter", "target.gguf", "draft.gguf")

Names load on first use: importing this package is cheap and loads neither llama.cpp nor the extension.
The library raises and logs (`logging.getLogger("eaglecpp")`); it never prints.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from eaglecpp import convert as convert
    from eaglecpp import errors as errors
    from eaglecpp import lowlevel as lowlevel
    from eaglecpp import modelfile as modelfile
    from eaglecpp.chat.message import Message, ToolCall
    from eaglecpp.conversations.session import ChatSession
    from eaglecpp.engine.async_engine import AsyncEngine
    from eaglecpp.engine.async_stream import AsyncStream
    from eaglecpp.engine.engine import Engine
    from eaglecpp.engine.loading import CancelFlag
    from eaglecpp.engine.session import Session
    from eaglecpp.engine.stream import Stream
    from eaglecpp.errors import EagleError
    from eaglecpp.llama import Llama
    from eaglecpp.options import DraftOptions, ModelOptions, SamplingOptions, Strategy
    from eaglecpp.readings import convert_checkpoint
    from eaglecpp.results import Chunk, Completion, Embedding, Timings
    from eaglecpp.store.remote.pull import pull

    __version__: str

_HOMES = {
    "AsyncEngine": "engine.async_engine",
    "AsyncStream": "engine.async_stream",
    "CancelFlag": "engine.loading",
    "ChatSession": "conversations.session",
    "Chunk": "results",
    "Completion": "results",
    "DraftOptions": "options",
    "EagleError": "errors",
    "Embedding": "results",
    "Engine": "engine.engine",
    "Llama": "llama",
    "Message": "chat.message",
    "ModelOptions": "options",
    "SamplingOptions": "options",
    "Session": "engine.session",
    "Strategy": "options",
    "Stream": "engine.stream",
    "Timings": "results",
    "ToolCall": "chat.message",
    "convert_checkpoint": "readings",
    "pull": "store.remote.pull",
}
_SUBMODULES = ("convert", "errors", "lowlevel", "modelfile")

__all__ = [
    "AsyncEngine",
    "AsyncStream",
    "CancelFlag",
    "ChatSession",
    "Chunk",
    "Completion",
    "DraftOptions",
    "EagleError",
    "Embedding",
    "Engine",
    "Llama",
    "Message",
    "ModelOptions",
    "SamplingOptions",
    "Session",
    "Strategy",
    "Stream",
    "Timings",
    "ToolCall",
    "__version__",
    "convert_checkpoint",
    "errors",
    "pull",
]


def __getattr__(name: str) -> Any:
    if name == "__version__":
        from importlib.metadata import version

        return version("eaglecpp")
    if name in _SUBMODULES:
        return importlib.import_module(f"eaglecpp.{name}")
    if name in _HOMES:
        value = getattr(importlib.import_module(f"eaglecpp.{_HOMES[name]}"), name)
        globals()[name] = value
        return value
    raise AttributeError(f"module 'eaglecpp' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__, *_SUBMODULES})
