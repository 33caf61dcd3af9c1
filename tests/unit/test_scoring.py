# SPDX-License-Identifier: MIT
"""Log-probabilities of a given text are those of the target's own logits."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from eaglecpp import Engine
from eaglecpp.engine.request import engine_options
from eaglecpp.lowlevel import Target
from eaglecpp.options import DraftOptions, ModelOptions, Strategy

if TYPE_CHECKING:
    from conftest import Models

TEXT = "the quick brown fox jumps over the lazy dog, and again"


def test_a_score_is_what_the_targets_logits_say(models: Models) -> None:
    with Engine.open(models.target, n_ctx=256, n_threads=1) as engine:
        score = engine.score(TEXT)
        model = ModelOptions(n_ctx=256, n_threads=1)
        options = engine_options(models.target, None, model, DraftOptions(), Strategy("off"))
        _, logits = Target(options, []).forward(score.tokens)
        assert logits is not None
        rows = logits[:-1].astype(np.float64)
        log_sum = np.log(np.exp(rows).sum(axis=1))
        expected = rows[np.arange(len(rows)), score.tokens[1:]] - log_sum
        assert score.logprobs == pytest.approx(expected.tolist(), abs=1e-4)
        assert score.tokens == engine.tokenize(TEXT)
        assert score.total == pytest.approx(sum(score.logprobs))
        assert score.perplexity == pytest.approx(math.exp(-score.total / len(score.logprobs)))


def test_an_answer_goes_on_after_a_score_in_its_middle(models: Models) -> None:
    options: Any = {"max_tokens": 12, "ignore_eos": True, "temperature": 0.0}
    with Engine.open(models.target, n_ctx=64, n_threads=1, draft=models.draft, n_sequences=2) as engine:
        plain = engine.generate("ab cd", **options)
        engine.clear()
        stream = engine.stream("ab cd", **options)
        next(stream)
        assert len(engine.score([5] * 64).logprobs) == 63
        for _ in stream:
            pass
        assert stream.completion().tokens == plain.tokens


def test_short_and_long_texts(models: Models) -> None:
    with Engine.open(models.target, n_ctx=64, n_threads=1) as engine:
        one = engine.score([5])
        assert (one.logprobs, math.isnan(one.perplexity)) == ([], True)
        with pytest.raises(ValueError, match=r"65 tokens do not fit into the context of 64"):
            engine.score([5] * 65)
