# SPDX-License-Identifier: MIT
"""Writes eaglecpp/options/typed.pyi, the options as keyword-argument types, from the declarations in
eaglecpp/options/declared.py: python docs/generate_options.py
"""

from __future__ import annotations

from pathlib import Path

from eaglecpp.options import DraftOptions, ModelOptions, Option, SamplingOptions, describe

PAGE = Path(__file__).parents[1] / "eaglecpp" / "options" / "typed.pyi"
HEAD = '''# SPDX-License-Identifier: MIT
"""The options as keyword-argument types, for editors and type checkers only.

Written by docs/generate_options.py from `declared`; a test compares the two.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, TypedDict

from eaglecpp.chat.template import ChatTemplate
from eaglecpp.options.declared import SamplingOptions
from eaglecpp.options.strategy import Strategy
'''
TAIL = '''
class OpenKeywords(ModelKeywords, DraftKeywords, SamplingKeywords, total=False):
    """Keyword arguments of `Engine.open(...)`; sampling options are defaults for each generation."""

class GenerateKeywords(SamplingKeywords, total=False):
    """Keyword arguments of `Session.stream`, which documents them."""

    suffix: str | None
    cache_prompt: bool
    sampling: SamplingOptions | None
    strategy: str | Strategy | None
    exact: str | None
    json_schema: str | Mapping[str, Any] | None
    response_format: Mapping[str, Any] | None
    on_prefill: Callable[[int, int], None] | None
    stop_when: Callable[[list[int]], bool] | None
    utf8_errors: str
    log_plan: bool

class ChatKeywords(GenerateKeywords, total=False):
    """Keyword arguments of `Session.chat`, which documents them."""

    template: str | ChatTemplate | None
    tools: Sequence[Mapping[str, Any]]
    think: bool | str | None
'''


def source() -> str:
    """Returns the text of the module."""
    classes = (
        ("ModelKeywords", "Options for loading the target.", ModelOptions),
        ("DraftKeywords", "Where the drafter runs, and the limits of drafting.", DraftOptions),
        ("SamplingKeywords", "One generation: when it stops and how tokens are chosen.", SamplingOptions),
    )
    parts = [HEAD]
    for name, text, cls in classes:
        fields = "".join(f"    {option.name}: {annotation(option)}\n" for option in describe(cls))
        parts.append(f'\nclass {name}(TypedDict, total=False):\n    """{text}"""\n\n{fields}')
    return "".join([*parts, TAIL])


def annotation(option: Option) -> str:
    """Returns the type of an option's values."""
    if option.name == "grammar":  # a grammar is GBNF text or llama_cpp's object
        return "Any"
    if option.choices:
        choices = ", ".join(f'"{choice}"' for choice in option.choices)
        return f"Literal[{choices}]"
    if option.kind == "strings":
        return "str | Sequence[str]"
    if option.kind == "numbers":
        return "str | Sequence[float]"
    if option.kind == "pairs":
        key = "str" if option.name == "lora" else "int"
        return f"Mapping[{key}, float] | Sequence[tuple[{key}, float]]"
    assert isinstance(option.kind, type)
    return option.kind.__name__ + (" | None" if option.default is None else "")


if __name__ == "__main__":
    PAGE.write_text(source(), encoding="utf-8")
