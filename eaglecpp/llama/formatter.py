# SPDX-License-Identifier: MIT
"""llama_cpp's chat formatter with our bounded templates, and ggml's names of tensor types, which llama_cpp
gives as numbers.
"""

from __future__ import annotations

from typing import Any

import llama_cpp
from llama_cpp import llama_chat_format

from eaglecpp.chat.gotemplate.errors import TemplateError
from eaglecpp.chat.jinja import JinjaTemplate

__all__ = ["Formatter", "type_name", "type_number"]


class Formatter:
    """llama_cpp's `Jinja2ChatFormatter`, with a template that cannot run away (see `chat.jinja_bounds`)."""

    def __init__(self, template: str, bos_text: str, eos_text: str, eos: int) -> None:
        self._template = JinjaTemplate(template)
        self._texts = {"bos_token": bos_text, "eos_token": eos_text}
        self._eos = eos

    def __call__(self, *, messages: Any, **variables: Any) -> Any:
        try:
            prompt = self._template.render(
                {"messages": messages, "add_generation_prompt": True, **self._texts, **variables}
            )
        except TemplateError as error:
            raise ValueError(str(error)) from error
        stop_at_eos = llama_cpp.StoppingCriteriaList([lambda tokens, logits: bool(tokens[-1] == self._eos)])
        return llama_chat_format.ChatFormatterResponse(
            prompt=prompt, stop=[self._texts["eos_token"]], stopping_criteria=stop_at_eos, added_special=True
        )


def type_number(kind: int | str | None) -> int | None:
    """ggml's number of a tensor type."""
    if isinstance(kind, str) and kind != "auto":
        from gguf import GGMLQuantizationType

        return int(GGMLQuantizationType[kind.upper()])
    return kind if isinstance(kind, int) else None


def type_name(kind: int | str | None) -> str:
    """ggml's name of a tensor type given as ggml's number, as a name, or as None (the default)."""
    if isinstance(kind, int):
        from gguf import GGMLQuantizationType

        return str(GGMLQuantizationType(kind).name).lower()
    return kind or "auto"
