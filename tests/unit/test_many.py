# SPDX-License-Identifier: MIT
"""Several prompts or conversations at once: the same answers as one by one, in order."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest

from eaglecpp import Engine
from eaglecpp.errors import ContextFullError

if TYPE_CHECKING:
    from conftest import Models

PROMPTS = ["ab cd", "the", "a longer prompt than the others", "xyz"]
GREEDY: dict[str, Any] = {"max_tokens": 12, "temperature": 0.0}


@pytest.fixture(scope="module", params=[1, 3])
def engine(models: Models, request: pytest.FixtureRequest) -> Iterator[Engine]:
    """Opened for one conversation, or for three."""
    with Engine.open(
        models.target, models.draft, strategy="chain:2", n_ctx=1024, n_threads=1, n_sequences=request.param
    ) as one:
        yield one


def test_results_are_those_of_one_by_one_in_order(engine: Engine) -> None:
    engine.clear()
    together = engine.generate(PROMPTS, **GREEDY)
    alone = [engine.generate(prompt, **GREEDY) for prompt in PROMPTS]
    assert [one.tokens for one in together] == [one.tokens for one in alone]
    assert [one.prompt_tokens for one in together] == [one.prompt_tokens for one in alone]
    assert all(one.timings.predicted_n == 12 for one in together)


def test_chunks_carry_the_index_of_their_prompt(engine: Engine) -> None:
    tokens: dict[int, list[int]] = {}
    with engine.stream(PROMPTS, **GREEDY) as running:
        for index, chunk in running:
            tokens.setdefault(index, []).extend(chunk.tokens)
        results = running.completions()
    assert [tokens[index] for index in range(len(PROMPTS))] == [one.tokens for one in results]
    assert engine.n_free == engine.model.n_sequences - 1, "only the default conversation keeps its place"


def test_stopping_early_frees_the_places(engine: Engine) -> None:
    with engine.stream(PROMPTS * 3, **GREEDY) as running:
        next(running)
        with pytest.raises(ValueError, match="has not started yet"):
            running.completions()
    assert engine.n_free == engine.model.n_sequences - 1
    assert engine.generate("ab", **GREEDY).finish_reason == "length"


def test_an_engine_for_one_conversation_makes_places_for_a_list(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    if engine.model.n_sequences > 1:
        pytest.skip("it has them")
    long = {**GREEDY, "max_tokens": 64, "ignore_eos": True}
    first = engine.generate("ab cd ef", **long)
    before = engine.timings
    with engine.stream(PROMPTS, **long) as running:
        order = [(index, chunk.finish_reason) for index, chunk in running]
        beside = running.completions()
    began = [index for index, reason in order[: [reason for _, reason in order].index("length")]]
    assert len(set(began)) > 2, "others begin before the first one ends"
    assert all(one.timings.exact and one.timings.draft_n for one in beside), "what was measured counts there"
    assert engine.timings.predicted_n - before.predicted_n == 64 * len(PROMPTS)
    again = engine.generate([*first.prompt_tokens, *first.tokens], **long)
    assert again.timings.reused_n >= len(first.prompt_tokens), "the default conversation is as it was"
    monkeypatch.setattr("eaglecpp.engine.engine.free_memory", lambda: 1 << 20)
    with engine.stream(PROMPTS, **long) as running:
        order = [(index, chunk.finish_reason) for index, chunk in running]
        one_by_one = running.completions()
    assert [index for index, _ in order] == sorted(index for index, _ in order)
    assert [one.tokens for one in one_by_one] == [one.tokens for one in beside]


def test_one_prompt_of_token_ids_is_one_prompt(engine: Engine) -> None:
    tokens = engine.tokenize("ab cd")
    assert engine.generate(tokens, **GREEDY).prompt_tokens == tokens
    assert [one.prompt_tokens for one in engine.generate([tokens, tokens], **GREEDY)] == [tokens, tokens]


def test_what_is_wrong_with_one_of_them_ends_all(engine: Engine) -> None:
    with pytest.raises(ValueError, match="token id"):
        engine.generate([[1], [10**6]], **GREEDY)
    assert engine.n_free == engine.model.n_sequences - 1


@pytest.mark.parametrize(
    ("wrong", "error", "said"),
    [
        ("word " * 2000, ContextFullError, "the context has 1024"),
        ([10**6], ValueError, "token id"),
        (7.5, TypeError, "prompt must be"),
    ],
)
def test_all_are_checked_before_the_first_one_runs(
    engine: Engine, wrong: Any, error: type[Exception], said: str
) -> None:
    before = engine.timings.predicted_n
    with pytest.raises(error, match=rf"number 2 of the list: .*{said}"):
        engine.generate(["ab", "the", wrong, "xyz"], **GREEDY)
    assert engine.timings.predicted_n == before, "answers were made and lost"
    assert engine.n_free == engine.model.n_sequences - 1
    assert len(engine.generate(["ab", "the", "xyz"], **GREEDY)) == 3


def test_all_conversations_are_checked_before_the_first_one_runs(engine: Engine) -> None:
    before = engine.timings.predicted_n
    talks = [[{"role": "user", "content": text}] for text in ("Hi", "word " * 2000, "And then")]
    with pytest.raises(ContextFullError, match="number 1 of the list"):
        engine.chat(talks, **GREEDY)
    talks[1] = [{"content": "no role"}]
    with pytest.raises(ValueError, match=r"number 1 of the list: .*expected a role"):
        engine.chat(talks, **GREEDY)
    assert engine.timings.predicted_n == before


def test_no_prompts_are_no_results(engine: Engine) -> None:
    assert engine.generate([]) == [] and engine.generate(()) == []
    with engine.stream([]) as running:
        assert list(running) == [] and running.completions() == []
