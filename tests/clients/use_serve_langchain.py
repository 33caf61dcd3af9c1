# SPDX-License-Identifier: MIT
"""`eaglecpp serve` and langchain-ollama: models, invoke, streams, tools, structured output, errors."""

from __future__ import annotations

import asyncio

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

    async def streamed() -> str:
        return "".join([part.content async for part in chat.astream(QUESTION)])

    assert asyncio.run(streamed()) == whole.content
    assert [one.content for one in chat.batch([QUESTION] * 3)] == [whole.content] * 3
    assert chat.with_structured_output(Size, method="json_schema").invoke(QUESTION) == Size(n=7)
    caller = ChatOllama(model=MODEL, format=CALL, **given | {"num_predict": 200}).bind_tools([weather])
    called = caller.invoke(QUESTION).tool_calls
    assert [(one["name"], one["args"]) for one in called] == [("weather", {"city": "Paris"})], called
    called = [call for part in caller.stream(QUESTION) for call in part.tool_calls]
    assert [(one["name"], one["args"]) for one in called] == [("weather", {"city": "Paris"})], called
    text = OllamaLLM(model=MODEL, **given)
    assert text.invoke(QUESTION) == "".join(text.stream(QUESTION)) != ""
    try:
        ChatOllama(model="nobody", base_url=url).invoke(QUESTION)
    except ResponseError as error:
        assert error.status_code == 404, error
    else:
        raise AssertionError("a model that is not there answered")
    try:
        ChatOllama(model="nobody", base_url=url, validate_model_on_init=True)
    except ValueError as error:
        assert "nobody" in str(error)
    else:
        raise AssertionError("a model that is not there was found")
done("models, invoke, stream, async, batch, schema, tools, completion, 2 errors")
