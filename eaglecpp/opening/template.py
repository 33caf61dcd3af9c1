# SPDX-License-Identifier: MIT
"""Which chat template a model uses, by name or as a file: the only place that calls `ChatTemplate`."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from eaglecpp.chat.template import ChatTemplate

if TYPE_CHECKING:
    from eaglecpp.store.resolve import ResolvedModel

__all__ = ["choose_template"]


def choose_template(
    model: ResolvedModel,
    gguf: str,
    has_token: Callable[[str], bool],
    *,
    bos_text: str = "",
    eos_text: str = "",
) -> ChatTemplate:
    """The template of a model.

    gguf:      what the target's file carries, "" for none
    has_token: whether the vocabulary has one token of that text
    Raises ValueError for a `chat_template` pragma that names what is not there.
    """
    return ChatTemplate.choose(
        modelfile=model.template,
        stored=model.stored_template,
        gguf=gguf,
        choice=model.template_choice,
        has_token=has_token,
        bos_text=bos_text,
        eos_text=eos_text,
    )
