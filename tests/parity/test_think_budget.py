# SPDX-License-Identifier: MIT
"""Tests the limit on thinking. The limit must end the thought at the same token whatever is drafted, and an
answer must follow.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from eaglecpp import Engine
from eaglecpp.chat.formats import GPT_OSS
from eaglecpp.chat.think_budget import ThinkBudget
from helpers.http_server import DRAFT, TARGET
from helpers.tiny_arch import make_hybrid

TURNS = "{% for message in messages %}{{ message.content }}\n{% endfor %}"
OPENED = TURNS + '<think>{{ "\n" }}'  # a template whose prompt opens the thought
# a template after which the model may open a thought
FREE = TURNS + "{% if false %}<think></think>{% endif %}"
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


def test_a_shorter_thought_is_not_changed(engine: Engine) -> None:
    options: dict[str, Any] = {"template": OPENED, "max_tokens": 40, "temperature": 0.0}
    assert chat(engine, think_budget=40, **options).tokens == chat(engine, **options).tokens
    grammar = 'root ::= "ab</think>cd"'
    texts = [chat(engine, think_budget=n, grammar=grammar, **options).text for n in (-1, 20)]
    assert texts[0] == texts[1] == "ab</think>cd"


def test_a_closed_thought_is_learnt_as_it_was_read(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    kept: list[Any] = []
    monkeypatch.setattr(engine.shared, "on_answer", lambda *answer: kept.append(answer))
    said = chat(engine, template=OPENED, think_budget=5, max_tokens=40, temperature=0.0)
    assert [[*map(list, one)] for one in kept] == [[list(said.prompt_tokens), list(said.tokens)]]


@pytest.mark.parametrize("closing", ["<|end|>", ""])
def test_a_thinking_mark_in_an_answer_is_text(closing: str) -> None:
    """Tests that a thinking mark in an answer is text, with gpt-oss's marks. A model may leave out the mark
    that ends a message.
    """
    text = (
        f"<|channel|>analysis<|message|>ab{closing}<|start|>assistant<|channel|>final<|message|>A thought "
        "begins with <|channel|>analysis<|message|> and ends with an end. That is all there is to say on it."
    )
    budget = ThinkBudget(20, GPT_OSS, "any", "")
    for i in range(0, len(text), 4):
        budget.take(text[i : i + 4])
        assert not budget.is_spent


def test_no_thinking_begins_the_answer_at_once(engine: Engine) -> None:
    found = chat(engine, template=OPENED, max_tokens=20, think_budget=0)
    assert not found.message.thinking and found.message.content
    assert engine.detokenize(found.prompt_tokens).endswith("<think>\n\n</think>\n\n")


@pytest.mark.parametrize("template", [OPENED, FREE])
@pytest.mark.parametrize("strategy", ["off", "auto"])
def test_a_form_holds_after_a_closed_thought(engine: Engine, template: str, strategy: str) -> None:
    found = chat(
        engine, template=template, think=True, json_schema=SCHEMA, think_budget=6, max_tokens=200,
        strategy=strategy, seed=5,
    )  # fmt: skip
    assert json.loads(found.message.content) == {"city": "Paris"}
    assert len(engine.tokenize(found.message.thinking, add_bos=False)) <= 8


def test_a_limit_of_the_answer_takes_precedence(engine: Engine) -> None:
    for n in range(1, 14):
        found = chat(engine, template=OPENED, max_tokens=n, think_budget=5, temperature=0.0)
        assert (len(found.tokens), found.finish_reason) == (n, "length")


@pytest.mark.parametrize("strategy", ["off", "auto"])
@pytest.mark.parametrize("stop", ["</think>", "k>\n\n"])
def test_a_stop_string_in_the_closing_text_ends_the_answer(engine: Engine, stop: str, strategy: str) -> None:
    options: dict[str, Any] = {"template": OPENED, "max_tokens": 60, "temperature": 0.0}
    found = chat(engine, think_budget=5, stop=[stop], strategy=strategy, **options)
    assert (found.finish_reason, found.stopped_by) == ("stop", stop)
    assert stop in engine.detokenize(found.tokens[-8:]) and stop not in engine.detokenize(found.tokens[:-1])


@pytest.mark.parametrize("strategy", ["off", "auto"])
def test_an_answer_does_not_exceed_the_context(engine: Engine, strategy: str) -> None:
    for n_words in range(493, 506):
        turns = [{"role": "user", "content": " a" * n_words}]
        with engine.session() as session:
            found = session.chat(turns, template=OPENED, think_budget=5, strategy=strategy, ignore_eos=True)
        assert (len(found.prompt_tokens) + len(found.tokens), found.finish_reason) == (512, "length")


@pytest.mark.parametrize("is_recurrent", [False, True])
def test_a_prompt_is_read_once(tmp_path: Path, is_recurrent: bool) -> None:
    """The prompt must be read only once, because a recurrent state cannot go back over rounds without
    snapshots.
    """
    turns = [{"role": "user", "content": " def f(): return 1" * 40}]
    target = make_hybrid(tmp_path).target if is_recurrent else TARGET
    read: list[list[int]] = []
    with Engine.open(target, n_ctx=1024, n_batch=64) as engine:
        for budget in (-1, 5):
            read.append([])
            engine.chat(
                turns, template=OPENED, think_budget=budget, max_tokens=60, cache_prompt=False,
                on_prefill=lambda n, _: read[-1].append(n), ignore_eos=True,
            )  # fmt: skip
    assert len(read[0]) > 4 and read[0] == read[1]
