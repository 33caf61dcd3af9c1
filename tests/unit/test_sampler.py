# SPDX-License-Identifier: MIT
"""Tests the target's sampler alone. After every combination of llama.cpp's samplers, eaglecpp draws tokens
with llama.cpp's frequencies. A draw depends only on seed and position.
"""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
from gguf import GGUFReader
from numpy.typing import NDArray

from eaglecpp.errors import EngineBusyError
from eaglecpp.lowlevel import Sampler, SamplingParams, Target
from helpers.models import Models
from helpers.native import open_target, sampling_params
from helpers.tiny import prompt_ids

N_DRAWS = 100_000
OFF: dict[str, Any] = {"top_k": 0, "top_p": 1.0, "min_p": 0.0}
PENALTIES = {"repeat_penalty": 1.3, "frequency_penalty": 0.2, "presence_penalty": 0.3, "repeat_last_n": 64}

COMBINATIONS: dict[str, dict[str, Any]] = {
    "defaults": {},
    "top-k": OFF | {"top_k": 5},
    "top-p": OFF | {"top_p": 0.7},
    "min-p": OFF | {"min_p": 0.1},
    "typical": OFF | {"typical_p": 0.6},
    "sigma": OFF | {"top_n_sigma": 1.0},
    "min-keep": {"top_p": 0.01, "min_keep": 4},
    "dynamic-temperature": {"dynatemp_range": 0.4, "dynatemp_exponent": 1.2},
    "penalties": PENALTIES,
    "dry": {"dry_multiplier": 0.8, "dry_penalty_last_n": -1},
    "logit-bias": {"logit_bias": [(65, 3.0), (66, float("-inf"))]},
    "xtc": OFF | {"xtc_probability": 0.4, "xtc_threshold": 0.08},
    "everything": PENALTIES
    | {
        "typical_p": 0.9,
        "top_n_sigma": 2.0,
        "xtc_probability": 0.3,
        "dynatemp_range": 0.2,
        "dry_multiplier": 0.5,
        "dry_penalty_last_n": 64,
    },
    "infill": {"infill": True},
    "grammar": {"grammar": "root ::= [a-m]+"},
    "grammar-and-temperature": OFF | {"grammar": "root ::= [a-z]+"},
}


@pytest.fixture(scope="module")
def target(models: Models) -> Target:
    return open_target(models.target, n_ctx=256)


def params(seed: int = 1, rng: str = "coupled", **options: Any) -> SamplingParams:
    return sampling_params(seed=seed, rng=rng, **options)


def some_logits(n_vocab: int, seed: int = 5) -> NDArray[np.float32]:
    """Returns logits with a dozen likely tokens. Some of them are letters, so grammars remove only some of
    the likely tokens.
    """
    rng = np.random.default_rng(seed)
    logits = rng.normal(0.0, 2.0, n_vocab)
    logits[rng.choice(np.arange(97, 123), 12, replace=False)] += 5.0
    return logits.astype(np.float32)


def chi2_most(n: int) -> float:
    """Returns the value that chi-square with n degrees of freedom exceeds once in a million."""
    a = 2.0 / (9.0 * n)
    return float(n * (1.0 - a + 4.753 * np.sqrt(a)) ** 3)


def check_same(first: NDArray[np.float64], second: NDArray[np.float64]) -> None:
    """Checks that two samples come from the same distribution. Tokens that are rare in both samples are
    counted together.
    """
    both = first + second
    rare = both < 20
    first = np.append(first[~rare], first[rare].sum())
    second = np.append(second[~rare], second[rare].sum())
    both = first + second
    keep = both >= 10
    expected = both[keep] * first.sum() / both.sum()
    chi2 = float(((first[keep] - expected) ** 2 / (expected * second.sum() / both.sum())).sum())
    assert chi2 < chi2_most(max(int(keep.sum()) - 1, 1)), (chi2, int(keep.sum()))


def draws(target: Target, logits: NDArray[np.float32], first: int, **options: Any) -> NDArray[np.float64]:
    n = options.pop("n", N_DRAWS)
    sampler = Sampler(params(**options), target)
    sampler.accept_prompt([97, 98, 99, 97, 98, 97, 98, 99, *prompt_ids(20), 97, 98])
    return np.array(sampler.count(logits, first, n), dtype=np.float64)


@pytest.mark.parametrize("name", COMBINATIONS)
def test_our_draw_has_the_frequencies_of_llama_cpp(name: str, target: Target) -> None:
    options = {"temperature": 0.8} | COMBINATIONS[name]
    logits = some_logits(target.n_vocab)
    ours = draws(target, logits, 10, **options)
    theirs = draws(target, logits, 10, rng="llama", **options)
    assert ours.sum() == theirs.sum() == N_DRAWS
    assert (ours > 0).sum() > 1, "the test needs several different tokens"
    check_same(ours, theirs)


def test_a_draw_depends_on_seed_and_position_only(target: Target) -> None:
    """Tests that a draw does not depend on earlier draws, because rows may be sampled again in any order."""
    logits = [some_logits(target.n_vocab, seed) for seed in range(40)]
    for options in (COMBINATIONS["defaults"], OFF, COMBINATIONS["xtc"], COMBINATIONS["grammar"]):
        options = {"temperature": 1.2} | options
        forwards = Sampler(params(7, **options), target)
        there = [forwards.sample(logits[pos], pos) for pos in range(40)]
        backwards = Sampler(params(7, **options), target)
        assert there == [backwards.sample(logits[pos], pos) for pos in reversed(range(40))][::-1]
        other = Sampler(params(8, **options), target)
        assert [other.sample(logits[pos], pos) for pos in range(40)] != there


def test_greedy_is_greedy_with_either_draw(target: Target) -> None:
    logits = some_logits(target.n_vocab)
    for rng in ("coupled", "llama"):
        assert draws(target, logits, 0, rng=rng, temperature=0.0, n=50)[int(logits.argmax())] == 50


def test_mirostat_keeps_its_own_draw(target: Target) -> None:
    logits = some_logits(target.n_vocab)
    for version in (1, 2):
        options = {"temperature": 0.8, "mirostat": version, "n": 500}
        ours, theirs = (draws(target, logits, 0, rng=rng, **options) for rng in ("coupled", "llama"))
        assert (ours == theirs).all()


def test_an_unknown_rng_is_refused() -> None:
    with pytest.raises(ValueError, match="rng: expected coupled or llama, found 'dice'"):
        Sampler(params(rng="dice"), 4)


def test_a_sampler_without_a_model_refuses_options_that_need_one() -> None:
    with pytest.raises(ValueError, match="need a model"):
        Sampler(params(grammar='root ::= "a"'), 4)


def test_the_infill_sampler_ends_at_any_likely_end_token(target: Target, models: Models) -> None:
    """Tests that the infill sampler chooses an end token if an end token has at least 1 / (3 n) of the total
    probability of the n other tokens.
    """
    end = int(GGUFReader(models.target).fields["tokenizer.ggml.eos_token_id"].contents())
    logits = np.full(target.n_vocab, -20.0, dtype=np.float32)
    logits[[97, 98, 99, end]] = 2.0, 2.0, 2.0, 1.0
    options = OFF | {"temperature": 1.0, "top_k": 4, "n": 1000}
    assert 0 < draws(target, logits, 0, **options)[end] < 1000
    assert draws(target, logits, 0, **options, infill=True)[end] == 1000
    logits[end] = -3.0
    assert draws(target, logits, 0, **options, infill=True)[end] < 30
    with pytest.raises(ValueError, match="expected a vocabulary"):
        Sampler(params(infill=True), 4)


def test_a_second_thread_is_refused() -> None:
    """Tests that a call by a second thread is refused. While one thread draws without the GIL, the second
    thread would change the sampler's state.
    """
    sampler, logits = Sampler(sampling_params(), 1000), np.linspace(0, 1, 1000, dtype=np.float32)
    alone = sampler.count(logits, 0, N_DRAWS)
    with ThreadPoolExecutor(1) as pool:
        drawing, n_refused = pool.submit(sampler.count, logits, 0, N_DRAWS), 0
        while not drawing.done():
            try:
                sampler.sample(logits, 5)
            except EngineBusyError:
                n_refused += 1
                time.sleep(0.01)
        if isinstance(error := drawing.exception(), EngineBusyError):
            n_refused += 1
        else:
            assert error is None and drawing.result() == alone
    assert n_refused > 0
