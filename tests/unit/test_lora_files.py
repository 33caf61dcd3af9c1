# SPDX-License-Identifier: MIT
"""Tests that eaglecpp refuses invalid adapters. llama.cpp loads an adapter without checking types and ranks,
and ggml ends the process when it computes with an invalid adapter.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from eaglecpp import Engine
from eaglecpp._extension import core
from eaglecpp.errors import EagleError, GgufError, MismatchError
from helpers.lora import Factors, write_lora
from helpers.models import Models
from helpers.tiny_split import rewrite

DOWN, EMBEDDING = "blk.0.ffn_down.weight", "token_embd.weight"
Change = Callable[[Factors], object]


def retyped(side: str, dtype: type[np.generic]) -> Change:
    return lambda factors: factors.update({f"{DOWN}.{side}": factors[f"{DOWN}.{side}"].astype(dtype)})


def added(name: str) -> Change:
    return lambda factors: factors.update({name: np.zeros(4, np.float32)})


def reshaped(side: str, *shape: int) -> Change:
    return lambda factors: factors.update({f"{DOWN}.{side}": np.zeros(shape, np.float32)})


def refused(lora: Path, target: Path, kind: type[EagleError], text: str) -> None:
    """Checks that `create`, `check` and opening a model all refuse the adapter."""
    with pytest.raises(kind, match=text):
        core.check_lora(str(lora), str(target))
    with pytest.raises(kind, match=text):
        Engine.open(target, lora=[(str(lora), 1.0)], n_ctx=64)


@pytest.mark.parametrize(
    ("change", "kind", "text"),
    [
        *[
            (retyped(side, dtype), GgufError, rf"lora\.gguf: tensor '{DOWN}\.{side}' has type [if]")
            for side, dtype in (("lora_a", np.int8), ("lora_b", np.int32), ("lora_b", np.float64))
        ],
        (lambda factors: factors.pop(f"{DOWN}.lora_b"), GgufError, "lora_a' has no matching 'lora_b'"),
        (lambda factors: factors.pop(f"{DOWN}.lora_a"), GgufError, "lora_b' has no matching 'lora_a'"),
        (added("blk.0.other"), GgufError, "'blk.0.other': expected names that end in .lora_a or .lora_b"),
        (reshaped("lora_a", 5, 128), MismatchError, r"lora_b' \(4 x 64\) has another rank than 128 x 5"),
        (reshaped("lora_b", 63, 4), MismatchError, "is for 63 outputs, but the target's tensor has 64"),
        (reshaped("lora_a", 4, 64), MismatchError, "is for 64 inputs, but the target's tensor has 128"),
        (reshaped("lora_a", 2, 4, 128), MismatchError, "has other experts than the target's tensor 128 x 64"),
    ],
)
def test_invalid_factors_are_refused(
    change: Change, kind: type[EagleError], text: str, models: Models, tmp_path: Path
) -> None:
    write_lora(tmp_path / "lora.gguf", models.target, change=change)
    refused(tmp_path / "lora.gguf", models.target, kind, text)


def transposed(factors: Factors) -> None:
    """Transposes the factors, because llama.cpp expects for embeddings a first factor with a row per token,
    and a second factor with a row per value.
    """
    a, b = factors.pop(f"{EMBEDDING}.lora_a"), factors.pop(f"{EMBEDDING}.lora_b")
    factors |= {f"{EMBEDDING}.lora_a": b, f"{EMBEDDING}.lora_b": np.ascontiguousarray(a.T)}


def test_embeddings_are_adapted_where_llama_cpp_can(models: Models, tmp_path: Path) -> None:
    lora = tmp_path / "lora.gguf"
    write_lora(lora, models.target, only=EMBEDDING, change=transposed)
    with Engine.open(models.target, lora=[(str(lora), 1.0)], n_ctx=64) as engine:
        assert len(engine.generate("ab", max_tokens=2).tokens) == 2
    tied = rewrite(models.target, tmp_path / "tied.gguf", lambda tensors: tensors.pop("output.weight"))
    refused(lora, tied, MismatchError, "embeddings that are also the target's output")


def test_batches_with_an_adapter_are_as_exact_as_without(models: Models, tmp_path: Path) -> None:
    """Tests that batches with an adapter are as exact as batches without, also if the factors are F32.
    llama.cpp does not mark F32 factors as weights, so without care a row would depend on the other rows of
    its batch.
    """
    write_lora(lora := tmp_path / "lora.gguf", models.target)
    rows = []
    for adapters in ((), ((str(lora), 0.5),)):
        with Engine.open(
            models.target, models.draft, n_ctx=256, planner_cache=False, lora=adapters
        ) as engine:
            rows.append(engine.exactness.rows)
    assert rows[0] == rows[1] != "1"
