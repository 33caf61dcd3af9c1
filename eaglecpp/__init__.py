# SPDX-License-Identifier: MIT
"""EAGLE-3 and EAGLE 3.1 speculative decoding for GGUF models on llama.cpp: the same words, sooner.

    with eaglecpp.Engine.open("target.gguf", draft="draft.gguf") as engine:
        print(engine.generate("def main():", max_tokens=64).text)

Names load on first use: importing this package costs nothing and touches neither llama.cpp nor the extension.
The library raises and logs (`logging.getLogger("eaglecpp")`); it never prints.
"""

from __future__ import annotations

import importlib
from types import ModuleType
from typing import TYPE_CHECKING, Any

import eaglecpp.convert as _convert

if TYPE_CHECKING:
    from eaglecpp import errors as errors
    from eaglecpp.engine import Engine, Session, Stream
    from eaglecpp.errors import EagleError
    from eaglecpp.llama import Llama
    from eaglecpp.options import DraftOptions, ModelOptions, SamplingOptions, Strategy
    from eaglecpp.results import Chunk, Completion, Timings

    __version__: str

_HOMES = {
    "Chunk": "results",
    "Completion": "results",
    "DraftOptions": "options",
    "EagleError": "errors",
    "Engine": "engine",
    "Llama": "llama",
    "ModelOptions": "options",
    "SamplingOptions": "options",
    "Session": "engine",
    "Strategy": "options",
    "Stream": "engine",
    "Timings": "results",
}
_SUBMODULES = ("convert", "errors", "lowlevel", "modelfile")

__all__ = [
    "Chunk",
    "Completion",
    "DraftOptions",
    "EagleError",
    "Engine",
    "Llama",
    "ModelOptions",
    "SamplingOptions",
    "Session",
    "Strategy",
    "Stream",
    "Timings",
    "__version__",
    "errors",
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


class _Convert(ModuleType):
    """The package `eaglecpp.convert`, which can be called, too: `eaglecpp.opening.checkpoint.convert`."""

    def __call__(self, *arguments: Any, **options: Any) -> Any:
        from eaglecpp.opening.checkpoint import convert

        return convert(*arguments, **options)


_convert.__class__ = _Convert


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__, *_SUBMODULES})
