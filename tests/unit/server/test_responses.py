# SPDX-License-Identifier: MIT
"""Tests OpenAI's `/v1/responses`: items of a request, and items and events of an answer."""

from __future__ import annotations

import json
from typing import Any

import pytest

from helpers.http_server import CITY, EXPECTED, MODEL, QUESTION, THOUGHT, TestServer

REFERRING = {**CITY, "properties": {"city": {"$ref": "#/$defs/c"}}, "$defs": {"c": {"enum": ["Paris"]}}}
TOOL = {"type": "function", "name": "weather", "parameters": REFERRING}


def ask(given: Any, **rest: Any) -> dict[str, Any]:
    return {"model": MODEL, "input": given, "max_output_tokens": 40, "temperature": 0} | rest


def whole(server: TestServer, body: dict[str, Any]) -> dict[str, Any]:
    return server.call("/v1/responses", body)


def test_responses_stream_and_whole_are_equal(server: TestServer) -> None:
    body = ask(QUESTION, store=True)
    payload = whole(server, body)
    (item,) = payload["output"]
    assert EXPECTED in item["content"][0]["text"] and payload["status"] in ("completed", "incomplete")
    assert payload["store"] is False, "without --keep-responses, nothing is kept"
    events = list(server.events("/v1/responses", body))
    kinds = [event["type"] for event in events]
    assert kinds[:2] == ["response.created", "response.in_progress"]
    assert kinds[-1] == f"response.{payload['status']}"
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    text = "".join(e["delta"] for e in events if e["type"] == "response.output_text.delta")
    assert text == item["content"][0]["text"] == events[-1]["response"]["output"][0]["content"][0]["text"]


def test_a_thought_has_the_events_of_an_item(server: TestServer, thinker: str) -> None:
    body = ask("Hello", model=thinker, grammar=THOUGHT)
    reply = whole(server, body)
    thought, message = reply["output"]
    assert [thought["type"], message["type"]] == ["reasoning", "message"]
    assert [part["text"] for part in thought["summary"]] == ["ab cd"]
    assert [part["text"] for part in message["content"]] == ["ef gh"]
    n_thought = reply["usage"]["output_tokens_details"]["reasoning_tokens"]
    assert 0 < reply["usage"]["output_tokens"] - n_thought <= len("ef gh") + 1, "tags must count as thought"
    events = list(server.events("/v1/responses", body))
    of_thought = [e["type"].removeprefix("response.") for e in events if e.get("output_index") == 0]
    assert {kind for kind in of_thought if kind.endswith(".delta")} == {"reasoning_summary_text.delta"}
    assert [kind for kind in of_thought if not kind.endswith(".delta")] == [
        "output_item.added",
        "reasoning_summary_part.added",
        "reasoning_summary_text.done",
        "reasoning_summary_part.done",
        "output_item.done",
    ]
    done = [e["item"] for e in events if e["type"] == "response.output_item.done"]
    assert done == events[-1]["response"]["output"]
    assert [one["content"] for one in done if one["type"] == "message"] == [message["content"]]
    usage = server.call(
        "/v1/chat/completions", {"model": thinker, "messages": [USER], "grammar": THOUGHT, "temperature": 0}
    )["usage"]
    assert usage["completion_tokens_details"]["reasoning_tokens"] == n_thought


CALL = {"type": "function_call", "call_id": "c1", "name": "weather", "arguments": '{"city": "Paris"}'}
OTHER = CALL | {"call_id": "c2"}
RESULT = {"type": "function_call_output", "call_id": "c1", "output": "sun"}
USER = {"role": "user", "content": "Hello"}


def called(content: str, *ids: str, thinking: str = "", name: str = "weather") -> dict[str, Any]:
    function = {"name": name, "arguments": {"city": "Paris"}}
    calls = [{"id": id, "type": "function", "function": function} for id in ids]
    return {"role": "assistant", "content": content, "tool_calls": calls, "thinking": thinking}


def said(kind: str, text: str, **rest: Any) -> dict[str, Any]:
    return {"content": [{"type": kind, "text": text}], **rest}


THOUGHT_ABOUT = {"type": "reasoning", "id": "r", "summary": [{"type": "summary_text", "text": "cd"}]}
MESSAGE = said("output_text", "ab", type="message", role="assistant")
TOLD = {"role": "tool", "content": "sun", "tool_call_id": "c1"}


@pytest.mark.parametrize(
    ("items", "messages"),
    [
        ([MESSAGE, CALL, OTHER, RESULT], [called("ab", "c1", "c2"), TOLD]),
        ([THOUGHT_ABOUT, CALL], [called("", "c1", thinking="cd")]),
        (
            [said("reasoning_text", "cd", type="reasoning", summary=[]), MESSAGE],
            [{"role": "assistant", "content": "ab", "thinking": "cd"}],
        ),
        ([CALL | {"namespace": "sky"}, RESULT], [called("", "c1", name="sky__weather"), TOLD]),
        ([CALL, RESULT | {"output": [{"type": "input_text", "text": "sun"}]}], [called("", "c1"), TOLD]),
    ],
    ids=["a message and its calls", "a summary", "a thought", "a namespace", "a list as output"],
)
def test_items_of_one_turn_are_one_message(
    server: TestServer, thinker: str, items: list[Any], messages: list[Any]
) -> None:
    """The items of one turn give the prompt that Ollama's API gives for the same conversation."""
    options = {"temperature": 0, "num_predict": 8}
    other = server.call(
        "/api/chat",
        {"model": thinker, "messages": [USER, *messages, USER], "stream": False, "options": options},
    )
    mine = whole(server, ask([USER, *items, USER], model=thinker, max_output_tokens=8))
    assert mine["usage"]["input_tokens"] == other["prompt_eval_count"]
    assert mine["usage"]["input_tokens_details"]["cached_tokens"] == other["prompt_eval_count"] - 1
    assert mine["output"][0]["content"][0]["text"] == other["message"]["content"]


def test_a_tool_in_a_namespace_is_called_in_it(server: TestServer) -> None:
    """Tests tools in a namespace: Codex puts the tools of each MCP server into a namespace, and calls name
    the namespace.
    """
    space = {"type": "namespace", "name": "sky", "tools": [TOOL, {"type": "web_search"}]}
    body = ask("Hello", tools=[space], tool_choice="required", max_output_tokens=100)
    reply = whole(server, body)
    (call,) = reply["output"]
    assert (call["type"], call["namespace"], call["name"]) == ("function_call", "sky", "weather")
    assert json.loads(call["arguments"]) == {"city": "Paris"} and reply["tools"] == [space]
    back = [USER, call, RESULT | {"call_id": call["call_id"]}]
    assert whole(server, body | {"input": back, "tool_choice": "auto"})["output"]
    *_, last = server.events("/v1/responses", body)
    (call,) = last["response"]["output"]
    assert (call["namespace"], call["name"]) == ("sky", "weather")


def test_a_custom_tool_is_called_with_a_text(server: TestServer) -> None:
    """Tests custom tools, which are called with a plain text. Codex patches files with such a tool."""
    grammar = {"type": "grammar", "syntax": "lark", "definition": "start: PATCH"}
    tool = {"type": "custom", "name": "apply_patch", "description": "Patches.", "format": grammar}
    call = json.dumps({"name": "apply_patch", "arguments": {"input": "- a"}})
    said = f"root ::= {json.dumps(f'<tool_call>{call}</tool_call>')}"
    body = ask("Hello", tools=[tool], max_output_tokens=100, grammar=said)
    reply = whole(server, body)
    (call,) = reply["output"]
    assert (call["type"], call["name"], call["input"]) == ("custom_tool_call", "apply_patch", "- a")
    assert call["call_id"] and reply["tools"] == [tool]
    events = {event["type"]: event for event in server.events("/v1/responses", body)}
    assert events["response.custom_tool_call_input.done"]["input"] == "- a"
    output = {"type": "custom_tool_call_output", "call_id": call["call_id"], "output": "done"}
    n_with, n_without = (
        whole(server, body | {"input": [USER, call, output], "tools": tools, "grammar": None})["usage"]
        for tools in ([tool], [tool | {"format": {"type": "text"}}])
    )
    assert n_with["input_tokens"] > n_without["input_tokens"], "the prompt must contain the grammar"


def test_a_conversation_is_truncated_on_request(server: TestServer) -> None:
    turns = [{"role": "user", "content": "word " * 600}, USER]
    reply = whole(server, ask(turns, truncation="auto", metadata={"a": "b"}))
    assert reply["timings"]["messages_left_out"] == 1
    assert (reply["truncation"], reply["metadata"]) == ("auto", {"a": "b"})


def test_tools_that_are_not_offered_are_not_listed(server: TestServer) -> None:
    assert whole(server, ask("Hello", tools=[{"type": "web_search"}, TOOL]))["tools"] == [TOOL]
