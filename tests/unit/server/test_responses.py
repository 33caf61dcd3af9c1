# SPDX-License-Identifier: MIT
"""Tests OpenAI's `/v1/responses`: items of a request, items and events of an answer, and continued responses.

A continued response must equal the response to the whole conversation. The number of kept responses is
limited, and only requests with the same API key can continue a response.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import requests

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


# Continued responses

ANN, BOB = "key of ann", "key of bob"


@pytest.fixture(scope="module")
def keeping(store_root: Path) -> Iterator[TestServer]:
    with TestServer(n_responses=3, n_response_bytes=20_000, preload=MODEL) as running:
        yield running


def answered(server: TestServer, given: Any, **rest: Any) -> dict[str, Any]:
    return server.call("/v1/responses", ask(given, **rest))


def test_a_continued_response_equals_that_of_the_whole_conversation(keeping: TestServer) -> None:
    first = answered(keeping, QUESTION, instructions="Be brief.")
    *_, last = keeping.events("/v1/responses", ask(QUESTION, instructions="Be brief."))
    assert (
        first["store"] is True and last["response"]["output"][0]["content"] == first["output"][0]["content"]
    )
    first = last["response"]
    second = answered(keeping, "And len?", previous_response_id=first["id"])
    third = answered(keeping, [{"role": "user", "content": "And sum?"}], previous_response_id=second["id"])
    turns = [{"role": "user", "content": QUESTION}, *first["output"], {"role": "user", "content": "And len?"}]
    whole = answered(keeping, turns, store=False)
    assert second["output"][0]["content"] == whole["output"][0]["content"]
    assert second["usage"]["input_tokens"] == whole["usage"]["input_tokens"], "earlier instructions dropped"
    turns += [*second["output"], {"role": "user", "content": "And sum?"}]
    whole = answered(keeping, turns, store=False)
    assert third["output"][0]["content"] == whole["output"][0]["content"]
    assert third["previous_response_id"] == second["id"] and whole["previous_response_id"] is None


def is_kept(server: TestServer, id: str, **options: Any) -> bool:
    """Returns True if a request can continue the response. The check also counts as a use of the response."""
    asked = ask("x", previous_response_id=id)
    return server.post("/v1/responses/input_tokens", asked, **options).status_code == 200


def test_responses_are_bounded_in_number_and_bytes(keeping: TestServer) -> None:
    answers = [answered(keeping, "x")["id"] for _ in range(3)]
    assert is_kept(keeping, answers[0])
    answers.append(answered(keeping, "x")["id"])
    assert [is_kept(keeping, id) for id in answers] == [True, False, True, True]
    not_kept = answered(keeping, QUESTION, store=False)
    assert not_kept["store"] is False and not is_kept(keeping, not_kept["id"])
    items = [{"role": "user", "content": "x", "unread": "y" * 15_000}]
    large = answered(keeping, items)
    assert large["store"] is True and is_kept(keeping, large["id"])
    assert [is_kept(keeping, id) for id in answers].count(True) < 3
    items[0]["unread"] += "y" * 5_000
    assert answered(keeping, items)["store"] is False, "a response above the limit must not be kept"
    assert is_kept(keeping, large["id"])


def test_another_key_can_neither_read_nor_evict_the_responses(store_root: Path) -> None:
    with TestServer(n_responses=1, keys=(ANN, BOB), preload=MODEL) as server:

        def post(key: str, given: dict[str, Any]) -> requests.Response:
            return server.post("/v1/responses", given, headers={"Authorization": f"Bearer {key}"})

        of_ann = post(ANN, ask(QUESTION)).json()["id"]
        refused = post(BOB, ask("x", previous_response_id=of_ann)).json()
        assert refused["error"]["code"] == "previous_response_not_found"
        for _ in range(3):
            assert post(BOB, ask("x")).status_code == 200
        assert is_kept(server, of_ann, headers={"X-Api-Key": ANN})


def test_a_conversation_does_not_grow_beyond_the_limit_of_a_body(store_root: Path) -> None:
    with TestServer(n_responses=9, n_body=4_000, preload=MODEL) as server:
        reply = answered(server, [{"role": "user", "content": "x", "unread": "y" * 3_700}])
        refused = server.post("/v1/responses", ask("x", previous_response_id=reply["id"]))
        assert refused.status_code == 413 and "accepts at most 4000" in refused.json()["error"]["message"]


def test_input_tokens_equal_those_of_the_answer(keeping: TestServer) -> None:
    asked = ask(QUESTION, instructions="Be brief.", tools=[TOOL])
    reply = keeping.call("/v1/responses", asked)
    counted = keeping.call("/v1/responses/input_tokens", asked)
    assert counted == {"object": "response.input_tokens", "input_tokens": reply["usage"]["input_tokens"]}
    more = ask("And len?", previous_response_id=reply["id"])
    n_more = keeping.call("/v1/responses/input_tokens", more)["input_tokens"]
    assert n_more == keeping.call("/v1/responses", more)["usage"]["input_tokens"]
    assert keeping.post("/v1/responses/input_tokens", ask([])).status_code == 400
