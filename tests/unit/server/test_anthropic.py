# SPDX-License-Identifier: MIT
"""Tests Anthropic's `/v1/messages`: blocks of a request, and blocks and events of an answer."""

from __future__ import annotations

from typing import Any

import pytest

from helpers.http_server import CITY, MODEL, QUESTION, THOUGHT, TestServer

TOOL = {"name": "weather", "input_schema": CITY}
CALL = {"type": "tool_use", "id": "c1", "name": "weather", "input": {"city": "Paris"}}


def ask(content: Any, **rest: Any) -> dict[str, Any]:
    return {"model": MODEL, "max_tokens": 40, "temperature": 0, "messages": [turn(content)]} | rest


def turn(content: Any, role: str = "user") -> dict[str, Any]:
    return {"role": role, "content": content}


def whole(server: TestServer, body: dict[str, Any], path: str = "/v1/messages") -> dict[str, Any]:
    return server.call(path, body)


def test_messages_stream_and_whole_are_equal(server: TestServer) -> None:
    body = ask([{"type": "text", "text": QUESTION}], system="You help.")
    reply = whole(server, body)
    (block,) = reply["content"]
    assert block["type"] == "text" and reply["stop_reason"] in ("end_turn", "max_tokens")
    assert reply["usage"]["output_tokens"] > 0
    events = list(server.events("/v1/messages", body))
    begin, end = (next(e for e in events if e["type"] == kind) for kind in ("message_start", "message_delta"))
    counts = ("input_tokens", "cache_read_input_tokens", "cache_creation_input_tokens")
    assert [begin["message"]["usage"][n] for n in counts] == [end["usage"][n] for n in counts]
    kinds = [event["type"] for event in events]
    assert (kinds[0], kinds[-2:]) == ("message_start", ["message_delta", "message_stop"])
    assert kinds.count("content_block_start") == kinds.count("content_block_stop") == 1
    text = "".join(e["delta"]["text"] for e in events if e["type"] == "content_block_delta")
    assert text == block["text"]
    count = whole(server, body, "/v1/messages/count_tokens")["input_tokens"]
    assert count == reply["usage"]["input_tokens"] + reply["usage"]["cache_read_input_tokens"]


def test_the_start_counts_tokens_from_another_slot(server: TestServer, slow_rounds: None) -> None:
    body = ask("Join the paths of a folder. " * 9, grammar="root ::= [a-z ]+")
    running = iter(server.events("/v1/messages", body))
    while next(running)["type"] != "content_block_delta":
        pass
    usage = {e["type"]: e.get("message", e).get("usage") for e in server.events("/v1/messages", body)}
    n_cached = usage["message_start"]["cache_read_input_tokens"]
    assert n_cached == usage["message_delta"]["cache_read_input_tokens"] > 16
    assert [*running][-1]["type"] == "message_stop"


def test_messages_call_tools(server: TestServer) -> None:
    reply = whole(server, ask("Hello", max_tokens=100, tools=[TOOL], tool_choice={"type": "any"}))
    (block,) = reply["content"]
    assert (block["type"], block["input"], reply["stop_reason"]) == (
        "tool_use",
        {"city": "Paris"},
        "tool_use",
    )


def test_a_stop_sequence_is_the_reason(server: TestServer) -> None:
    assert whole(server, ask(QUESTION))["content"][0]["text"].startswith("os.path.join(a")
    body = ask(QUESTION, stop_sequences=["never", ".join("])
    reply = whole(server, body)
    assert (reply["stop_reason"], reply["stop_sequence"]) == ("stop_sequence", ".join(")
    assert reply["content"][0]["text"] == "os.path"
    (end,) = [e["delta"] for e in server.events("/v1/messages", body) if e["type"] == "message_delta"]
    assert end == {"stop_reason": "stop_sequence", "stop_sequence": ".join("}
    reply = whole(server, ask("What is len?", max_tokens=100, stop_sequences=["never"]))
    assert (reply["stop_reason"], reply["stop_sequence"]) == ("end_turn", None)


def test_a_thought_is_a_signed_block(server: TestServer, thinker: str) -> None:
    body = ask("Hello", model=thinker, grammar=THOUGHT)
    reply = whole(server, body)
    thought, text = reply["content"]
    assert (thought["type"], thought["thinking"], text["text"]) == ("thinking", "ab cd", "ef gh")
    assert thought["signature"]
    assert 0 < reply["usage"]["output_tokens_details"]["thinking_tokens"] < reply["usage"]["output_tokens"]
    events = [e for e in server.events("/v1/messages", body) if e.get("index") == 0]
    assert events[0]["content_block"] == {"type": "thinking", "thinking": "", "signature": ""}
    assert [e["delta"]["type"] for e in events[1:-1]][-2:] == ["thinking_delta", "signature_delta"]
    assert events[-2]["delta"]["signature"] and events[-1]["type"] == "content_block_stop"
    back = [*body["messages"], turn(reply["content"], "assistant"), turn("More")]
    assert whole(server, {**body, "messages": back})["content"]


TEXTS = [{"type": "text", "text": "one "}, {"type": "text", "text": "two"}]


@pytest.mark.parametrize("place", ["user", "tool_result", "empty_thought"])
def test_blocks_are_read_as_their_text(server: TestServer, thinker: str, place: str) -> None:
    def messages(content: Any) -> list[Any]:
        if place == "user":
            return [turn(content)]
        if place == "empty_thought":
            thoughts = [{"type": "thinking", "thinking": None}] if isinstance(content, list) else []
            return [turn("Hello"), turn([*thoughts, *TEXTS], "assistant"), turn("More")]
        result = {"type": "tool_result", "tool_use_id": "c1", "content": content}
        return [turn("Hello"), turn([CALL], "assistant"), turn([result])]

    same_prompt(server, thinker, messages(TEXTS), messages("one two"))


def same_prompt(server: TestServer, model: str, mine: list[Any], other: list[Any]) -> None:
    """Checks that two conversations give the same prompt: the second conversation finds the whole prompt of
    the first in the cache.
    """
    answers = [whole(server, ask("", model=model, max_tokens=8, messages=one)) for one in (mine, other)]
    first, second = (one["usage"] for one in answers)
    n_prompt = first["input_tokens"] + first["cache_read_input_tokens"]
    assert (second["input_tokens"], second["cache_read_input_tokens"]) == (1, n_prompt - 1)
    assert answers[0]["content"] == answers[1]["content"]


@pytest.mark.parametrize("before", ["", "They quote a header:\n"])
def test_a_changing_client_header_keeps_the_prompt(server: TestServer, before: str) -> None:
    """Tests the changing header at the beginning of Claude Code's system prompt, which must not change the
    prompt. At other positions, such a header is ordinary text.
    """
    text = "You help with code. " * 20
    usages = []
    for value in ("a1b2c", "d3e4f"):
        line = f"{before}x-anthropic-billing-header: cc_version=2.1; cch={value};"
        header = {"type": "text", "text": line}
        body = ask("What?", system=[header, {"type": "text", "text": text}], max_tokens=2)
        usages.append(whole(server, body)["usage"])
    cached = usages[1]["cache_read_input_tokens"]
    n_reusable = 0.99 * (cached + usages[1]["input_tokens"]) - 1
    assert cached < n_reusable / 2 if before else cached >= n_reusable
