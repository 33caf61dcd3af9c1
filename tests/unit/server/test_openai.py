# SPDX-License-Identifier: MIT
"""Tests OpenAI's chats, completions and models: structure of answers, streams and errors."""

from __future__ import annotations

import json
from datetime import datetime
from typing import Any

import pytest

from helpers.http_server import CITY, EXPECTED, MODEL, QUESTION, WEATHER, TestServer, store

CITIES = {"allOf": [{"$ref": "#/$defs/city"}, {"title": "any"}], "$defs": {"city": CITY}}
OTHER: dict[str, Any] = {"type": "function", "function": {"name": "../ 50%#é", "parameters": CITIES}}


def ask(text: str = QUESTION, **rest: Any) -> dict[str, Any]:
    turns = [{"role": "user", "content": text}]
    return {"model": MODEL, "messages": turns, "temperature": 0, "max_tokens": 40} | rest


def whole(server: TestServer, body: dict[str, Any], path: str = "/v1/chat/completions") -> dict[str, Any]:
    return server.call(path, body)


def test_models_are_listed(server: TestServer) -> None:
    reply = server.get("/v1/models").json()
    assert reply["object"] == "list" and MODEL in [one["id"] for one in reply["data"]]
    assert server.get(f"/v1/models/{MODEL}").json()["object"] == "model"
    assert server.get("/v1/models/none").json()["error"]["code"] == "model_not_found"
    (entry,) = [one for one in reply["data"] if one["id"] == MODEL]
    assert (entry["type"], entry["display_name"]) == ("model", MODEL), "Anthropic's clients read both fields"
    assert datetime.fromisoformat(entry["created_at"]).timestamp() == pytest.approx(entry["created"], abs=1)
    assert (reply["has_more"], reply["first_id"]) == (False, reply["data"][0]["id"])


def test_a_stream_and_a_whole_answer_have_the_structure_that_clients_require(server: TestServer) -> None:
    *chunks, done = server.events("/v1/chat/completions", ask(stream_options={"include_usage": True}))
    assert done == "[DONE]"
    assert {chunk["object"] for chunk in chunks} == {"chat.completion.chunk"}
    assert len({chunk["id"] for chunk in chunks}) == len({chunk["created"] for chunk in chunks}) == 1
    *parts, last, usage = chunks
    assert parts[0]["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    assert all("finish_reason" in part["choices"][0] for part in parts)
    assert all(part["choices"][0]["finish_reason"] is None and "usage" not in part for part in parts)
    assert last["choices"][0]["delta"] == {} and last["choices"][0]["finish_reason"] in ("stop", "length")
    assert last["timings"]["acceptance_length"] >= 1
    assert usage["choices"] == [] and usage["usage"]["completion_tokens"] > 0
    text = "".join(part["choices"][0]["delta"].get("content", "") for part in parts)
    reply = whole(server, ask())
    (choice,) = reply["choices"]
    assert EXPECTED in text == choice["message"]["content"] and choice["finish_reason"] in ("stop", "length")
    counts = reply["usage"]
    assert counts["total_tokens"] == counts["prompt_tokens"] + counts["completion_tokens"]
    assert reply["timings"]["predicted_n"] == counts["completion_tokens"]
    assert reply["object"] == "chat.completion"


def test_a_schema_next_to_the_messages_is_llama_servers(server: TestServer) -> None:
    reply = whole(server, ask("Hello", json_schema=CITY))
    assert json.loads(reply["choices"][0]["message"]["content"]) == {"city": "Paris"}


NAMED: dict[str, Any] = {"type": "function", "function": {"name": "weather"}}
ALLOWED = {"type": "allowed_tools", "allowed_tools": {"mode": "required", "tools": [NAMED]}}


@pytest.mark.parametrize("choice", ["required", NAMED, ALLOWED, OTHER])
def test_a_required_tool_is_called(server: TestServer, choice: Any) -> None:
    forced = ask("Hello", tools=[OTHER, WEATHER], tool_choice=choice, max_tokens=100)
    (answer,) = whole(server, forced)["choices"]
    (call,) = answer["message"]["tool_calls"]
    assert answer["finish_reason"] == "tool_calls" and answer["message"]["content"] is None
    name = call["function"]["name"]
    may = [OTHER, NAMED][choice in (NAMED, ALLOWED) : 2 - (choice == OTHER)]
    assert call["type"] == "function" and call["id"] and name in [tool["function"]["name"] for tool in may]
    assert json.loads(call["function"]["arguments"]) == {"city": "Paris"}
    chunks = [c for c in server.events("/v1/chat/completions", forced) if c != "[DONE]"]
    deltas = [d for c in chunks for d in c["choices"][0]["delta"].get("tool_calls", [])]
    assert deltas[0]["function"]["name"] == name and deltas[0]["id"]
    assert json.loads("".join(d["function"].get("arguments", "") for d in deltas)) == {"city": "Paris"}
    assert chunks[-1]["choices"][0]["finish_reason"] == "tool_calls"


@pytest.mark.parametrize("kind", ["json_schema", "strict", "json_object"])
def test_an_answer_is_a_call_or_has_the_form(server: TestServer, kind: str) -> None:
    """Tests requests with tools and a form for the answer, which agents send. Each case forbids the tokens
    that can begin a call, or the tokens that can begin the form.
    """
    server.call("/models/load", {"model": MODEL})
    (model,) = (one for one in server.server._shared.models.values() if one.name == MODEL)
    pieces = [model.engine.engine.token_to_piece(i) for i in range(model.engine.engine.n_vocab)]
    schema = {"json_schema": {"schema": CITY, "strict": kind == "strict"}}
    form = {"type": kind} if kind == "json_object" else {"type": "json_schema", **schema}
    tools = [{**tool, "function": {**tool["function"], "strict": True}} for tool in (OTHER, WEATHER)]
    body = ask("Hello", tools=tools, response_format=form, max_tokens=100)
    messages = {}
    for mark in ("{", "<"):
        bias = {i: False for i, piece in enumerate(pieces) if piece.strip().startswith(mark.encode())}
        messages[mark] = whole(server, body | {"logit_bias": bias})["choices"][0]["message"]
    assert messages["{"]["content"].startswith("<tool_call>"), "expected a call in the model's own form"
    if kind != "json_object":
        assert "tool_calls" in messages["<"] or json.loads(messages["<"]["content"]) == {"city": "Paris"}


def test_calls_without_a_mark_do_not_break_the_form(server: TestServer) -> None:
    """Calls as Llama 3 writes them, without a mark, do not break the required form."""
    call = '{"name": "{{ c.function.name }}", "parameters": {{ c.function.arguments | tojson }}}'
    turns = "{% for m in messages %}{% for c in m.tool_calls or [] %}" + call
    store("bare", f'TEMPLATE """{turns}{{% endfor %}}{{{{ m.content }}}}\n{{% endfor %}}{{{{ tools }}}}"""')
    form = {"type": "json_schema", "json_schema": {"schema": CITY}}
    body = ask("Hello", tools=[OTHER, WEATHER], response_format=form, max_tokens=100, model="bare")
    try:
        message = whole(server, body)["choices"][0]["message"]
        assert "tool_calls" in message or json.loads(message["content"]) == {"city": "Paris"}
    finally:
        server.delete("bare")


def test_log_probabilities(server: TestServer) -> None:
    reply = whole(server, ask(logprobs=True, top_logprobs=3))["choices"][0]
    tokens = reply["logprobs"]["content"]
    assert "".join(one["token"] for one in tokens) == reply["message"]["content"]
    assert all(len(one["top_logprobs"]) == 3 for one in tokens)
    ended = whole(server, ask("What is len?", logprobs=True, max_tokens=100))["choices"][0]
    assert ended["finish_reason"] == "stop"
    text = "".join(one["token"] for one in ended["logprobs"]["content"])
    assert text == ended["message"]["content"], "the end token must not be part of the text"


def test_completions_use_no_template(server: TestServer) -> None:
    body = {"model": MODEL, "prompt": "The function", "max_tokens": 8, "temperature": 0, "logprobs": 1}
    reply = whole(server, body, "/v1/completions")
    choice = reply["choices"][0]
    assert reply["object"] == "text_completion" and choice["finish_reason"] == "length"
    lists = choice["logprobs"]
    assert "".join(lists["tokens"]) == choice["text"]
    texts = [("The function" + choice["text"])[offset:] for offset in lists["text_offset"]]
    assert all(map(str.startswith, texts, lists["tokens"])), "offsets must count from the prompt's beginning"
    assert all(token in top for token, top in zip(lists["tokens"], lists["top_logprobs"], strict=True))
    *chunks, done = server.events("/v1/completions", body)
    assert done == "[DONE]" and "".join(c["choices"][0]["text"] for c in chunks) == choice["text"]
    parts = [c["choices"][0]["logprobs"] for c in chunks if c["choices"][0]["logprobs"]]
    assert {name: [one for part in parts for one in part[name]] for name in lists} == lists
    both = server.post("/v1/completions", {**body, "echo": True})
    assert both.status_code == 400 and "echo" in both.json()["error"]["message"]


@pytest.mark.parametrize(
    ("seed", "used"), [(12345678901, 3755744309), (-5, 4294967291), (2**33 - 1, 0x7FFFFFFF)]
)
def test_a_seed_of_any_size_is_fixed(server: TestServer, seed: int, used: int) -> None:
    body = ask("Say something about lists", max_tokens=4, seed=seed)
    first, second = whole(server, body), whole(server, body)
    assert first["timings"]["seed"] == used and first["choices"] == second["choices"]
    body = {"model": MODEL, "prompt": "What", "stream": False, "options": {"num_predict": 2, "seed": seed}}
    assert server.post("/api/generate", body).json()["timings"]["seed"] == used


def test_several_choices_equal_requests_with_other_seeds(server: TestServer) -> None:
    body = ask("Say something about lists and dicts, please", max_tokens=12, temperature=1.2, seed=7)
    body["stream_options"] = {"include_usage": True}
    alone = [whole(server, body | {"seed": 7 + i}) for i in range(3)]
    texts = [one["choices"][0]["message"]["content"] for one in alone]
    assert len(set(texts)) > 1, "the test needs different texts"
    reply = whole(server, body | {"n": 3, "cache_prompt": False})
    assert [(one["index"], one["message"]["content"]) for one in reply["choices"]] == list(enumerate(texts))
    assert [one["timings"]["seed"] for one in reply["choices"]] == [7, 8, 9]
    assert reply["usage"]["prompt_tokens"] == alone[0]["usage"]["prompt_tokens"], "the prompt must count once"
    n_out = sum(one["usage"]["completion_tokens"] for one in alone)
    assert reply["usage"]["completion_tokens"] == n_out
    *chunks, usage, done = server.events("/v1/chat/completions", body | {"n": 3})
    assert done == "[DONE]" and usage["usage"]["completion_tokens"] == n_out and usage["choices"] == []
    streamed = ["", "", ""]
    for chunk in chunks:
        (choice,) = chunk["choices"]
        streamed[choice["index"]] += choice["delta"].get("content") or ""
    assert streamed == texts


@pytest.mark.parametrize("stop", [None, [], "", [""]])
def test_a_models_stops_apply_if_a_request_has_none(server: TestServer, thinker: str, stop: Any) -> None:
    store("stopper", "PARAMETER stop e", f"FROM {thinker}")
    body = {"model": "stopper", "prompt": "The function", "temperature": 0, "max_tokens": 30, "stop": stop}
    reply = server.call("/completion", body)
    assert (reply["stop_type"], reply["stopping_word"]) == ("word", "e")
    (choice,) = whole(server, body, "/v1/completions")["choices"]
    assert (choice["finish_reason"], choice["text"]) == ("stop", reply["content"])
    server.delete("stopper")
