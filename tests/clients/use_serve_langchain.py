# SPDX-License-Identifier: MIT
"""`eaglecpp serve` and langchain-ollama: models, invoke, streams, tools, structured output, errors."""

from __future__ import annotations

import asyncio

import pytest
from asked_for import Size, weather
from common import done
from langchain_ollama import ChatOllama, OllamaLLM
from ollama import ResponseError
from serving import CALL, MODEL, QUESTION, serving

with serving() as url:
    given = {"base_url": url, "temperature": 0.0, "num_predict": 24, "num_ctx": 900}
    chat = ChatOllama(model=MODEL, validate_model_on_init=True, **given)
    whole = chat.invoke(QUESTION)
    assert whole.content and whole.usage_metadata["output_tokens"] > 0, whole
    assert whole.response_metadata["done_reason"] in ("stop", "length")
    assert "".join(part.content for part in chat.stream(QUESTION)) == whole.content

    async def later() -> str:
        return "".join([part.content async for part in chat.astream(QUESTION)])

    assert asyncio.run(later()) == whole.content
    assert [one.content for one in chat.batch([QUESTION] * 3)] == [whole.content] * 3
    assert chat.with_structured_output(Size, method="json_schema").invoke(QUESTION) == Size(n=7)
    caller = ChatOllama(model=MODEL, format=CALL, **given | {"num_predict": 200}).bind_tools([weather])
    streamed = [call for part in caller.stream(QUESTION) for call in part.tool_calls]
    for called in (caller.invoke(QUESTION).tool_calls, streamed):
        assert [(one["name"], one["args"]) for one in called] == [("weather", {"city": "Paris"})], called
    text = OllamaLLM(model=MODEL, **given)
    assert text.invoke(QUESTION) == "".join(text.stream(QUESTION)) != ""
    with pytest.raises(ResponseError, match="404"):
        ChatOllama(model="nobody", base_url=url).invoke(QUESTION)
    with pytest.raises(ValueError, match="nobody"):
        ChatOllama(model="nobody", base_url=url, validate_model_on_init=True)
done("models, invoke, stream, async, batch, schema, tools, completion, 2 errors")
