# SPDX-License-Identifier: MIT
"""What is predicted of a processor nobody measured, and what the verdict makes of it."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from eaglecpp import Engine
from eaglecpp.bench.verdict import verdict_of
from eaglecpp.engine.predicted_costs import Processor, Weights, costs_of, predict
from helpers.tiny import TargetSpec, target_weights, tiny_tokenizer, write_gguf

if TYPE_CHECKING:
    from conftest import Models

# SmolLM2-135M in Q4_1 and the drafter that comes with eaglecpp; the same with one as large as the target;
# a model of 8 billion in Q4_K_M with a drafter of 200 MB; a mixture of 128 experts, of which a row uses 8
SMALL = Weights(96.6e6, 134.5e6, 0.45), Weights(11.5e6, 16.4e6, 0.1)
HEAVY = SMALL[0], SMALL[0]
LARGE = Weights(4.9e9, 8.0e9, 0.48), Weights(2.3e8, 3.3e8, 0.1)
MIXTURE = Weights(18e9, 30e9, 0.7, experts=0.93, used=8 / 128), LARGE[1]


@pytest.fixture(scope="module")
def engine(models: Models) -> Iterator[Engine]:
    with Engine.open(models.target, draft=models.draft, n_ctx=512, n_threads=1, exact="off") as opened:
        yield opened


@pytest.mark.parametrize(
    ("kernels", "n_threads", "pair", "pays"),
    [
        ("avx512", 2, SMALL, True),
        ("avx512", 2, HEAVY, False),
        ("avx_vnni", 2, SMALL, True),
        ("avx2", 4, LARGE, True),
        ("avx2", 4, MIXTURE, None),  # between 1.00 and 1.05 times plain
        ("neon_i8mm", 4, LARGE, True),
        ("neon", 4, LARGE, True),
        ("ggml", 4, LARGE, True),
        ("portable", 2, SMALL, False),
    ],
)
def test_the_verdict_follows_the_instruction_set_before_anything_was_measured(
    engine: Engine, kernels: str, n_threads: int, pair: tuple[Weights, Weights], pays: bool | None
) -> None:
    assert engine.native.load_costs(costs_of(*pair, Processor(kernels, n_threads)), is_guess=True)
    found = verdict_of(engine)
    assert found.pays == bool(pays), str(found)
    assert not found.is_measured and not found.is_drafter_known
    says = {
        True: "Drafting should pay here",
        None: "Drafting should make little difference here",
        False: "Drafting should not pay here, so auto leaves it off",
    }[pays]
    assert str(found).startswith(says) and "(predicted)" in str(found)


def test_rows_were_measured_as_they_are_predicted() -> None:
    """Four rows over one, and eight, on two cores of an Intel Xeon in November 2026; four bits with AVX2 on
    one core of an AMD Zen 3 that has nothing more."""
    four_bits, eight_bits = SMALL[0], Weights(144.8e6, 134.5e6, 0.45)
    for kernels, n_threads, weights, of_four, of_eight in (
        ("avx512", 2, four_bits, 1.15, 1.6),
        ("avx_vnni", 2, four_bits, 1.48, 2.6),
        ("avx2", 1, four_bits, 1.54, 2.5),
        ("avx512", 2, eight_bits, 1.09, 1.3),
        ("avx_vnni", 2, eight_bits, 1.13, 1.8),
        ("avx2", 2, eight_bits, 1.37, 2.6),
    ):
        one, four, eight = (weights.ms(n, Processor(kernels, n_threads)) for n in (1, 4, 8))
        assert four / one == pytest.approx(of_four, rel=0.25), kernels
        assert eight / one == pytest.approx(of_eight, rel=0.35), kernels


def test_rows_that_our_kernels_leave_to_ggml_are_dear(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(  # whatever this machine has
        "eaglecpp.engine.predicted_costs._processor", lambda native: Processor("avx512", 1)
    )
    for kernels in ("avx512", "avx_vnni", "avx2"):
        weights = dataclasses.replace(LARGE[0], by_rows=1.0)
        one, four = (weights.ms(n, Processor(kernels, 2)) for n in (1, 4))
        assert 3.1 < four / one < 4.2, "as measured with NVFP4, Q1_0 and Q2_0"
    spec, tokenizer = TargetSpec(n_embd=128), tiny_tokenizer()  # a block of Q1_0 is 128 weights
    weights_of_all = target_weights(spec, tokenizer)
    row = {}
    for dtype, share, least, most in (
        ("Q4_0", 0.0, 1.0, 1.5),
        ("NVFP4", 1.0, 3.0, 10.0),
        ("Q1_0", 1.0, 1.5, 10.0),
    ):
        path = tmp_path / f"{dtype}.gguf"
        write_gguf(path, spec, tokenizer, weights_of_all, dtype)
        with Engine.open(path, draft="text", n_ctx=512, n_threads=1) as opened:
            native = opened.native
            assert opened.exactness.decodes > 17, "measured, whosever kernels run"
            assert native.share_by_rows == share
            verify = (predict(native) or {})["verify"]
            ms = dict(zip(verify[::2], verify[1::2], strict=True))
            assert least < ms[16] / ms[1] < most, dtype
            row[dtype] = ms[16] - ms[8]
    assert row["Q1_0"] < 0.6 * row["NVFP4"], "each type has its price"
