# SPDX-License-Identifier: MIT
"""Tests the field of each API that limits thinking. An answer follows the thought, and `usage` counts the
tokens of the thought and the answer.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from helpers.http_server import TestServer, store

TURNS = [{"role": "user", "content": "What is len?"}]
BUDGET = {"type": "enabled", "budget_tokens": 3}
SEED = {"seed": 4, "temperature": 0.8}
TEMPLATE = '{% for m in messages %}{{ m.content }}\n{% endfor %}<think>{{ "\\n" }}'


@pytest.fixture(scope="module")
def thinker(server: TestServer) -> Iterator[str]:
    store("ponders", f'TEMPLATE """{TEMPLATE}"""\n#eaglecpp: think_budget 5\n')
    yield "ponders"
    server.delete("ponders")


def parts(found: dict[str, Any]) -> tuple[str, str]:
    """Returns the thinking and the answer from a result of any API."""
    if "choices" in found:
        message = found["choices"][0]["message"]
        return message.get("reasoning_content", ""), message["content"]
    if "message" in found:
        return found["message"].get("thinking", ""), found["message"]["content"]
    if "output" in found:
        texts = {one["type"]: (one.get("content") or one["summary"])[0]["text"] for one in found["output"]}
        return texts.get("reasoning", ""), texts["message"]
    blocks = {one["type"]: one.get("thinking") or one.get("text") for one in found["content"]}
    return blocks.get("thinking") or "", blocks["text"]


@pytest.mark.parametrize(
    ("path", "fields", "n"),
    [
        ("/v1/chat/completions", {"messages": TURNS, "reasoning_budget_tokens": 3}, 3),
        ("/v1/chat/completions", {"messages": TURNS, "thinking_budget_tokens": 0}, 0),
        ("/v1/chat/completions", {"messages": TURNS, "reasoning": {"max_tokens": 4}}, 4),
        ("/v1/chat/completions", {"messages": TURNS}, 5),
        ("/v1/responses", {"input": TURNS, "reasoning": {"max_tokens": 3}}, 3),
        ("/v1/messages", {"messages": TURNS, "max_tokens": 60, "thinking": BUDGET}, 3),
        ("/api/chat", {"messages": TURNS, "stream": False, "options": {"think_budget": 3, **SEED}}, 3),
    ],
)  # fmt: skip
def test_thinking_ends_at_its_budget(
    server: TestServer, thinker: str, path: str, fields: dict[str, Any], n: int
) -> None:
    texts = []
    for draft in (True, False):
        body = {"model": thinker, "draft": draft, **SEED, **fields}
        answer = server.post(path, body)
        assert answer.status_code == 200, answer.text
        thought, text = parts(answer.json())
        assert bool(thought) is (n > 0) and text and "think>" not in thought + text
        tokens = server.post("/tokenize", {"model": thinker, "content": thought}).json()["tokens"]
        assert len(tokens) <= n + 1
        texts.append((thought, text))
    assert texts[0] == texts[1]


def test_usage_and_timings_count_the_closing_text(server: TestServer, thinker: str) -> None:
    for n_max in range(1, 9):
        body = {"model": thinker, "messages": TURNS, "max_tokens": n_max, "thinking_budget_tokens": 2, **SEED}
        answer = server.post("/v1/chat/completions", body).json()
        if answer["choices"][0]["finish_reason"] == "length":
            assert answer["usage"]["completion_tokens"] == answer["timings"]["predicted_n"] == n_max


def test_an_invalid_budget_is_refused(server: TestServer, thinker: str) -> None:
    body = {"model": thinker, "messages": TURNS, "max_tokens": 9, "thinking": {"budget_tokens": "many"}}
    answer = server.post("/v1/messages", body)
    assert answer.status_code == 400 and "thinking budget: expected tokens" in answer.text
