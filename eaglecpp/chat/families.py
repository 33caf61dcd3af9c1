# SPDX-License-Identifier: MIT
"""Prompt formats of model families for files without a template, from llama.cpp's built-in list.

The formats themselves are llama.cpp's (`llama_chat_apply_template`); this module only decides which family a
vocabulary belongs to. llama_cpp is imported on first use.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache

from eaglecpp.chat.gotemplate import TemplateError
from eaglecpp.chat.message import Message

__all__ = ["family_names", "family_of", "render_family"]

_MARKS: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("chatml", ("<|im_start|>", "<|im_end|>")),
    ("llama3", ("<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>")),
    ("llama4", ("<|header_start|>", "<|header_end|>")),
    ("gemma", ("<start_of_turn>", "<end_of_turn>")),
    ("granite", ("<|start_of_role|>", "<|end_of_role|>")),
    ("command-r", ("<|START_OF_TURN_TOKEN|>", "<|END_OF_TURN_TOKEN|>")),
    ("phi3", ("<|user|>", "<|assistant|>", "<|end|>")),
    ("mistral-v3", ("[INST]", "[/INST]")),
)


def family_of(has_token: Callable[[str], bool]) -> str:
    """The family whose marks are all tokens of the vocabulary, or the empty string."""
    return next((family for family, marks in _MARKS if all(map(has_token, marks))), "")


@cache
def family_names() -> tuple[str, ...]:
    """Every family that llama.cpp knows."""
    import ctypes

    import llama_cpp

    n_names = llama_cpp.llama_chat_builtin_templates(None, 0)
    names = (ctypes.c_char_p * n_names)()
    llama_cpp.llama_chat_builtin_templates(names, n_names)
    return tuple(sorted(name.decode() for name in names if name))


def render_family(family: str, messages: Sequence[Message], add_generation_prompt: bool) -> str:
    """The conversation in a family's format. Raises TemplateError for an unknown family."""
    import ctypes

    import llama_cpp

    pairs = [(str(message.role).encode(), message.content.encode()) for message in messages]
    if any(b"\0" in text for pair in pairs for text in pair):
        raise TemplateError(
            "a message contains a NUL character, which llama.cpp's formats cannot represent", 0, name=family
        )
    chat = (llama_cpp.llama_chat_message * len(pairs))(*pairs)
    size = 4096 + 2 * sum(len(content) for _, content in pairs)
    for _ in range(2):
        buffer = ctypes.create_string_buffer(size + 1)
        needed = llama_cpp.llama_chat_apply_template(
            family.encode(), chat, len(pairs), add_generation_prompt, buffer, size
        )
        if needed < 0:
            raise TemplateError(f"llama.cpp has no chat format '{family}' for these messages", 0, name=family)
        if needed <= size:
            return buffer.raw[:needed].decode("utf-8", "replace")
        size = needed
    raise TemplateError(f"llama.cpp's format '{family}' changes its length between two calls", 0, name=family)
