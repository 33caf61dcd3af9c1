# SPDX-License-Identifier: MIT
"""Chat templates of model families, from tests/templates."""

from __future__ import annotations

from functools import cache
from pathlib import Path

from eaglecpp.chat.formats import CallFormat, formats_of
from eaglecpp.chat.template import ChatTemplate

TEMPLATES = Path(__file__).parents[1] / "templates"


@cache
def family_template(name: str) -> ChatTemplate:
    """Returns a family's template, by the name of its file."""
    text = (TEMPLATES / f"{name}.jinja").read_text(encoding="utf-8")
    return ChatTemplate("jinja", text, "a test", bos_text="<s>", eos_text="</s>")


def call_formats(name: str) -> tuple[CallFormat, ...]:
    """Returns the formats in which a family's template prints tool calls."""
    takes = family_template(name).takes
    return formats_of("", takes.called, takes.said)
