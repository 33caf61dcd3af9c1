# SPDX-License-Identifier: MIT
"""Haystack's generators make their own `llama_cpp.Llama`."""

from __future__ import annotations

from common import MODEL, done, take_its_place

take_its_place()

from haystack.dataclasses import ChatMessage  # noqa: E402
from haystack_integrations.components.generators.llama_cpp import (  # noqa: E402
    LlamaCppChatGenerator,
    LlamaCppGenerator,
)

sampling = {"max_tokens": 12, "temperature": 0.0}
plain = LlamaCppGenerator(model=MODEL, n_ctx=512, n_batch=128, generation_kwargs=sampling)
plain.warm_up()
assert plain.run("Once upon a time")["replies"][0]
chat = LlamaCppChatGenerator(model=MODEL, n_ctx=512, n_batch=128, generation_kwargs=sampling)
chat.warm_up()
assert chat.run([ChatMessage.from_user("Hello")])["replies"][0].text
done("LlamaCppGenerator and LlamaCppChatGenerator")
