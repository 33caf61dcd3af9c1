# SPDX-License-Identifier: MIT
"""`eaglecpp serve` and llama-index-llms-ollama: complete, chat, streams, tools, structured output, errors."""

from __future__ import annotations

import asyncio

import pytest
from asked_for import Size, weather
from common import done
from llama_index.core.llms import ChatMessage
from llama_index.core.prompts import PromptTemplate
from llama_index.core.tools import FunctionTool
from llama_index.llms.ollama import Ollama
from ollama import ResponseError
from serving import CALL, MODEL, QUESTION, serving

with serving() as url:
    given = {"base_url": url, "temperature": 0.0, "request_timeout": 300.0, "context_window": 900}
    model = Ollama(model=MODEL, additional_kwargs={"num_predict": 24}, **given)
    asked = [ChatMessage(role="user", content=QUESTION)]
    whole = model.chat(asked)
    assert whole.message.content and whole.raw["eval_count"] > 0, whole
    assert "".join(part.delta or "" for part in model.stream_chat(asked)) == whole.message.content
    assert model.complete(QUESTION).text == whole.message.content
    assert [*model.stream_complete(QUESTION)][-1].text == whole.message.content

    async def later() -> str:
        return (await model.achat(asked)).message.content or ""

    assert asyncio.run(later()) == whole.message.content
    assert model.structured_predict(Size, PromptTemplate(QUESTION)) == Size(n=7)
    caller = Ollama(model=MODEL, additional_kwargs={"num_predict": 200}, **given)
    tool = FunctionTool.from_defaults(fn=weather).metadata.to_openai_tool()
    answer = caller.chat(asked, tools=[tool], format=CALL)  # `chat_with_tools` drops the format
    calls = caller.get_tool_calls_from_response(answer)
    assert [(one.tool_name, one.tool_kwargs) for one in calls] == [("weather", {"city": "Paris"})], calls
    with pytest.raises(ResponseError, match="404"):
        Ollama(model="nobody", base_url=url).complete(QUESTION)
    assert Ollama(model=MODEL, base_url=url).metadata.context_window > 0
done("chat, complete, streams, async, schema, tools, context window, an error")
