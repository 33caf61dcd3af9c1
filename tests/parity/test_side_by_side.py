# SPDX-License-Identifier: MIT
"""Tests parallel conversations. Each conversation must get the same bits that it gets alone, whatever the
other conversations draft, read, copy or forget.

The tests compare tokens, their log-probabilities bit for bit, and the plan of every round, which depends on
the drafter's numbers. The reference is an engine with room for one conversation.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import eaglecpp
from eaglecpp.engine.session import Session
from eaglecpp.engine.stream import Stream, next_chunks
from helpers.tiny import ConvertedPair, prompt_ids

SIZES: dict[str, Any] = {"n_ctx": 600, "n_threads": 1, "n_batch": 64, "n_leaves_max": 6, "strategy": "off"}
STRATEGIES = ["off", "chain:4", "tree:k=3,depth=4,nodes=12"]
SAMPLED: dict[str, Any] = {"temperature": 0.8, "seed": 7, "ignore_eos": True, "n_probs": 1, "log_plan": True}
LENGTHS = (3, 150, 40, 9, 70)


@pytest.fixture(scope="module", params=["eagle3-auto", "eagle31-auto", "eagle31-off"])
def kind(request: pytest.FixtureRequest) -> str:
    """Runs a test with several drafters on eaglecpp's kernels, and with one drafter on ggml's kernels, on
    which prompts do not share batches.
    """
    return str(request.param)


@pytest.fixture(scope="module")
def kernels(kind: str) -> str:
    return kind.split("-")[1]


@pytest.fixture(scope="module")
def it(kind: str, pairs: Callable[..., ConvertedPair]) -> ConvertedPair:
    return pairs(kind.split("-")[0])


@pytest.fixture(scope="module")
def several(it: ConvertedPair, q8: Path, kernels: str) -> Iterator[eaglecpp.Engine]:
    options = {**SIZES, "n_sequences": 5, "exact": "on", "kernels": kernels}
    with eaglecpp.Engine.open(q8, draft=it.draft, **options) as engine:
        yield engine


@pytest.fixture(scope="module")
def one(it: ConvertedPair, q8: Path, kernels: str) -> Iterator[eaglecpp.Engine]:
    with eaglecpp.Engine.open(q8, draft=it.draft, **SIZES, exact="on", kernels=kernels) as engine:
        yield engine


def made(completion: eaglecpp.Completion) -> tuple[list[int], list[float]]:
    return completion.tokens, [entry.logprob for entry in completion.logprobs]


def check_same(found: eaglecpp.Completion, expected: eaglecpp.Completion, kernels: str) -> None:
    """Compares two completions. With ggml's kernels, long prompts in shared rounds are not exact, and must be
    reported as not exact.
    """
    assert found.timings.exact or kernels == "off"
    assert made(found) == made(expected) or not found.timings.exact


def drafts(completion: eaglecpp.Completion) -> list[list[str]]:
    """Returns the proposed and verified drafts of each round, without the planner's estimates."""
    return [re.findall(r"(?:levels|nodes)=\S+", line) for line in completion.plan_log]


def alone(engine: eaglecpp.Engine, prompt: list[int], strategy: str, **options: Any) -> eaglecpp.Completion:
    engine.clear()
    return engine.generate(prompt, strategy=strategy, **{**SAMPLED, "max_tokens": 40, **options})


def read(streams: list[Stream]) -> int:
    """Steps all streams until the first stream returns a token, and returns the number of steps."""
    for n_steps in range(1, 1000):
        chunks = next_chunks(streams)
        assert not any(isinstance(chunk, BaseException) for chunk in chunks)
        assert all(chunk is not None for chunk in chunks[1:]), "no stream may wait"
        if chunks[0] is not None:
            return n_steps
    raise AssertionError("the prompt is never read")


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_shared_rounds_equal_separate_ones(
    strategy: str, several: eaglecpp.Engine, one: eaglecpp.Engine, kernels: str
) -> None:
    prompts = [prompt_ids(n, seed=n) for n in LENGTHS]
    together = several.generate_many(prompts, strategy=strategy, max_tokens=40, **SAMPLED)
    for prompt, found in zip(prompts, together, strict=True):
        expected = alone(one, prompt, strategy)
        check_same(found, expected, kernels)
        if kernels == "auto":  # without our kernels, fixed strategies are limited to exact batch sizes
            assert drafts(found) == drafts(expected)


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_a_prompt_is_read_during_the_others_rounds(
    strategy: str, several: eaglecpp.Engine, one: eaglecpp.Engine, kernels: str
) -> None:
    first, second = prompt_ids(12, seed=1), prompt_ids(300, seed=2)
    with several.session() as a, several.session() as b:
        answering = a.stream(first, strategy=strategy, max_tokens=200, **SAMPLED)
        next(answering)
        reading = b.stream(second, strategy=strategy, max_tokens=40, **SAMPLED)
        n_steps = read([reading, answering])
        # A shared round reads a quarter of a prompt slice. A separate batch reads a whole slice.
        assert n_steps == -(-300 // (several.native.n_shared_rows if kernels == "auto" else 64))
        rest = [list(reading), list(answering)]
        assert all(rest)
        found = [answering.completion(), reading.completion()]
    for prompt, completion in zip((first, second), found, strict=True):
        expected = alone(one, prompt, strategy, max_tokens=len(completion.tokens))
        check_same(completion, expected, kernels)


def test_a_step_reads_a_limited_number_of_prompt_tokens(several: eaglecpp.Engine) -> None:
    """Short prompts are read together, and longer prompts in order of arrival. No prompt waits for all
    others.
    """

    def steps_until_read(n_tokens: int) -> list[int]:
        with several.session() as a, several.session() as b, several.session() as c, several.session() as d:
            answering = a.stream(prompt_ids(12, seed=1), strategy="off", max_tokens=60, ignore_eos=True)
            next(answering)
            prompts = [prompt_ids(n_tokens, seed=seed) for seed in (2, 3, 4)]
            reading = [
                session.stream(prompt, strategy="off", max_tokens=60, ignore_eos=True)
                for session, prompt in zip((b, c, d), prompts, strict=True)
            ]
            found = [0, 0, 0]
            for step in range(1, 10):
                chunks = next_chunks([answering, *reading])
                assert chunks[0] is not None
                found = [n or (step if chunk else 0) for n, chunk in zip(found, chunks[1:], strict=True)]
            return found

    assert several.native.n_shared_rows == 16
    assert steps_until_read(5) == [1, 1, 1]
    assert steps_until_read(12) == [1, 2, 3]


COMMON = prompt_ids(60, seed=5)
GOING_ON: dict[str, Any] = {
    "strategy": "chain:4",
    "max_tokens": 12,
    "temperature": 0.0,
    "ignore_eos": True,
    "log_plan": True,
}


def check_drafts(session: Session, one: eaglecpp.Engine, prompt: list[int], n_reused: int) -> None:
    """Checks that drafts after shared rows equal drafts after rows that the conversation computed itself.
    With ggml's kernels, conversations share no rows, and a prompt in a shared round is not exact.
    """
    found = session.generate(prompt, **GOING_ON)
    assert found.timings.reused_n == n_reused
    one.clear()
    expected = one.generate(prompt, **GOING_ON)
    if found.timings.exact or n_reused > 0:
        assert found.timings.exact and found.tokens == expected.tokens
        assert drafts(found) == drafts(expected)


def test_a_shared_beginning_with_another_continuation_is_drafted_anew(
    several: eaglecpp.Engine, one: eaglecpp.Engine, kernels: str
) -> None:
    """The drafter's last row of a shared beginning embeds the next token, so this row is computed again for
    another next token.
    """
    short = COMMON[:17]  # the shared text is short, so that each of its rows affects the drafts
    for token in range(40, 56):
        several.clear()
        with several.session() as a, several.session() as b:
            a.generate([*short, 5], **GOING_ON | {"max_tokens": 1})
            check_drafts(b, one, [*short, token], 17 if kernels == "auto" else 0)
            check_drafts(a, one, [*short, token + 1], 17)


def test_rows_that_the_drafter_has_not_read_yet_are_shared(
    several: eaglecpp.Engine, one: eaglecpp.Engine, kernels: str
) -> None:
    """Tests sharing rows that the drafter has not read yet: the drafter reads the features of accepted tokens
    only in the next round.
    """
    several.clear()
    for n_tokens in range(5, 9):
        with several.session() as a, several.session() as b, several.session() as c:
            first = a.generate(COMMON, **GOING_ON | {"max_tokens": n_tokens})
            text = [*COMMON, *first.tokens]
            check_drafts(b, one, [*text, 3], len(text) - 1 if kernels == "auto" else 0)
            parked = a.slot.offload()
            assert parked is not None
            assert c.slot.restore(parked)
            check_drafts(c, one, [*text, 8], len(text) - 1)
        several.clear()


@contextmanager
def two_sessions(
    it: ConvertedPair, q8: Path, exact: str
) -> Iterator[tuple[eaglecpp.Engine, Session, Session]]:
    options = {**SIZES, "n_sequences": 2, "exact": exact}
    with (
        eaglecpp.Engine.open(q8, draft=it.draft, **options) as engine,
        engine.session() as a,
        engine.session() as b,
    ):
        yield engine, a, b


def test_inexact_rows_are_not_shared(it: ConvertedPair, q8: Path) -> None:
    with two_sessions(it, q8, "auto") as (engine, a, b):
        # These batch sizes exceed the prompt.
        engine.native.set_exact_rows([(n, n != 11) for n in range(2, 18)])
        first = a.generate(COMMON, **GOING_ON | {"strategy": "chain:10", "max_tokens": 40})
        assert not first.timings.exact
        second = b.generate([*COMMON, *first.tokens, 3], **GOING_ON | {"strategy": "off"})
        assert second.timings.exact
        assert second.timings.reused_n == len(COMMON)


def test_a_prompt_in_inexact_rounds_is_not_exact(it: ConvertedPair, q8: Path) -> None:
    with two_sessions(it, q8, "off") as (engine, a, b):
        for points, is_exact in (([(17, True)], True), ([], False)):
            engine.native.set_exact_rows(points)
            a.clear()
            b.clear()
            answering = a.stream(COMMON, **GOING_ON)
            next(answering)
            reading = b.stream(COMMON[:8], **GOING_ON | {"max_tokens": 1, "cache_prompt": False})
            assert all(chunk is not None for chunk in next_chunks([answering, reading]))
            assert reading.completion().timings.exact == is_exact


def test_a_prompt_is_read_even_if_drafts_leave_no_room(it: ConvertedPair, q8: Path) -> None:
    with two_sessions(it, q8, "auto") as (engine, a, b):
        engine.native.set_exact_rows([(16, True), (17, False)])
        answering = a.stream(COMMON, **GOING_ON | {"strategy": "chain:15", "max_tokens": 400})
        next(answering)
        reading = b.stream(COMMON[:40], **GOING_ON | {"cache_prompt": False})
        assert read([reading, answering]) == 1
        assert reading.completion().timings.exact
