# SPDX-License-Identifier: MIT
"""Chooses llama_cpp's chat handlers. A model with a chat template gets eaglecpp's bounded template
instead.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import llama_cpp
from llama_cpp import llama_chat_format

from eaglecpp.chat.jinja import JinjaTemplate
from eaglecpp.engine.engine import Engine
from eaglecpp.errors import TemplateError


class Formatter:
    """llama_cpp's `Jinja2ChatFormatter`, with limits on the template (see `chat.bounds`)."""

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


def find_handler(
    chat_format: str | None, metadata: Mapping[str, str], engine: Engine
) -> tuple[str, Callable[..., Any]]:
    """Returns the name and the handler of the chat format, chosen as in llama_cpp: the requested format, or
    else the file's template, or else "llama-2". Raises ValueError for a format that llama_cpp does not know.
    """
    prefix = "tokenizer.chat_template"
    named = {k.removeprefix("tokenizer."): v for k, v in metadata.items() if k.startswith(f"{prefix}.")}
    if prefix in metadata:
        named["chat_template.default"] = metadata[prefix]
    if chat_format is None and "chat_template.default" in named:
        guessed = llama_chat_format.guess_chat_format_from_gguf_metadata(dict(metadata))
        chat_format = guessed or "chat_template.default"
    chat_format = chat_format or "llama-2"
    handler: Callable[..., Any]
    if chat_format in named:
        bos, eos = engine.native.bos, engine.native.eos
        formatter = Formatter(named[chat_format], _text(engine, bos), _text(engine, eos), eos)
        handler = llama_chat_format.chat_formatter_to_chat_completion_handler(formatter)
        return chat_format, handler
    try:
        handler = llama_chat_format.get_chat_completion_handler(chat_format)
    except llama_chat_format.LlamaChatCompletionHandlerNotFoundException as error:
        raise ValueError(str(error)) from error
    return chat_format, handler


def _text(engine: Engine, token: int) -> str:
    return "" if token < 0 else engine.token_to_piece(token, special=True).decode("utf-8", "ignore")
