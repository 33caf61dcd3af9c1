# SPDX-License-Identifier: MIT
"""P-EAGLE: the drafts of all depths from one pass, as in PyTorch; and what they must not leave behind."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import eaglecpp
from eaglecpp.convert import convert_checkpoint
from eaglecpp.lowlevel import Drafter
from helpers.by_lot import accepted_by_lot
from helpers.random_drafter import DraftShape
from helpers.reference.parallel import ParallelDrafter
from helpers.reference.target import Target
from helpers.tiny import TinyTarget, make_target, prompt_ids

from .conftest import exact_options, random_rows
from .steps import TOLERANCE, gap

PLAIN = DraftShape(n_parallel=6)
SHAPES = {
    "plain": PLAIN,
    "3.1": replace(PLAIN, fc_norm=True, norm_output=True),
    "norm-before-fc": replace(PLAIN, norm_before_fc=True, norm_before_residual=True),
    "two-layers": replace(PLAIN, n_layers=2, n_kv_heads=4),
    "three-layers-of-3.1": replace(PLAIN, n_layers=3, fc_norm=True),
    "window": replace(PLAIN, window=13),
    "own-everything": replace(PLAIN, n_draft_vocab=367, qk_norm=True),
}


def alone(it: ParallelDrafter, n_known: int, n_ahead: int) -> torch.Tensor:
    """Masked rows that see the text, but not the masked rows before them."""
    seen = ParallelDrafter.visible(it, n_known, n_ahead)
    seen[n_known:, n_known:] = torch.eye(n_ahead, dtype=torch.bool)
    return seen


# zeros, as of a tensor that was never loaded; another token; all masked rows at the place of the first
MISTAKES: list[tuple[str, Callable[..., Any]]] = [
    ("mask_feature", lambda it, n: torch.zeros_like(ParallelDrafter.mask_feature(it, n))),
    ("mask_token", lambda it: ParallelDrafter.mask_token(it) + 1),
    ("mask_positions", lambda it, first, n: torch.full((n,), first)),
    ("visible", alone),
]


@dataclass
class Pair:
    target: TinyTarget
    shape: DraftShape
    checkpoint: Path
    gguf: Path

    def native(self) -> Drafter:
        return Drafter(str(self.gguf), exact_options())

    def reference(self, kind: type[ParallelDrafter] = ParallelDrafter) -> ParallelDrafter:
        made = kind.load(self.checkpoint)
        assert isinstance(made, ParallelDrafter)
        return made


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Callable[[DraftShape], Pair]:
    target = make_target(tmp_path_factory.mktemp("target"))

    def make(shape: DraftShape) -> Pair:
        folder = tmp_path_factory.mktemp("draft")
        checkpoint = shape.write(folder / "checkpoint")
        draft = folder / "draft.gguf"
        convert_checkpoint(
            checkpoint, target=target.gguf, out=draft, type="F32", aux_layers=list(shape.layers)
        )
        return Pair(target, shape, checkpoint, draft)

    return make


def differences(it: Pair, kind: type[ParallelDrafter] = ParallelDrafter) -> list[float]:
    """Of each of the six distributions, behind 24 rows of which 5 come last."""
    features, tokens = random_rows(it.shape, 24)
    native = it.native()
    native.append(np.ascontiguousarray(features[:, :19]), tokens[:19])
    found = native.commit_ahead(np.ascontiguousarray(features[:, 19:]), tokens[19:], 5)
    expected = it.reference(kind).ahead(torch.from_numpy(features), tokens, 5)
    return [gap(one, other) for one, other in zip(found, expected, strict=True)]


@pytest.mark.parametrize("name", SHAPES)
def test_all_depths_of_one_pass_equal_the_reference(name: str, pair: Callable[[DraftShape], Pair]) -> None:
    assert max(differences(pair(SHAPES[name]))) < TOLERANCE


@pytest.mark.parametrize(("method", "mistake"), MISTAKES)
def test_a_mistake_is_seen(
    method: str, mistake: Callable[..., Any], pair: Callable[[DraftShape], Pair]
) -> None:
    """Negative controls. The first masked row has none before it: places and views show from the second."""
    found = differences(pair(PLAIN), type("Mistaken", (ParallelDrafter,), {method: mistake}))
    assert found[0] < TOLERANCE
    assert min(found[2:]) > 10 * TOLERANCE


def test_masked_rows_leave_nothing_behind(pair: Callable[[DraftShape], Pair]) -> None:
    it = pair(SHAPES["two-layers"])
    features, tokens = random_rows(it.shape, 24)
    one, other = it.native(), it.native()
    one.commit_ahead(np.ascontiguousarray(features[:, :20]), tokens[:20], 5)
    found = one.commit_ahead(np.ascontiguousarray(features[:, 20:]), tokens[20:], 5)
    other.append(np.ascontiguousarray(features[:, :20]), tokens[:20])
    expected = other.commit_ahead(np.ascontiguousarray(features[:, 20:]), tokens[20:], 5)
    assert one.n_rows == 24
    np.testing.assert_array_equal(found, expected)
    for layer in range(it.shape.n_layers):
        for mine, theirs in zip(one.kv(layer), other.kv(layer), strict=True):
            np.testing.assert_array_equal(mine, theirs)


@pytest.mark.parametrize("strategy", ["chain:6", "tree:k=2,depth=4,nodes=12", "auto"])
def test_the_text_is_the_plain_one(strategy: str, pair: Callable[[DraftShape], Pair]) -> None:
    it = pair(PLAIN)
    options = {"n_ctx": 256, "n_threads": 1, "planner_cache": False}
    with eaglecpp.Engine.open(it.target.gguf, draft=it.gguf, **options) as engine:
        for temperature in (0.0, 0.8):
            more = {"max_tokens": 60, "seed": 1, "temperature": temperature, "ignore_eos": True}
            drafted = engine.generate(prompt_ids(20), strategy=strategy, **more)
            engine.clear()
            plain = engine.generate(prompt_ids(20), strategy="off", **more)
            engine.clear()
            assert drafted.tokens == plain.tokens
            assert strategy == "auto" or drafted.timings.draft_n > 0


def test_the_engine_drafts_what_the_reference_drafts(pair: Callable[[DraftShape], Pair]) -> None:
    """Every draft is taken, so that the text is the drafts, with one token of the target's own a round."""
    it, prompt, depth = pair(PLAIN), prompt_ids(20), 5
    exact = {"type_k": "f32", "type_v": "f32", "draft_type_kv": "f32", "flash_attn": "off"}
    with (
        eaglecpp.Engine.open(it.target.gguf, draft=it.gguf, n_ctx=256, n_threads=1, **exact) as engine,
        accepted_by_lot([1.0] * depth),
    ):
        text = engine.generate(
            prompt, max_tokens=19, strategy=f"chain:{depth}", temperature=0.0, ignore_eos=True
        ).tokens
    target, reference = Target(it.target.directory, list(it.shape.layers)), it.reference()
    for start in (1, 7, 13):
        known = [*prompt, *text[:start]]
        features, _ = target_features(target, known[:-1])
        assert text[start : start + depth] == reference.drafts(features, known[1:], depth)


def target_features(target: Target, tokens: list[int]) -> tuple[torch.Tensor, torch.Tensor]:
    target.reset()
    return target.forward(tokens)


def test_what_a_parallel_drafter_cannot_do_is_refused(pair: Callable[[DraftShape], Pair]) -> None:
    it = pair(PLAIN)
    features, tokens = random_rows(it.shape, 4)
    native = it.native()
    with pytest.raises(ValueError, match="200 masked rows behind a commit, expected 0 to 128"):
        native.commit_ahead(features, tokens, 200)
    native.commit(features, tokens)
    with pytest.raises(ValueError, match="gives all its tokens with the commit"):
        native.extend(np.zeros((1, it.shape.n_embd), np.float32), [1], [-1], 1)
    with (
        eaglecpp.Engine.open(it.target.gguf, draft=it.gguf, n_ctx=256, n_threads=1) as engine,
        pytest.raises(ValueError, match="depth 7: this drafter gives 6 tokens"),
    ):
        engine.generate([1, 2, 3], max_tokens=20, strategy="chain:7")
