# SPDX-License-Identifier: MIT
"""Go's text/template, as far as Ollama's TEMPLATEs use it.

    template = Template.parse("{{ range .Messages }}<{{ .Role }}>{{ .Content }}{{ end }}")
    text = template.render(Conversation(messages))

`lex` and `parse` read, `evaluate` runs within limits, `ollama` feeds a conversation in the way Ollama does.
Written from the rules of golang/go: src/text/template; complex numbers, methods and function values are
missing, because no template can get hold of one. Everything but the error loads on first use: few models need
the interpreter, and all of them need the error's name.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from .errors import TemplateError

if TYPE_CHECKING:
    from .evaluate import Limits
    from .ollama import Conversation, Template

_HOMES = {"Conversation": "ollama", "Limits": "evaluate", "Template": "ollama"}

__all__ = ["Conversation", "Limits", "Template", "TemplateError"]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
