# SPDX-License-Identifier: MIT
"""Tests Haystack, whose generator creates its own `llama_cpp.Llama`."""

from __future__ import annotations

from common import MODEL, WITH_DRAFT, done, take_its_place

take_its_place()

from haystack.dataclasses import ChatMessage  # noqa: E402
from haystack_integrations.components.generators.llama_cpp import LlamaCppChatGenerator  # noqa: E402

sampling = {"max_tokens": 12, "temperature": 0.0}
chat = LlamaCppChatGenerator(
    model=MODEL, n_ctx=512, n_batch=128, model_kwargs=WITH_DRAFT, generation_kwargs=sampling
)
chat.warm_up()
assert chat._model.engine.has_draft == bool(WITH_DRAFT)
pieces: list[str] = []
said = chat.run([ChatMessage.from_user("Hello")])["replies"][0].text
chat.run([ChatMessage.from_user("Hello")], streaming_callback=lambda chunk: pieces.append(chunk.content))
assert said and "".join(pieces) == said, (said, pieces)
done("LlamaCppChatGenerator: run, streaming")
