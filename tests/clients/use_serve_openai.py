# SPDX-License-Identifier: MIT
"""`eaglecpp serve` and the real openai client: chat, streams, tools, schemas, responses, errors."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from typing import Literal

import openai
import pytest
from common import done
from pydantic import BaseModel
from serving import MODEL, TARGET, serving


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
    plain = client.chat.completions.create(**ASK, extra_body={"draft": False})
    assert plain.choices[0].message.content == first and plain.model_extra["timings"]["draft_n"] == 0
    forced = client.chat.completions.create(**LONG, tools=[TOOL], tool_choice="required")
    assert json.loads(forced.choices[0].message.tool_calls[0].function.arguments) == {"city": "Paris"}
    with client.chat.completions.stream(**LONG, tools=[TOOL], tool_choice="required") as stream:
        for _ in stream:
            pass
        called = stream.get_final_completion().choices[0]
    assert called.finish_reason == "tool_calls" and called.message.tool_calls[0].function.name == "weather"
    named = {"type": "function", "function": {"name": "weather"}}
    chosen = client.chat.completions.create(**LONG, tools=[TOOL], tool_choice=named).choices[0]
    assert chosen.finish_reason == "tool_calls" and chosen.message.tool_calls[0].function.name == "weather"
    parsed = client.chat.completions.parse(**LONG, response_format=City)
    assert parsed.choices[0].message.parsed.size in (1, 2)
    text = client.completions.create(model=MODEL, prompt="The", max_tokens=5, logprobs=2)
    lists = text.choices[0].logprobs
    assert len(lists.tokens) == 5 and lists.text_offset[0] == len("The")
    chunks = list(client.completions.create(model=MODEL, prompt="The", max_tokens=5, logprobs=2, stream=True))
    assert sum(len(c.choices[0].logprobs.tokens) for c in chunks if c.choices[0].logprobs) == 5
    several = client.completions.create(model=MODEL, prompt=["The", "A"], max_tokens=5)
    assert [one.index for one in several.choices] == [0, 1]
    many = client.chat.completions.create(**{**ASK, "temperature": 1.0}, n=3, seed=1)
    assert [one.index for one in many.choices] == [0, 1, 2]
    again = client.chat.completions.create(**{**ASK, "temperature": 1.0}, seed=2)
    assert many.choices[1].message.content == again.choices[0].message.content
    streamed = ["", "", ""]
    for chunk in client.chat.completions.create(**{**ASK, "temperature": 1.0}, n=3, seed=1, stream=True):
        for one in chunk.choices:
            streamed[one.index] += one.delta.content or ""
    assert streamed == [one.message.content for one in many.choices]
    asked = {"model": MODEL, "input": "What is len?", "max_output_tokens": 24, "temperature": 0.0}
    told = client.responses.create(**asked)
    assert told.output_text == first, (told.output_text, first)
    with client.responses.stream(**asked) as events:
        *_, last = events
    assert last.response.output_text == first
    more = {**asked, "input": "And sum?", "previous_response_id": told.id}
    counted = client.responses.input_tokens.count(
        model=MODEL, input="And sum?", previous_response_id=told.id
    ).input_tokens
    assert client.responses.create(**more).usage.input_tokens == counted > told.usage.input_tokens
    assert client.responses.retrieve(told.id).output_text == first
    client.responses.delete(told.id)
    with pytest.raises(openai.BadRequestError) as gone:
        client.responses.create(**more)
    assert gone.value.code == "previous_response_not_found"
    turns = [
        {"role": "user", "content": "Weather?"},
        {"type": "reasoning", "id": "rs_1", "summary": [{"type": "summary_text", "text": "hm"}]},
        {"type": "function_call", "call_id": "c1", "name": "weather", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "c1", "output": [{"type": "input_text", "text": "sun"}]},
    ]
    assert client.responses.create(model=MODEL, input=turns, max_output_tokens=8).output_text
    with ThreadPoolExecutor(8) as pool:
        texts = pool.map(lambda _: client.chat.completions.create(**ASK).choices[0].message.content, range(8))
        assert set(texts) == {first}
    long = [{"role": "user", "content": "word " * 3000}]
    for wrong, kind, code in (
        ({"model": "nobody"}, openai.NotFoundError, "model_not_found"),
        ({"messages": long}, openai.BadRequestError, "context_length_exceeded"),
        ({"temperature": -1}, openai.BadRequestError, None),
    ):
        with pytest.raises(kind) as told:
            client.chat.completions.create(**{**ASK, **wrong})
        assert told.value.code == code, told.value
with serving(model=TARGET) as url, openai.OpenAI(base_url=f"{url}/v1", api_key="x", max_retries=0) as client:
    usual = client.chat.completions.create(**{**ASK, "model": "gpt-3.5-turbo"})
    assert usual.model == MODEL.removesuffix(":latest") and usual.choices[0].message.content == first
    text = client.completions.create(model="davinci-002", prompt="The", max_tokens=5)
    assert text.model == usual.model and text.choices[0].finish_reason == "length"
done(
    "models, chat, stream, usage, n, tools, schema, completions, responses, "
    "kept responses, 8 at once, 4 errors, any name"
)
