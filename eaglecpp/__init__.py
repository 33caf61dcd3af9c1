# SPDX-License-Identifier: MIT
"""EAGLE speculative decoding for GGUF models on llama.cpp: the same text, faster.

    with eaglecpp.Engine.open("target.gguf", draft="draft.gguf") as engine:
        print(engine.generate("def main():", max_tokens=64).text)

    eaglecpp.pull("hf.co/owner/model-GGUF:Q4_K_M", draft="auto")
    eaglecpp.convert_checkpoint("hf.co/owner/drafter", "target.gguf", "draft.gguf")

Names load on first use, so importing this package is cheap and loads neither llama.cpp nor the extension. The
library raises errors and logs to `logging.getLogger("eaglecpp")`. The library never prints; only `pull` and
`convert_checkpoint` show progress bars on a terminal or in a notebook.
"""

from __future__ import annotations

import importlib

# The module `typing` is not imported, because Ctrl+C during this import (10 ms) would print a traceback.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from eaglecpp import convert as convert
    from eaglecpp import errors as errors
    from eaglecpp import lowlevel as lowlevel
    from eaglecpp import modelfile as modelfile
    from eaglecpp.chat.message import Message as Message
    from eaglecpp.chat.message import ToolCall as ToolCall
    from eaglecpp.conversations.session import ChatSession as ChatSession
    from eaglecpp.engine.async_engine import AsyncEngine as AsyncEngine
    from eaglecpp.engine.async_stream import AsyncStream as AsyncStream
    from eaglecpp.engine.engine import Engine as Engine
    from eaglecpp.engine.session import Session as Session
    from eaglecpp.engine.stream import Stream as Stream
    from eaglecpp.errors import EagleError as EagleError
    from eaglecpp.llama import Llama as Llama
    from eaglecpp.options import DraftOptions as DraftOptions
    from eaglecpp.options import ModelOptions as ModelOptions
    from eaglecpp.options import SamplingOptions as SamplingOptions
    from eaglecpp.options import Strategy as Strategy
    from eaglecpp.readings import convert_checkpoint as convert_checkpoint
    from eaglecpp.results import Chunk as Chunk
    from eaglecpp.results import Completion as Completion
    from eaglecpp.results import Embedding as Embedding
    from eaglecpp.results import Timings as Timings
    from eaglecpp.store.remote.pull import pull as pull

    __version__: str

_HOMES = {
    "chat.message": ("Message", "ToolCall"),
    "conversations.session": ("ChatSession",),
    "engine.async_engine": ("AsyncEngine",),
    "engine.async_stream": ("AsyncStream",),
    "engine.engine": ("Engine",),
    "engine.session": ("Session",),
    "engine.stream": ("Stream",),
    "errors": ("EagleError",),
    "llama": ("Llama",),
    "options": ("DraftOptions", "ModelOptions", "SamplingOptions", "Strategy"),
    "readings": ("convert_checkpoint",),
    "results": ("Chunk", "Completion", "Embedding", "Timings"),
    "store.remote.pull": ("pull",),
}
_PUBLIC = {name: home for home, names in _HOMES.items() for name in names}
_SUBMODULES = ("convert", "errors", "lowlevel", "modelfile")


def __getattr__(name: str) -> Any:
    if name == "__version__":
        from importlib.metadata import version

        return version("eaglecpp")
    if name in _SUBMODULES:
        return importlib.import_module(f"eaglecpp.{name}")
    if name in _PUBLIC:
        value = getattr(importlib.import_module(f"eaglecpp.{_PUBLIC[name]}"), name)
        globals()[name] = value
        return value
    raise AttributeError(f"module 'eaglecpp' has no attribute {name!r}")


def __dir__() -> list[str]:
    own = {name for name in globals() if name.startswith("__")}
    return sorted({*own, *_PUBLIC, *_SUBMODULES, "__version__"})
