# SPDX-License-Identifier: MIT
"""Tests `eaglecpp serve` with the real openai client: chat, streams, tools, schemas, responses, errors."""

from __future__ import annotations

from typing import Literal

import openai
import pytest
from common import done
from pydantic import BaseModel
from serving import MODEL, serving


class City(BaseModel):
    size: Literal[1, 2]


TOOL = {
    "type": "function",
    "function": {
        "name": "weather",
        "parameters": {"type": "object", "properties": {"city": {"enum": ["Paris"]}}, "required": ["city"]},
    },
}
ASK = {
    "model": MODEL,
    "messages": [{"role": "user", "content": "What is len?"}],
    "max_tokens": 24,
    "temperature": 0.0,
}
LONG = {**ASK, "max_tokens": 200}

with (
    serving("--keep-responses", "9") as url,
    openai.OpenAI(base_url=f"{url}/v1", api_key="x", timeout=300, max_retries=0) as client,
):
    assert MODEL in [model.id for model in client.models.list()]
    whole = client.chat.completions.create(**ASK)
    first = whole.choices[0].message.content
    assert (
        first and whole.usage.completion_tokens > 0 and whole.model_extra["timings"]["acceptance_length"] >= 1
    )
    chunks = list(client.chat.completions.create(**ASK, stream=True, stream_options={"include_usage": True}))
    assert "".join(c.choices[0].delta.content or "" for c in chunks if c.choices) == first
    assert chunks[-1].usage.total_tokens == whole.usage.total_tokens
    with client.chat.completions.stream(**LONG, tools=[TOOL], tool_choice="required") as stream:
        for _ in stream:
            pass
        called = stream.get_final_completion().choices[0]
    assert called.finish_reason == "tool_calls" and called.message.tool_calls[0].function.name == "weather"
    parsed = client.chat.completions.parse(**LONG, response_format=City)
    assert parsed.choices[0].message.parsed.size in (1, 2)
    text = client.completions.create(model=MODEL, prompt="The", max_tokens=5, logprobs=2)
    lists = text.choices[0].logprobs
    assert len(lists.tokens) == 5 and lists.text_offset[0] == len("The")
    chunks = list(client.completions.create(model=MODEL, prompt="The", max_tokens=5, logprobs=2, stream=True))
    assert sum(len(c.choices[0].logprobs.tokens) for c in chunks if c.choices[0].logprobs) == 5
    asked = {"model": MODEL, "input": "What is len?", "max_output_tokens": 24, "temperature": 0.0}
    reply = client.responses.create(**asked)
    assert reply.output_text == first, (reply.output_text, first)
    with client.responses.stream(**asked) as events:
        *_, last = events
    assert last.response.output_text == first
    more = {**asked, "input": "And sum?", "previous_response_id": reply.id}
    counted = client.responses.input_tokens.count(
        model=MODEL, input="And sum?", previous_response_id=reply.id
    ).input_tokens
    assert client.responses.create(**more).usage.input_tokens == counted > reply.usage.input_tokens
    with pytest.raises(openai.BadRequestError) as gone:
        client.responses.create(**more | {"previous_response_id": "resp_x"})
    assert gone.value.code == "previous_response_not_found"
    long = [{"role": "user", "content": "word " * 3000}]
    for wrong, kind, code in (
        ({"model": "nobody"}, openai.NotFoundError, "model_not_found"),
        ({"messages": long}, openai.BadRequestError, "context_length_exceeded"),
        ({"temperature": -1}, openai.BadRequestError, None),
    ):
        with pytest.raises(kind) as raised:
            client.chat.completions.create(**{**ASK, **wrong})
        assert raised.value.code == code, raised.value
done("models, chat, usage, tools, schema, completions, responses, kept ones, 3 errors")
