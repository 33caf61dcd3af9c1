# SPDX-License-Identifier: MIT
"""Fixtures of the parity tests: tiny models, which are converted once per session, and native drafters with
their PyTorch references.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from eaglecpp.lowlevel import Drafter, EngineOptions
from helpers.native import engine_options
from helpers.random_block import BlockShape
from helpers.random_drafter import DraftShape
from helpers.reference.drafter import Drafter as ReferenceDrafter
from helpers.reference.gemma import GemmaDrafter
from helpers.tiny import ConvertedPair, TargetSpec, TinyTarget, converted_pair, tiny_tokenizer, write_gguf

# All values have full precision. With half precision, drafts and sampled tokens would sometimes differ where
# two tokens are nearly equally likely.
EXACT: dict[str, Any] = {"type_k": "f32", "type_v": "f32", "draft_type_kv": "f32", "flash_attn": "off"}


@dataclass(frozen=True)
class Both:
    """A checkpoint as the native drafter and as the PyTorch reference."""

    shape: DraftShape
    checkpoint: Path
    native: Drafter
    reference: ReferenceDrafter
    draft: Path
    embedding: torch.Tensor | None
    head: torch.Tensor | None

    def native_of(self, **changes: Any) -> Drafter:
        """Opens the native drafter of a checkpoint with other options."""
        tables = [None if x is None else x.numpy() for x in (self.embedding, self.head)]
        return Drafter(str(self.draft), exact_options(**changes), *tables)


def exact_options(**changes: Any) -> EngineOptions:
    """Returns the options of `EXACT` for the low-level classes."""
    return engine_options(**{"n_ctx": 512, **EXACT, **changes})


@pytest.fixture(scope="session", autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)


@pytest.fixture(scope="session")
def both(tmp_path_factory: pytest.TempPathFactory, target: TinyTarget) -> Callable[[DraftShape], Both]:
    """Returns a function that writes a drafter of a shape, converts it to F32, and loads it. The function
    does this once per shape and session.
    """
    made: dict[DraftShape, Both] = {}

    def make(shape: DraftShape) -> Both:
        if shape not in made:
            directory = tmp_path_factory.mktemp("draft")
            path = shape.gguf(directory, target.gguf)
            checkpoint = directory / "checkpoint"
            table = target.weights["model.embed_tokens.weight"] if not shape.own_embedding else None
            head = target.weights["lm_head.weight"] if not shape.own_head else None
            given = [None if x is None else torch.from_numpy(x) for x in (table, head)]
            made[shape] = Both(
                shape,
                checkpoint,
                Drafter(str(path), exact_options(), table, head),
                (GemmaDrafter if shape.gemma else ReferenceDrafter).load(checkpoint, *given),
                path,
                *given,
            )
        made[shape].native.reset()
        made[shape].reference.reset()
        return made[shape]

    return make


@pytest.fixture(scope="session")
def pairs(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str, str], ConvertedPair]:
    """Returns a function `pairs(kind, arch)`, which returns a target and a drafter that is right about half
    the time. The function writes each pair once per session.
    """

    @functools.cache
    def make(kind: str = "eagle3", arch: str = "llama") -> ConvertedPair:
        directory = tmp_path_factory.mktemp(f"{kind}-{arch}")
        return converted_pair(directory, kind, TargetSpec.of(arch))

    return make


@pytest.fixture(scope="session")
def quantised(tmp_path_factory: pytest.TempPathFactory) -> Callable[[ConvertedPair, str], Path]:
    """Returns a function `quantised(it, dtype)`, which returns the pair's target in another tensor type. The
    function writes each target once per session.
    """
    made: dict[tuple[Path, str], Path] = {}

    def make(it: ConvertedPair, dtype: str = "Q8_0") -> Path:
        path = tmp_path_factory.mktemp("quantised") / f"target-{dtype}.gguf"
        target = it.pair.target
        if (target.gguf, dtype) not in made:
            write_gguf(path, target.spec, tiny_tokenizer(), target.weights, dtype)
        return made.setdefault((target.gguf, dtype), path)

    return make


@pytest.fixture(scope="session")
def it(pairs: Callable[..., ConvertedPair]) -> ConvertedPair:
    return pairs("eagle31")


@pytest.fixture(scope="module")
def q8(it: ConvertedPair, quantised: Callable[..., Path]) -> Path:
    """Returns the pair's target in 8 bits."""
    return quantised(it)


@pytest.fixture(scope="module", params=["auto", "off"])
def kernels(request: pytest.FixtureRequest) -> str:
    """Runs a test twice: with eaglecpp's kernels, and with ggml's kernels, whose attention reads long prompts
    in tiles.
    """
    return str(request.param)


def random_rows(shape: DraftShape | BlockShape, n_rows: int) -> tuple[np.ndarray, list[int]]:
    """Returns random features `[n_aux, n_rows, target_hidden]`, whose size differs by layer, and a random
    token for each row.
    """
    rng = np.random.default_rng(5)
    features = rng.normal(size=(len(shape.layers), n_rows, shape.n_embd_target))
    features *= np.linspace(0.7, 3.0, len(shape.layers))[:, None, None]
    return features.astype(np.float32), rng.integers(0, shape.n_vocab, n_rows).tolist()
