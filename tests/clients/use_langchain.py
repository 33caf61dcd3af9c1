# SPDX-License-Identifier: MIT
"""Tests LangChain, whose classes LlamaCpp and ChatLlamaCpp create their own `llama_cpp.Llama`."""

from __future__ import annotations

from common import MODEL, WITH_DRAFT, done, take_its_place

take_its_place()

from langchain_community.chat_models import ChatLlamaCpp  # noqa: E402
from langchain_community.llms import LlamaCpp  # noqa: E402

llm = LlamaCpp(
    model_path=MODEL, n_ctx=512, max_tokens=12, temperature=0.0, verbose=False, model_kwargs=WITH_DRAFT
)
assert llm.client.engine.has_draft == bool(WITH_DRAFT)
text = llm.invoke("Once upon a time")
assert text and "".join(llm.stream("Once upon a time")) == text
assert llm.get_num_tokens("Once upon a time") > 1
chat = ChatLlamaCpp(
    model_path=MODEL, n_ctx=512, max_tokens=12, temperature=0.0, verbose=False, model_kwargs=WITH_DRAFT
)
said = chat.invoke([("user", "Hello")]).content
assert said and "".join(str(chunk.content) for chunk in chat.stream([("user", "Hello")])) == said
done("LlamaCpp and ChatLlamaCpp: invoke, stream, token counts")
