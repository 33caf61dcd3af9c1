# SPDX-License-Identifier: MIT
"""OpenAI's API and Anthropic's: shapes of answers, streams and errors."""

from __future__ import annotations

import json
from typing import Any

import pytest

from helpers.http_server import MODEL, TestServer

QUESTION = "What does os.path.join do?"
SAID = "Join two or more pathname components"
TOOL = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "The weather somewhere",
        "parameters": {
            "type": "object",
            "properties": {"city": {"enum": ["Paris"]}},
            "required": ["city"],
            "additionalProperties": False,
        },
    },
}


def ask(text: str = QUESTION, **rest: Any) -> dict[str, Any]:
    turns = [{"role": "user", "content": text}]
    return {"model": MODEL, "messages": turns, "temperature": 0, "max_tokens": 40} | rest


def whole(server: TestServer, body: dict[str, Any], path: str = "/v1/chat/completions") -> dict[str, Any]:
    answer = server.post(path, body)
    assert answer.status_code == 200, answer.text
    return dict(answer.json())


def test_models_are_listed(server: TestServer) -> None:
    told = server.get("/v1/models").json()
    assert told["object"] == "list" and MODEL in [one["id"] for one in told["data"]]
    assert server.get(f"/v1/models/{MODEL}").json()["object"] == "model"
    assert server.get("/v1/models/none").json()["error"]["code"] == "model_not_found"


def test_a_whole_answer(server: TestServer) -> None:
    told = whole(server, ask())
    (choice,) = told["choices"]
    assert SAID in choice["message"]["content"] and choice["finish_reason"] in ("stop", "length")
    usage = told["usage"]
    assert usage["total_tokens"] == usage["prompt_tokens"] + usage["completion_tokens"]
    assert told["timings"]["predicted_n"] == usage["completion_tokens"]
    assert told["object"] == "chat.completion"


def test_a_stream_has_the_shape_that_clients_insist_on(server: TestServer) -> None:
    *chunks, done = server.events("/v1/chat/completions", ask(stream_options={"include_usage": True}))
    assert done == "[DONE]"
    assert {chunk["object"] for chunk in chunks} == {"chat.completion.chunk"}
    assert len({chunk["id"] for chunk in chunks}) == len({chunk["created"] for chunk in chunks}) == 1
    *parts, last, usage = chunks
    assert parts[0]["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    assert all("finish_reason" in part["choices"][0] for part in parts)
    assert all(part["choices"][0]["finish_reason"] is None and part["usage"] is None for part in parts)
    assert last["choices"][0]["delta"] == {} and last["choices"][0]["finish_reason"] in ("stop", "length")
    assert last["timings"]["acceptance_length"] >= 1
    assert usage["choices"] == [] and usage["usage"]["completion_tokens"] > 0
    text = "".join(part["choices"][0]["delta"].get("content", "") for part in parts)
    assert text == whole(server, ask())["choices"][0]["message"]["content"]


def test_a_tool_that_must_be_called_is_called(server: TestServer) -> None:
    forced = ask("Hello", tools=[TOOL], tool_choice="required", max_tokens=100)
    (choice,) = whole(server, forced)["choices"]
    (call,) = choice["message"]["tool_calls"]
    assert choice["finish_reason"] == "tool_calls" and choice["message"]["content"] is None
    assert call["type"] == "function" and call["id"] and call["function"]["name"] == "weather"
    assert json.loads(call["function"]["arguments"]) == {"city": "Paris"}
    chunks = [c for c in server.events("/v1/chat/completions", forced) if c != "[DONE]"]
    deltas = [d for c in chunks for d in c["choices"][0]["delta"].get("tool_calls", [])]
    assert deltas[0]["function"]["name"] == "weather" and deltas[0]["id"]
    assert json.loads("".join(d["function"].get("arguments", "") for d in deltas)) == {"city": "Paris"}
    assert chunks[-1]["choices"][0]["finish_reason"] == "tool_calls"


def test_results_of_tools_are_read(server: TestServer) -> None:
    turns = [
        {"role": "user", "content": "Weather?"},
        {"role": "assistant", "content": None,
         "tool_calls": [{"id": "c1", "type": "function",
                         "function": {"name": "weather", "arguments": "{}"}}]},
        {"role": "tool", "tool_call_id": "c1", "content": "sun"},
    ]  # fmt: skip
    assert whole(server, ask(messages=turns, tools=[TOOL]))["choices"][0]["finish_reason"]


def test_schemas_are_obeyed(server: TestServer) -> None:
    schema = {"type": "object", "properties": {"n": {"enum": [17]}}, "required": ["n"]}
    form = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema, "strict": True}}
    told = whole(server, ask(response_format=form))
    assert json.loads(told["choices"][0]["message"]["content"]) == {"n": 17}


def test_log_probabilities(server: TestServer) -> None:
    told = whole(server, ask(logprobs=True, top_logprobs=3))["choices"][0]
    tokens = told["logprobs"]["content"]
    assert "".join(one["token"] for one in tokens) == told["message"]["content"]
    assert all(len(one["top_logprobs"]) == 3 for one in tokens)
    ended = whole(server, ask("What is len?", logprobs=True, max_tokens=100))["choices"][0]
    assert ended["finish_reason"] == "stop"
    text = "".join(one["token"] for one in ended["logprobs"]["content"])
    assert text == ended["message"]["content"], "the token that ends it is no text"


def test_completions_have_no_template(server: TestServer) -> None:
    body = {"model": MODEL, "prompt": "The function", "max_tokens": 8, "temperature": 0, "logprobs": 1}
    told = whole(server, body, "/v1/completions")
    choice = told["choices"][0]
    assert told["object"] == "text_completion" and choice["finish_reason"] == "length"
    assert "".join(choice["logprobs"]["tokens"]) == choice["text"]
    *chunks, done = server.events("/v1/completions", body)
    assert done == "[DONE]" and "".join(c["choices"][0]["text"] for c in chunks) == choice["text"]
    echoed = whole(server, {**body, "echo": True}, "/v1/completions")["choices"][0]["text"]
    assert echoed.strip().startswith("The function")


def test_responses_stream_and_whole_say_the_same(server: TestServer) -> None:
    body = {"model": MODEL, "input": QUESTION, "max_output_tokens": 40, "temperature": 0}
    told = whole(server, body, "/v1/responses")
    (item,) = told["output"]
    assert SAID in item["content"][0]["text"] and told["status"] in ("completed", "incomplete")
    events = list(server.events("/v1/responses", body))
    kinds = [event["type"] for event in events]
    assert kinds[:2] == ["response.created", "response.in_progress"]
    assert kinds[-1] == f"response.{told['status']}"
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    text = "".join(e["delta"] for e in events if e["type"] == "response.output_text.delta")
    assert text == item["content"][0]["text"] == events[-1]["response"]["output"][0]["content"][0]["text"]
    assert "previous_response_id" in server.post("/v1/responses", {**body, "previous_response_id": "x"}).text


def test_responses_call_tools(server: TestServer) -> None:
    tool = {"type": "function", **TOOL["function"]}  # type: ignore[dict-item]
    body = {"model": MODEL, "input": "Hello", "tools": [tool], "tool_choice": "required", "temperature": 0}
    (call,) = whole(server, body, "/v1/responses")["output"]
    assert (call["type"], call["name"], json.loads(call["arguments"])) == (
        "function_call",
        "weather",
        {"city": "Paris"},
    )
    turns = [
        {"role": "user", "content": "Hello"},
        call,
        {"type": "function_call_output", "call_id": call["call_id"], "output": "sun"},
    ]
    assert whole(server, {**body, "input": turns, "tool_choice": "auto"}, "/v1/responses")["output"]


def test_messages_stream_and_whole_say_the_same(server: TestServer) -> None:
    body = {"model": MODEL, "max_tokens": 40, "temperature": 0, "system": "You help.",
            "messages": [{"role": "user", "content": [{"type": "text", "text": QUESTION}]}]}  # fmt: skip
    told = whole(server, body, "/v1/messages")
    (block,) = told["content"]
    assert block["type"] == "text" and told["stop_reason"] in ("end_turn", "max_tokens")
    assert told["usage"]["output_tokens"] > 0
    events = list(server.events("/v1/messages", body))
    kinds = [event["type"] for event in events]
    assert (kinds[0], kinds[-2:]) == ("message_start", ["message_delta", "message_stop"])
    assert kinds.count("content_block_start") == kinds.count("content_block_stop") == 1
    text = "".join(e["delta"]["text"] for e in events if e["type"] == "content_block_delta")
    assert text == block["text"]
    count = whole(server, body, "/v1/messages/count_tokens")["input_tokens"]
    assert count == told["usage"]["input_tokens"] + told["usage"]["cache_read_input_tokens"]


def test_messages_call_tools(server: TestServer) -> None:
    tool = {"name": "weather", "input_schema": TOOL["function"]["parameters"]}  # type: ignore[index]
    body = {"model": MODEL, "max_tokens": 100, "temperature": 0,
            "tools": [tool], "tool_choice": {"type": "any"},
            "messages": [{"role": "user", "content": "Hello"}]}  # fmt: skip
    told = whole(server, body, "/v1/messages")
    (block,) = told["content"]
    assert (block["type"], block["input"], told["stop_reason"]) == ("tool_use", {"city": "Paris"}, "tool_use")


@pytest.mark.parametrize(
    ("path", "body", "status"),
    [
        ("/v1/chat/completions", b"{", 400),
        ("/v1/chat/completions", {"model": MODEL}, 400),
        ("/v1/chat/completions", ask(model="none"), 404),
        ("/v1/chat/completions", ask(n=2), 400),
        ("/v1/chat/completions", ask(temperature=3), 400),
        ("/v1/chat/completions", ask(max_tokens="many"), 400),
        ("/v1/chat/completions", ask(stop=[1]), 400),
        ("/v1/chat/completions", ask(tool_choice="required"), 400),
        ("/v1/chat/completions", ask(tools=[{"name": ""}], tool_choice="required"), 400),
        ("/v1/chat/completions", ask(response_format={"type": "xml"}), 400),
        ("/v1/chat/completions", ask(grammar="root ::= ("), 400),
        ("/v1/chat/completions", ask(logit_bias={"x": 1}), 400),
        ("/v1/chat/completions", ask(reasoning="much"), 400),
        ("/v1/chat/completions", ask("long " * 2000), 400),
        ("/v1/chat/completions",
         ask(messages=[{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]),
         400),
        ("/v1/completions", {"model": MODEL, "prompt": 7}, 400),
        ("/v1/completions", {"model": MODEL, "prompt": [10**9]}, 400),
        ("/v1/embeddings", {"model": MODEL, "input": [{}]}, 400),
        ("/v1/rerank", {"model": MODEL, "query": "x", "documents": ["y"]}, 400),
        ("/v1/responses", {"model": MODEL}, 400),
        ("/v1/nothing", {}, 404),
    ],
)  # fmt: skip
def test_errors_have_openais_form(server: TestServer, path: str, body: Any, status: int) -> None:
    answer = server.post(path, body)
    assert answer.status_code == status, answer.text
    assert set(answer.json()["error"]) == {"message", "type", "param", "code"}
    assert answer.json()["error"]["message"]


def test_errors_of_messages_have_anthropics_form(server: TestServer) -> None:
    answer = server.post("/v1/messages", {"model": MODEL, "messages": []})
    assert answer.status_code == 400
    assert answer.json() == {
        "type": "error", "error": {"type": "invalid_request_error", "message": "max_tokens is required"}
    }  # fmt: skip


def test_too_long_a_prompt_has_openais_code_also_in_a_stream(server: TestServer) -> None:
    answer = server.post("/v1/chat/completions", ask("long " * 2000, stream=True))
    assert answer.status_code == 400
    assert answer.json()["error"]["code"] == "context_length_exceeded"
