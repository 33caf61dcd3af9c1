# SPDX-License-Identifier: MIT
"""Tests several prompts or conversations in one call. The answers come in the order of the prompts, and are
the same as for one prompt at a time.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Future
from typing import Any

import pytest

from eaglecpp import Engine
from eaglecpp.engine.scheduler import Scheduler
from eaglecpp.errors import ContextFullError
from helpers.models import Models

PROMPTS = ["ab cd", "the", "a longer prompt than the others", "xyz"]
GREEDY: dict[str, Any] = {"max_tokens": 12, "temperature": 0.0}
TALK = [{"role": "user", "content": "Hi"}]


@pytest.fixture(scope="module", params=[1, 3])
def engine(models: Models, request: pytest.FixtureRequest) -> Iterator[Engine]:
    """Opens an engine for one conversation, or for three."""
    with Engine.open(
        models.target, models.draft, strategy="chain:2", n_ctx=1024, n_threads=1, n_sequences=request.param
    ) as one:
        yield one


def test_results_equal_those_of_single_calls_in_order(engine: Engine) -> None:
    engine.clear()
    ids = engine.tokenize("ab cd")
    together = engine.generate_many([*PROMPTS, ids, TALK], **GREEDY)
    alone = [engine.generate(prompt, **GREEDY) for prompt in [*PROMPTS, ids]]
    alone.append(engine.chat(TALK, **GREEDY))
    assert [one.tokens for one in together] == [one.tokens for one in alone]
    assert [one.prompt_tokens for one in together] == [one.prompt_tokens for one in alone]
    assert together[-1].message == alone[-1].message
    assert all(one.timings.predicted_n == 12 for one in together)
    assert engine.n_free == engine.model.n_sequences - 1, "only the default conversation may keep its slot"
    assert engine.generate_many([]) == []


@pytest.mark.parametrize(
    ("wrong", "error", "expected"),
    [
        ("word " * 2000, ContextFullError, "context size of 1024"),
        ([10**6], ValueError, "token id"),
        (7.5, TypeError, "prompt: expected str"),
        ([{"content": "no role"}], ValueError, "expected a role"),
    ],
)
def test_all_are_checked_before_the_first_one_runs(
    engine: Engine, wrong: Any, error: type[Exception], expected: str
) -> None:
    before = engine.timings.predicted_n
    with pytest.raises(error, match=rf"prompt 2 of the list: .*{expected}"):
        engine.generate_many(["ab", TALK, wrong, "xyz"], **GREEDY)
    assert engine.timings.predicted_n == before, "no answer may run before all prompts are checked"
    assert len(engine.generate_many(["ab", "the", "xyz"], **GREEDY)) == 3


@pytest.mark.parametrize("error", [OSError, KeyboardInterrupt, GeneratorExit])
def test_an_error_ends_all_and_frees_the_slots(engine: Engine, error: type[BaseException]) -> None:
    def fails(tokens: list[int]) -> bool:
        if len(tokens) == 3:
            raise error
        return False

    for generate, prompt in ((engine.generate_many, PROMPTS), (engine.generate, "ab")):
        with pytest.raises(error):
            generate(prompt, stop_when=fails, **GREEDY)  # type: ignore[operator]
    assert engine.n_free == engine.model.n_sequences - 1
    assert engine.generate("ab", **GREEDY).finish_reason == "length"


def test_a_request_may_come_while_another_thread_looks_at_the_waiting_ones() -> None:
    scheduler = Scheduler()
    comes = property(lambda request: scheduler.waiting.append(request))
    scheduler.waiting.append(type("Request", (), {"fetched": Future(), "is_cancelled": comes})())
    assert not scheduler.may_admit


def test_a_list_of_texts_is_not_a_prompt(engine: Engine) -> None:
    with pytest.raises(TypeError, match="generate_many"):
        engine.generate(PROMPTS, **GREEDY)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="expected a list of prompts, found str"):
        engine.generate_many(PROMPTS[0], **GREEDY)
