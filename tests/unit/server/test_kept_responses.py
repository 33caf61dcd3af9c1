# SPDX-License-Identifier: MIT
"""Tests requests to `/v1/responses` that continue a kept response. The answer must be the same as for the
whole conversation. The number of kept responses is limited, and only requests with the same API key can
continue a response.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import requests

from helpers.http_server import CITY, MODEL, QUESTION, TestServer

TOOL = {"type": "function", "name": "weather", "parameters": CITY}
ANN, BOB = "key of ann", "key of bob"


@pytest.fixture(scope="module")
def keeping(store_root: Path) -> Iterator[TestServer]:
    with TestServer(n_responses=3, n_response_bytes=20_000, preload=MODEL) as running:
        yield running


def body(given: Any, **rest: Any) -> dict[str, Any]:
    return {"model": MODEL, "input": given, "max_output_tokens": 8, "temperature": 0} | rest


def ask(server: TestServer, given: Any, **rest: Any) -> dict[str, Any]:
    return server.call("/v1/responses", body(given, **rest))


def test_a_continued_response_equals_that_of_the_whole_conversation(keeping: TestServer) -> None:
    first = ask(keeping, QUESTION, instructions="Be brief.")
    *_, last = keeping.events("/v1/responses", body(QUESTION, instructions="Be brief."))
    assert (
        first["store"] is True and last["response"]["output"][0]["content"] == first["output"][0]["content"]
    )
    first = last["response"]
    second = ask(keeping, "And len?", previous_response_id=first["id"])
    third = ask(keeping, [{"role": "user", "content": "And sum?"}], previous_response_id=second["id"])
    turns = [{"role": "user", "content": QUESTION}, *first["output"], {"role": "user", "content": "And len?"}]
    whole = ask(keeping, turns, store=False)
    assert second["output"][0]["content"] == whole["output"][0]["content"]
    assert second["usage"]["input_tokens"] == whole["usage"]["input_tokens"], "earlier instructions dropped"
    turns += [*second["output"], {"role": "user", "content": "And sum?"}]
    whole = ask(keeping, turns, store=False)
    assert third["output"][0]["content"] == whole["output"][0]["content"]
    assert third["previous_response_id"] == second["id"] and whole["previous_response_id"] is None


def is_kept(server: TestServer, id: str, **options: Any) -> bool:
    """Returns True if a request can continue the response. The check also counts as a use of the response."""
    asked = body("x", previous_response_id=id)
    return server.post("/v1/responses/input_tokens", asked, **options).status_code == 200


def test_responses_are_bounded_in_number_and_bytes(keeping: TestServer) -> None:
    answers = [ask(keeping, "x")["id"] for _ in range(3)]
    assert is_kept(keeping, answers[0])
    answers.append(ask(keeping, "x")["id"])
    assert [is_kept(keeping, id) for id in answers] == [True, False, True, True]
    not_kept = ask(keeping, QUESTION, store=False)
    assert not_kept["store"] is False and not is_kept(keeping, not_kept["id"])
    items = [{"role": "user", "content": "x", "unread": "y" * 15_000}]
    large = ask(keeping, items)
    assert large["store"] is True and is_kept(keeping, large["id"])
    assert [is_kept(keeping, id) for id in answers].count(True) < 3
    items[0]["unread"] += "y" * 5_000
    assert ask(keeping, items)["store"] is False, "a response above the limit must not be kept"
    assert is_kept(keeping, large["id"])


def test_another_key_can_neither_read_nor_evict_the_responses(store_root: Path) -> None:
    with TestServer(n_responses=1, keys=(ANN, BOB), preload=MODEL) as server:

        def post(key: str, given: dict[str, Any]) -> requests.Response:
            return server.post("/v1/responses", given, headers={"Authorization": f"Bearer {key}"})

        of_ann = post(ANN, body(QUESTION)).json()["id"]
        refused = post(BOB, body("x", previous_response_id=of_ann)).json()
        assert refused["error"]["code"] == "previous_response_not_found"
        for _ in range(3):
            assert post(BOB, body("x")).status_code == 200
        assert is_kept(server, of_ann, headers={"X-Api-Key": ANN})


def test_a_conversation_does_not_grow_beyond_the_limit_of_a_body(store_root: Path) -> None:
    with TestServer(n_responses=9, n_body=4_000, preload=MODEL) as server:
        reply = ask(server, [{"role": "user", "content": "x", "unread": "y" * 3_700}])
        refused = server.post("/v1/responses", body("x", previous_response_id=reply["id"]))
        assert refused.status_code == 413 and "accepts at most 4000" in refused.json()["error"]["message"]


def test_input_tokens_equal_those_of_the_answer(keeping: TestServer) -> None:
    asked = body(QUESTION, instructions="Be brief.", tools=[TOOL])
    reply = keeping.call("/v1/responses", asked)
    counted = keeping.call("/v1/responses/input_tokens", asked)
    assert counted == {"object": "response.input_tokens", "input_tokens": reply["usage"]["input_tokens"]}
    more = body("And len?", previous_response_id=reply["id"])
    n_more = keeping.call("/v1/responses/input_tokens", more)["input_tokens"]
    assert n_more == keeping.call("/v1/responses", more)["usage"]["input_tokens"]
    assert keeping.post("/v1/responses/input_tokens", body([])).status_code == 400
