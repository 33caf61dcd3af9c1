# SPDX-License-Identifier: MIT
"""Tests `eaglecpp serve` with the real ollama client: chat, generate, tools, models, errors."""

from __future__ import annotations

import json

import pytest
from common import done
from ollama import Client, ResponseError
from serving import MODEL, serving

TURNS = [{"role": "user", "content": "What is len?"}]
OPTIONS = {"temperature": 0, "num_predict": 24}


def weather(city: str) -> str:
    """The weather somewhere."""
    return city


with serving() as url:
    client = Client(host=url, timeout=300)
    assert MODEL in [model.model for model in client.list().models]
    whole = client.chat(MODEL, TURNS, options=OPTIONS)
    assert whole.message.content and whole.done and whole.eval_count > 0 and whole.total_duration > 0
    parts = list(client.chat(MODEL, TURNS, options=OPTIONS, stream=True))
    assert "".join(part.message.content for part in parts) == whole.message.content
    assert parts[-1].done_reason in ("stop", "length")
    assert client.chat(MODEL, TURNS, options=OPTIONS, tools=[weather]).message.role == "assistant"
    schema = {"type": "object", "properties": {"n": {"enum": [7]}}, "required": ["n"]}
    reply = client.chat(MODEL, TURNS, options=OPTIONS, format=schema)
    assert json.loads(reply.message.content) == {"n": 7}
    reply = client.generate(MODEL, "What is len?", options=OPTIONS)
    assert reply.response == whole.message.content
    shown = client.show(MODEL)
    assert shown.modelinfo["general.architecture"] and "completion" in shown.capabilities
    assert client.ps().models[0].expires_at.year > 2026
    client.create("mine", from_=MODEL, system="You help.", parameters={"num_predict": 3})
    client.copy("mine", "other")
    assert client.chat("other", TURNS).eval_count <= 3 and client.show("other").parameters
    for name in ("mine", "other", MODEL):
        client.delete(name)
    for name, status in ((MODEL, 404), ("a b", 404)):
        with pytest.raises(ResponseError, match=str(status)):
            client.chat(name, TURNS)
done("list, chat, stream, tools, schema, generate, show, ps, create, copy, delete, 2 errors")
