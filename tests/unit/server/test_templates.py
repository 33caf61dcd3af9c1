# SPDX-License-Identifier: MIT
"""Tests untrusted templates and clients over HTTP: the resulting prompts, and that a request does not affect
other requests. Also tests the field of each API that limits thinking.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pytest

from helpers.chat_templates import family_template
from helpers.http_server import TestServer, store

NAMES = {"qwen35": "Qwen3.5-4B", "gemma3": "gemma-3"}
OWN = {"moody": "{% for m in messages %}{{ m.content }}{% endfor %} [{{ mood }}]"}


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TestServer]:
    """Starts a server of the demo model with other templates."""
    texts = {name: family_template(file).text for name, file in NAMES.items()}
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("EAGLECPP_MODELS", str(tmp_path_factory.mktemp("models")))
        for name, text in (texts | OWN).items():
            store(name, f'TEMPLATE """{text}"""')
        with TestServer(files={}, draft=None) as running:
            yield running


def turns(*said: str) -> list[dict[str, Any]]:
    """Returns messages, each given as "role: content"."""
    return [dict(zip(("role", "content"), one.split(": ", 1), strict=True)) for one in said]


def prompt(server: TestServer, model: str, messages: Sequence[Any], **rest: Any) -> str:
    return str(server.call("/apply-template", {"model": model, "messages": messages, **rest})["prompt"])


def chat(server: TestServer, model: str, messages: Sequence[Any], **rest: Any) -> dict[str, Any]:
    body = {"model": model, "messages": messages, "temperature": 0, "max_tokens": 40, **rest}
    return dict(server.call("/v1/chat/completions", body))


@pytest.mark.parametrize("model", ["qwen35", "gemma3"])
def test_no_request_changes_the_prompt_of_another(models: TestServer, model: str) -> None:
    plain = turns("system: be brief", "user: hello")
    before = prompt(models, model, plain)
    n_before = chat(models, model, plain, max_tokens=1)["usage"]["prompt_tokens"]
    two = turns("system: be brief", "system: be kind", "user: hello")
    text = prompt(models, model, two)
    assert text.index("be brief") < text.index("be kind") < text.index("hello")
    chat(models, model, two, max_tokens=1)
    chat(models, model, turns("user: a", "system: be kind", "user: hello"), max_tokens=1)
    assert prompt(models, model, plain) == before
    assert chat(models, model, plain, max_tokens=1)["usage"]["prompt_tokens"] == n_before


def test_variables_of_a_template_are_set_by_a_request(models: TestServer) -> None:
    asked = turns("user: hello")
    for value, shown in (("glad", "glad"), (3, "3"), (True, "True"), (None, "None")):
        values = {"mood": value, "unknown": "x"}
        text = prompt(models, "moody", asked, chat_template_kwargs=values)
        assert text == f"hello [{shown}]"
        n_prompt = chat(models, "moody", asked, max_tokens=1, chat_template_kwargs=values)["usage"]
        tokens = models.post("/tokenize", {"model": "moody", "content": text, "add_special": True}).json()
        assert n_prompt["prompt_tokens"] == len(tokens["tokens"])
    many = {str(i): i for i in range(257)}
    for values in ({"mood": {"a": 1}}, {"mood": ["a"]}, {"messages": "x"}, {"chat_template": "x"}, many):
        body = {"model": "moody", "messages": asked, "chat_template_kwargs": values}
        for path in ("/v1/chat/completions", "/apply-template"):
            answer = models.post(path, body)
            assert answer.status_code == 400 and "chat_template_kwargs" in answer.json()["error"]["message"]


def test_the_shown_template_is_the_used_one(models: TestServer) -> None:
    for rest in (
        {},
        {"chat_template_kwargs": {"enable_thinking": False}},
        {"response_format": {"type": "json_object"}},
    ):
        text = prompt(models, "qwen35", turns("user: hello"), **rest)
        assert text.endswith("<think>\n" if not rest else "</think>\n\n")
        used = chat(models, "qwen35", turns("user: hello"), max_tokens=1, **rest)["usage"]["prompt_tokens"]
        body = {"model": "qwen35", "content": text, "add_special": True}
        assert used == len(models.post("/tokenize", body).json()["tokens"])


# Budgets of thinking

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
