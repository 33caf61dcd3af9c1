# SPDX-License-Identifier: MIT
"""`eaglecpp serve` and the real anthropic client: messages, streams, tools, counts, errors."""

from __future__ import annotations

import anthropic
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
    turns = [
        *ASK["messages"],
        {"role": "assistant", "content": [block.model_dump() for block in called.content]},
        {
            "role": "user",
            "content": [{"type": "tool_result", "tool_use_id": called.content[0].id, "content": "sun"}],
        },
    ]
    assert client.messages.create(**{**ASK, "messages": turns}, tools=[TOOL]).content
    assert client.messages.count_tokens(model=MODEL, messages=ASK["messages"]).input_tokens > 3
    try:
        client.messages.create(**{**ASK, "model": "nobody"})
    except anthropic.NotFoundError:
        pass
    else:
        raise AssertionError("an unknown model was taken")
done("messages, stream, tools, streamed tools, results, count, error")
