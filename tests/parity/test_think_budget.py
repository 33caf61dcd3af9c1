# SPDX-License-Identifier: MIT
"""A limit on thinking ends the thought at that token, whatever was drafted, and an answer follows."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from eaglecpp import Engine
from helpers.http_server import DRAFT, TARGET

TURNS = "{% for message in messages %}{{ message.content }}\n{% endfor %}"
OPENED = TURNS + '<think>{{ "\n" }}'  # the prompt opens the thought
FREE = TURNS + "{% if false %}<think></think>{% endif %}"  # the model opens it, or does not
SCHEMA = {"type": "object", "properties": {"city": {"enum": ["Paris"]}}, "required": ["city"]}
QUESTION = [{"role": "user", "content": "What does os.path.join do?"}]


@pytest.fixture(scope="module")
def engine() -> Iterator[Engine]:
    with Engine.open(TARGET, draft=DRAFT, n_ctx=512) as opened:
        yield opened


def chat(engine: Engine, **options: Any) -> Any:
    with engine.session() as session:
        return session.chat(QUESTION, **options)


@pytest.mark.parametrize("strategy", ["auto", "chain:4", "tree:k=3,depth=4,nodes=12"])
@pytest.mark.parametrize("sampling", [{"temperature": 0.0}, {"temperature": 0.8, "seed": 3}])
@pytest.mark.parametrize("budget", [1, 3, 7])
def test_the_text_is_that_without_drafting(
    engine: Engine, strategy: str, sampling: dict[str, Any], budget: int
) -> None:
    options = {"template": OPENED, "max_tokens": 60, "think_budget": budget, "n_probs": 1, **sampling}
    plain, drafted = (chat(engine, strategy=one, **options) for one in ("off", strategy))
    assert drafted.tokens == plain.tokens and drafted.text == plain.text
    assert plain.text.count("</think>") == 1 and plain.message.thinking and plain.message.content
    free = chat(engine, strategy="off", template=OPENED, max_tokens=60, **sampling)
    assert plain.tokens[:budget] == free.tokens[:budget]
    closing = engine.tokenize("\n</think>\n\n", add_bos=False)
    assert plain.tokens[budget : budget + len(closing)] == closing
    assert plain.timings.predicted_n == len(plain.tokens) == len(plain.logprobs)
    assert plain.timings.prompt_n + plain.timings.reused_n == len(plain.prompt_tokens)


def test_a_thought_that_is_shorter_is_left_alone(engine: Engine) -> None:
    options: dict[str, Any] = {"template": OPENED, "max_tokens": 40, "temperature": 0.0}
    assert chat(engine, think_budget=40, **options).tokens == chat(engine, **options).tokens
    grammar = 'root ::= "ab</think>cd"'
    texts = [chat(engine, think_budget=n, grammar=grammar, **options).text for n in (-1, 20)]
    assert texts[0] == texts[1] == "ab</think>cd"


def test_no_thinking_begins_the_answer_at_once(engine: Engine) -> None:
    found = chat(engine, template=OPENED, max_tokens=20, think_budget=0)
    assert not found.message.thinking and found.message.content
    assert engine.detokenize(found.prompt_tokens).endswith("<think>\n\n</think>\n\n")


@pytest.mark.parametrize("template", [OPENED, FREE])
@pytest.mark.parametrize("strategy", ["off", "auto"])
def test_a_form_holds_behind_a_thought_that_was_closed(engine: Engine, template: str, strategy: str) -> None:
    found = chat(
        engine, template=template, think=True, json_schema=SCHEMA, think_budget=6, max_tokens=200,
        strategy=strategy, seed=5,
    )  # fmt: skip
    assert json.loads(found.message.content) == {"city": "Paris"}
    assert len(engine.tokenize(found.message.thinking, add_bos=False)) <= 8


def test_a_limit_of_the_answer_comes_first(engine: Engine) -> None:
    for n in range(1, 14):
        found = chat(engine, template=OPENED, max_tokens=n, think_budget=5, temperature=0.0)
        assert (len(found.tokens), found.finish_reason) == (n, "length")
