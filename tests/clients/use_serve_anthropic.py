# SPDX-License-Identifier: MIT
"""Tests `eaglecpp serve` with the real anthropic client: messages, streams, tools, token counts, errors."""

from __future__ import annotations

import json

import anthropic
import pytest
from common import done
from serving import MODEL, serving

ASK = {
    "model": MODEL,
    "max_tokens": 24,
    "extra_body": {"temperature": 0},
    "messages": [{"role": "user", "content": "What is len?"}],
}
TOOL = {
    "name": "weather",
    "input_schema": {"type": "object", "properties": {"city": {"enum": ["Paris"]}}, "required": ["city"]},
}
LONG = {**ASK, "max_tokens": 200}

with serving() as url, anthropic.Anthropic(base_url=url, api_key="x", timeout=300, max_retries=0) as client:
    whole = client.messages.create(**ASK)
    assert whole.content[0].text and whole.usage.output_tokens > 0
    with client.messages.stream(**ASK) as stream:
        text = "".join(stream.text_stream)
    assert text == whole.content[0].text
    called = client.messages.create(**LONG, tools=[TOOL], tool_choice={"type": "any"})
    assert called.stop_reason == "tool_use" and called.content[0].input == {"city": "Paris"}
    with client.messages.stream(**LONG, tools=[TOOL], tool_choice={"type": "any"}) as stream:
        final = stream.get_final_message()
    assert final.content[0].input == {"city": "Paris"}
    said = {"role": "assistant", "content": [block.model_dump() for block in called.content]}
    result = {"type": "tool_result", "tool_use_id": called.content[0].id, "content": "sun"}
    turns = [*ASK["messages"], said, {"role": "user", "content": [result]}]
    assert client.messages.create(**{**ASK, "messages": turns}, tools=[TOOL]).content
    assert client.messages.count_tokens(model=MODEL, messages=ASK["messages"]).input_tokens > 3
    stopped = client.messages.create(**ASK, stop_sequences=[text[3:6]])
    assert (stopped.stop_reason, stopped.stop_sequence) == ("stop_sequence", text[3:6])
    assert stopped.content[0].text == text[:3]
    schema = {"type": "object", "properties": {"n": {"enum": [17]}}, "required": ["n"]}
    form = {"format": {"type": "json_schema", "schema": schema}}
    reply = client.messages.create(**LONG, output_config=form)
    assert json.loads(reply.content[0].text) == {"n": 17}
    models = client.models.list()
    assert models.data[0].display_name and models.data[0].created_at.year > 2020 and not models.has_more
    with pytest.raises(anthropic.BadRequestError, match="web_search_20250305"):
        client.messages.create(**ASK, tools=[{"type": "web_search_20250305", "name": "web_search"}])
    with pytest.raises(anthropic.NotFoundError):
        client.messages.create(**{**ASK, "model": "nobody"})
done("messages, stream, tools, streamed tools, results, count, stops, format, models, 2 errors")
