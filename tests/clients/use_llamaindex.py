# SPDX-License-Identifier: MIT
"""LlamaIndex's LlamaCPP makes its own `llama_cpp.Llama`."""

from __future__ import annotations

from common import MODEL, WITH_DRAFT, done, take_its_place

take_its_place()

from llama_index.core.llms import ChatMessage  # noqa: E402
from llama_index.llms.llama_cpp import LlamaCPP  # noqa: E402

llm = LlamaCPP(
    model_path=MODEL,
    temperature=0.0,
    max_new_tokens=12,
    context_window=512,
    verbose=False,
    model_kwargs=WITH_DRAFT,
    messages_to_prompt=lambda messages: "\n".join(str(m.content) for m in messages),
    completion_to_prompt=lambda text: text,
)
assert llm._model.engine.has_draft == bool(WITH_DRAFT)
text = llm.complete("Once upon a time").text
assert text and list(llm.stream_complete("Once upon a time"))[-1].text == text
assert llm.chat([ChatMessage(role="user", content="Hello")]).message.content
done("LlamaCPP: complete, stream_complete, chat")
