# SPDX-License-Identifier: MIT
"""Tiny drafters and samples with random features and labels of the right shapes and types."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from eaglecpp.convert import BlockSpec, DraftSpec, RopeSpec
from eaglecpp.train.samples import Sample

N_VOCAB = 40
SPEC = DraftSpec(
    family="torchspec", hidden_size=32, target_hidden_size=32, intermediate_size=48,
    n_layers=1, n_heads=4, n_kv_heads=2, head_dim=16,
    vocab_size=N_VOCAB, draft_vocab_size=24, context_length=128,
    rms_norm_eps=1e-5, rope=RopeSpec(10000.0),
    aux_layers=(1, 3, 5), layer_ids_rule="boundary", target_block_count=6,
    fc_norm=True, norm_output=True,
)  # fmt: skip
KINDS = {
    "eagle31": SPEC,
    "two layers": replace(SPEC, n_layers=2),
    "three layers, eagle3": replace(SPEC, n_layers=3, fc_norm=False, norm_output=False),
    "two layers, qk_norm": replace(SPEC, n_layers=2, qk_norm=True),
    "eagle3": replace(SPEC, fc_norm=False, norm_output=False),
    "residual": replace(SPEC, fc_norm=False, norm_before_residual=True, norm_before_fc=True),
    "both norms": replace(SPEC, norm_before_fc=True),
    "qk_norm": replace(SPEC, qk_norm=True),
    "eagle1": replace(
        SPEC, fc_norm=False, norm_output=False, fuses_embedding=True, aux_layers=(7,), n_kv_heads=4
    ),
    "two features": replace(SPEC, aux_layers=(1, 5), n_kv_heads=4),
}

BLOCK = replace(
    SPEC,
    n_layers=2,
    fc_norm=False,
    norm_output=False,
    qk_norm=True,
    block=BlockSpec(
        4, anchor_first=True, mask_token=7, causal=(False, False), markov_rank=8, confidence=True
    ),
)
"""A DSpark drafter."""


def draft_ids() -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    """Returns the draft id of each token. The draft vocabulary has the first token ids that are not divisible
    by three.
    """
    table = np.full(N_VOCAB, -1, np.int64)
    kept = [v for v in range(N_VOCAB) if v % 3][: SPEC.draft_vocab_size]
    table[kept] = np.arange(len(kept))
    return table


def make_sample(n_tokens: int, seed: int, turns: Sequence[int] | None = None, n_aux: int = 3) -> Sample:
    """Returns a sample of random tokens whose random labels do not depend on the tokens."""
    rng = np.random.default_rng(seed)
    tokens = rng.integers(0, N_VOCAB, n_tokens).astype(np.int32)
    n_top = 6
    ids = np.stack([rng.permutation(N_VOCAB)[:n_top] for _ in range(n_tokens)]).astype(np.int32)
    p = -np.sort(-rng.dirichlet(np.ones(n_top + 1), n_tokens)[:, :n_top], axis=1)
    return Sample(
        tokens,
        np.array(turns if turns is not None else [1] * n_tokens, np.int16),
        rng.normal(size=(n_aux, n_tokens, SPEC.target_hidden_size)).astype(np.float32),
        ids,
        np.log(p).astype(np.float32),
    )


class Samples:
    """A `FeatureSource` of the given samples."""

    def __init__(self, samples: Sequence[Sample]) -> None:
        self.samples = samples
        self.lengths = [len(one.tokens) for one in samples]

    def sample(self, index: int) -> Sample:
        return self.samples[index]


def make_source(n_samples: int) -> Samples:
    """Returns a source of samples with 12 to 28 tokens."""
    return Samples([make_sample(12 + 5 * i % 17, 1000 + i) for i in range(n_samples)])


class Recorder:
    """A `Reporter` that records its calls, and requests a stop after `n_steps` steps."""

    def __init__(self, n_steps: int = 10**9) -> None:
        self.losses: list[float] = []
        self.evaluations: list[int] = []
        self.left = n_steps

    def on_step(self, progress: Any, share: float, loss: float) -> None:
        self.losses.append(loss)
        self.left -= 1

    def on_evaluation(self, step: int, found: Any, best: bool) -> None:
        self.evaluations.append(step)

    def stop(self) -> bool:
        return self.left <= 0
