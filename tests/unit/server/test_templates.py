# SPDX-License-Identifier: MIT
"""Other people's templates and clients over HTTP: what a conversation becomes, and whose it may change."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from helpers.http_server import WEATHER, TestServer, store

TEMPLATES = Path(__file__).parents[2] / "templates"
NAMES = {"qwen35": "Qwen3.5-4B", "gemma3": "gemma-3", "idefics3": "idefics3", "mistral": "mistral-7b-v0.3",
         "nemo": "mistralai-Mistral-Nemo-Instruct-2407", "llama31": "meta-llama-Llama-3.1-8B-Instruct",
         "gpt-oss": "openai-gpt-oss-120b", "smollm": "smollm2"}  # fmt: skip
OWN = {
    "moody": "{% for m in messages %}{{ m.content }}{% endfor %} [{{ mood }}]",
    "always": "{% for m in messages %}{{ m.content }}\n{% endfor %}{{ '<think>\\n' }}",  # as QwQ's
}
FORM = {
    "type": "object",
    "properties": {"n": {"enum": [17]}},
    "required": ["n"],
    "additionalProperties": False,
}


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TestServer]:
    """A server of the demo model with other templates."""
    texts = {name: (TEMPLATES / f"{file}.jinja").read_text(encoding="utf-8") for name, file in NAMES.items()}
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("EAGLECPP_MODELS", str(tmp_path_factory.mktemp("models")))
        for name, text in (texts | OWN).items():
            store(name, f'TEMPLATE """{text}"""')
        with TestServer(files={}, draft=None) as running:
            yield running


def turns(*said: str) -> list[dict[str, Any]]:
    """Messages, each written as "role: content"."""
    return [dict(zip(("role", "content"), one.split(": ", 1), strict=True)) for one in said]


def prompt(server: TestServer, model: str, messages: Sequence[Any], **rest: Any) -> str:
    answer = server.post("/apply-template", {"model": model, "messages": messages, **rest})
    assert answer.status_code == 200, answer.text
    return str(answer.json()["prompt"])


def chat(server: TestServer, model: str, messages: Sequence[Any], **rest: Any) -> dict[str, Any]:
    body = {"model": model, "messages": messages, "temperature": 0, "max_tokens": 40, **rest}
    answer = server.post("/v1/chat/completions", body)
    assert answer.status_code == 200, answer.text
    return dict(answer.json())


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


def test_what_is_put_elsewhere_is_said(models: TestServer) -> None:
    asked = turns("system: be brief", "user: hello")
    (notice,) = chat(models, "mistral", asked, max_tokens=1)["timings"]["notices"]
    assert "takes no system prompt" in notice and "be brief\n\nhello" in prompt(models, "mistral", asked)
    assert chat(models, "qwen35", asked, max_tokens=1)["timings"]["notices"] == []
    (notice,) = chat(models, "smollm", asked, max_tokens=1, tools=[WEATHER])["timings"]["notices"]
    assert "knows no tools" in notice and "weather" in prompt(models, "smollm", asked, tools=[WEATHER])


@pytest.mark.parametrize("model", ["qwen35", "always", "gpt-oss", "smollm"])
@pytest.mark.parametrize("think", [None, False])
def test_json_is_the_answer(models: TestServer, model: str, think: bool | None) -> None:
    """Also of templates that always open a thought, and of those whose answers have channels."""
    rest = {} if think is None else {"think": think}
    body = {"model": model, "messages": turns("user: hello"), "format": FORM, "stream": False, **rest}
    told = models.post("/api/chat", {**body, "options": {"temperature": 0, "num_predict": 60}}).json()
    assert json.loads(told["message"]["content"]) == {"n": 17} and "thinking" not in told["message"]
    form = {"type": "json_schema", "json_schema": {"name": "x", "schema": FORM}}
    values = {} if think is None else {"chat_template_kwargs": {"enable_thinking": think}}
    (choice,) = chat(models, model, turns("user: hello"), response_format=form, **values)["choices"]
    assert json.loads(choice["message"]["content"]) == {"n": 17}


@pytest.mark.parametrize("model", ["qwen35", "gpt-oss", "mistral", "nemo", "llama31", "gemma3"])
def test_a_forced_call_is_made_and_its_result_comes_back(models: TestServer, model: str) -> None:
    asked = turns("user: weather?")
    forced = chat(models, model, asked, tools=[WEATHER], tool_choice="required", max_tokens=99, num_ctx=1024)
    message = forced["choices"][0]["message"]
    (call,) = message["tool_calls"]
    assert json.loads(call["function"]["arguments"]) == {"city": "Paris"}
    result = {"role": "tool", "tool_call_id": call["id"], "content": "it is sunny"}
    assert "it is sunny" in prompt(models, model, [*asked, message, result], tools=[WEATHER])
    other = {**call, "id": "call_of_another_server"}
    twice = [*asked, {**message, "tool_calls": [call, other]}, result,
             {**result, "tool_call_id": other["id"], "content": "it rains"}]  # fmt: skip
    text = prompt(models, model, twice, tools=[WEATHER])
    assert text.index("it is sunny") < text.index("it rains") and text.count("Paris") >= 2


@pytest.mark.parametrize("model", list(NAMES))
def test_histories_of_any_client_are_taken(models: TestServer, model: str) -> None:
    said = turns("system: one", "user: two", "user: three", "assistant: four", "system: five", "user: six")
    text = prompt(models, model, said)
    assert all(message["content"] in text for message in said)


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


def test_the_template_that_is_shown_is_the_one_that_is_used(models: TestServer) -> None:
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


def test_an_answer_that_a_request_begins_goes_on(models: TestServer) -> None:
    text = prompt(models, "qwen35", turns("user: hello", "assistant: Sure"))
    assert text.endswith("<think>\n\n</think>\n\nSure")
    begun = turns("user: hello", "assistant: <think>\nI wonder")
    assert prompt(models, "qwen35", begun).endswith("assistant\n<think>\nI wonder")
