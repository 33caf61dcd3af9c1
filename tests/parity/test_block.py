# SPDX-License-Identifier: MIT
"""Block drafters, DFlash, DSpark and DFlash2: rows of the text and slots as in PyTorch, and texts that they
leave as they are.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import eaglecpp
from eaglecpp.lowlevel import Drafter
from helpers.by_lot import accepted_by_lot
from helpers.random_block import BlockShape
from helpers.reference.block import BlockDrafter, BlockPass
from helpers.reference.target import Target
from helpers.tiny import TinyTarget, prompt_ids
from helpers.tiny_split import rewrite

from .conftest import EXACT, exact_options, random_rows

DFLASH = BlockShape(own_tables=True)
DSPARK = BlockShape(kind="dspark")
DFLASH2 = BlockShape(kind="dflash2", own_tables=True, block=6)
SHAPES = {
    "dflash": DFLASH,
    "dflash-causal": replace(DFLASH, causal=True),
    "dflash-windows": replace(DFLASH, window=7, n_layers=3, full_layers=(1,)),
    "dflash-one-layer": replace(DFLASH, n_layers=1, block=16),
    "dspark": DSPARK,
    "dspark-causal": replace(DSPARK, causal=True, block=7),
    "dspark-draft-vocabulary": replace(DSPARK, n_draft_vocab=160),
    "dspark-gemma": replace(DSPARK, gemma="keys", head_dim=32),
    "dspark-gemma-values": replace(DSPARK, gemma="values", head_dim=32),
    "rank-0": replace(DSPARK, rank=0, confidence=False),
    "dflash2": DFLASH2,
    "dflash2-window": replace(DFLASH2, window=5, block=8, top_k=6),
}
N_ROWS, N_BEFORE = 24, 19


@dataclass
class Made:
    shape: BlockShape
    gguf: Path

    def native(self, **options: Any) -> Drafter:
        given = exact_options()
        for name, value in options.items():
            setattr(given, name, value)
        return Drafter(str(self.gguf), given)

    def reference(self, kind: type[BlockDrafter] = BlockDrafter) -> BlockDrafter:
        return kind.load(self.gguf.parent / "checkpoint")


@pytest.fixture(scope="module")
def make(tmp_path_factory: pytest.TempPathFactory, target: TinyTarget) -> Callable[[BlockShape], Made]:
    made: dict[BlockShape, Made] = {}

    def of(shape: BlockShape) -> Made:
        if shape not in made:
            made[shape] = Made(shape, shape.gguf(tmp_path_factory.mktemp("block"), target.gguf))
        return made[shape]

    return of


def expected(it: BlockDrafter, done: BlockPass, behind: list[int]) -> list[dict[int, float]]:
    """Log-probabilities of each slot by target id, behind the anchor and these tokens."""
    before = [done.anchor, *behind]
    if it.top_k:
        table = it.lattice(done)
        kept = [ids.tolist() for ids in table.ids]
        rows = [0] + [
            ids.index(token) if token in ids else 0 for ids, token in zip(kept, behind, strict=False)
        ]
        scores = [table.scores[slot][row] for slot, row in enumerate(rows)]
        ids = table.ids
    else:
        scores = [it.conditional(done, slot, before[i]) for i, slot in enumerate(it.slots())]
        ids = [it.target_ids] * len(scores)
    return [
        dict(zip(tokens.tolist(), row.log_softmax(-1).tolist(), strict=True))
        for tokens, row in zip(ids, scores, strict=True)
    ]


def differences(made: Made, kind: type[BlockDrafter] = BlockDrafter, **options: Any) -> list[float]:
    """Of each slot's log-probabilities, and last of keys and values. The tokens that are put into the slots
    are the walk's for DFlash2, which knows no others, and random for the rest.
    """
    features, tokens = random_rows(made.shape, N_ROWS)
    reference, right = made.reference(kind), made.reference()
    for one in {id(reference): reference, id(right): right}.values():
        one.commit(torch.from_numpy(features))
    done = right.run(tokens[-1])
    behind = right.walk(done)[:-1]
    if not right.top_k:
        behind = np.random.default_rng(3).integers(0, made.shape.n_vocab, len(behind)).tolist()
    native = made.native(**options)
    native.append(np.ascontiguousarray(features[:, :N_BEFORE]), tokens[:N_BEFORE])
    n_most = right.top_k or made.shape.n_draft_vocab
    found = native.block(np.ascontiguousarray(features[:, N_BEFORE:]), tokens[N_BEFORE:], behind, n_most)
    gaps = []
    for mine, theirs in zip(found, expected(reference, reference.run(tokens[-1]), behind), strict=True):
        shared = [abs(value - theirs[token]) for token, value, _ in mine if token in theirs]
        gaps.append(max(shared, default=np.inf) if len(shared) == len(mine) else np.inf)
    rows = [
        np.abs(mine - theirs.numpy()).max()
        for i, cache in enumerate(reference.cache)
        for mine, theirs in zip(native.kv(i), (cache.k, cache.v), strict=True)
    ]
    return [*gaps, float(max(rows))]


TOLERANCE = 1e-4


@pytest.mark.parametrize("shape", [DSPARK, replace(DSPARK, rank=0)], ids=["dspark", "rank-0"])
def test_a_slots_confidence_equals_the_reference(
    shape: BlockShape, make: Callable[[BlockShape], Made]
) -> None:
    made = make(shape)
    features, tokens = random_rows(made.shape, N_ROWS)
    right = made.reference()
    right.commit(torch.from_numpy(features))
    done = right.run(tokens[-1])
    behind = list(range(5, 5 + len(right.slots()) - 1))
    places = zip(right.slots(), [tokens[-1], *behind], strict=True)
    expected = [right.confidence(done, slot, token) for slot, token in places]
    found = made.native().block(features, tokens, behind, 4)
    assert [c for (_, _, c), *_ in found] == pytest.approx(expected, rel=1e-3)


@pytest.mark.parametrize("options", [{}, {"flash_attn": "on"}, {"kernels": "off"}], ids=["", "fused", "ggml"])
@pytest.mark.parametrize("name", SHAPES)
def test_slots_and_rows_equal_the_reference(
    name: str, options: dict[str, str], make: Callable[[BlockShape], Made]
) -> None:
    assert max(differences(make(SHAPES[name]), **options)) < TOLERANCE


class Window(BlockDrafter):
    def window(self, i: int) -> int:
        return 7

    def causal(self, i: int) -> bool:
        return False


def test_a_window_can_be_given_when_the_drafter_is_opened(make: Callable[[BlockShape], Made]) -> None:
    made = make(SHAPES["dspark"])
    assert max(differences(made, Window, draft_window=7)) < TOLERANCE
    assert max(differences(made, Window)[:-1]) > 100 * TOLERANCE


# Negative controls: each is a mistake that engines and converters have made.


class NormedContext(BlockDrafter):
    def context_input(self, i: int, g: torch.Tensor) -> torch.Tensor:
        weight = self.w[f"layers.{i}.input_layernorm.weight"]
        return g * torch.rsqrt(g.pow(2).mean(-1, keepdim=True) + self.eps) * weight


class NoHiddenNorm(BlockDrafter):
    def fuse(self, features: torch.Tensor) -> torch.Tensor:
        return torch.cat(list(features), dim=-1) @ self.w["fc.weight"].T


class ReversedFeatures(BlockDrafter):
    def fuse(self, features: torch.Tensor) -> torch.Tensor:
        return super().fuse(features.flip(0))


class LateAnchor(BlockDrafter):
    def positions(self, n_rows: int) -> torch.Tensor:
        return super().positions(n_rows) + 1


class OtherMask(BlockDrafter):
    def embedded(self, anchor: int, n_rows: int) -> torch.Tensor:
        rows = super().embedded(anchor, n_rows)
        rows[2] = self.embedding[7]  # type: ignore[index]
        return rows


class OtherSight(BlockDrafter):
    def causal(self, i: int) -> bool:
        return not super().causal(i)


class FewerRows(BlockDrafter):
    def run(self, anchor: int, n_rows: int = 0) -> BlockPass:
        done = super().run(anchor, self.block - 1)
        padded = [torch.cat([x, x[-1:]]) for x in (done.states, done.logits)]
        return BlockPass(done.anchor, *padded)


class NoBias(BlockDrafter):
    def conditional(self, done: BlockPass, slot: int, token: int) -> torch.Tensor:
        return done.logits[slot]


class SwappedSides(BlockDrafter):
    def convolved(self, y: torch.Tensor, x: torch.Tensor, name: str, side: int) -> torch.Tensor:
        return super().convolved(y, x, name, 1 - side)


MISTAKES = [
    ("dflash", NormedContext),
    ("dflash", NoHiddenNorm),
    ("dflash", ReversedFeatures),
    ("dflash", LateAnchor),
    ("dflash", OtherMask),
    ("dflash", OtherSight),
    ("dflash-windows", OtherSight),
    ("dflash", FewerRows),
    ("dspark", NoBias),
    ("dflash2", SwappedSides),
]


@pytest.mark.parametrize(("name", "mistake"), MISTAKES)
def test_a_mistake_is_seen(
    name: str, mistake: type[BlockDrafter], make: Callable[[BlockShape], Made]
) -> None:
    assert max(differences(make(SHAPES[name]), mistake)[:-1]) > 100 * TOLERANCE


def test_a_causal_block_may_be_cut(make: Callable[[BlockShape], Made]) -> None:
    assert max(differences(make(SHAPES["dflash-causal"]), FewerRows)[:-2]) < TOLERANCE


@pytest.mark.parametrize("name", ["dflash", "dspark", "dflash2"])
def test_blocks_leave_nothing_behind(name: str, make: Callable[[BlockShape], Made]) -> None:
    """Nor does what was cut off, and the rows of a text are the same in any parts."""
    made = make(SHAPES[name])
    features, tokens = random_rows(made.shape, N_ROWS)

    def part(a: int, b: int) -> tuple[np.ndarray, list[int]]:
        return np.ascontiguousarray(features[:, a:b]), tokens[a:b]

    one, other = made.native(), made.native()
    for a, b in ((0, 7), (7, 20)):
        one.block(*part(a, b), [], 4)
    one.truncate(12)
    other.append(*part(0, 12))
    assert one.block(*part(12, 24), [], 4) == other.block(*part(12, 24), [], 4)
    for layer in range(made.shape.n_layers):
        for mine, theirs in zip(one.kv(layer), other.kv(layer), strict=True):
            np.testing.assert_array_equal(mine, theirs)


def test_numbers_that_are_none_end_nothing(
    make: Callable[[BlockShape], Made], target: TinyTarget, tmp_path: Path
) -> None:
    """As of weights that overflow: nothing, or anything, is drafted, and the text is the plain one."""
    made = make(DFLASH2)
    draft = rewrite(
        made.gguf, tmp_path / "none.gguf", lambda tensors: tensors["enc.output_norm.weight"].fill(np.nan)
    )
    with eaglecpp.Engine.open(target.gguf, draft=draft, n_ctx=256, n_threads=1) as engine:
        for temperature in (0.0, 0.8):
            more: dict[str, Any] = {"max_tokens": 30, "temperature": temperature, "seed": 1}
            drafted = engine.generate(prompt_ids(20), strategy="tree:k=2,depth=3,nodes=6", **more)
            assert drafted.tokens == engine.generate(prompt_ids(20), strategy="off", **more).tokens


def test_a_short_block_may_be_less_than_a_convolution_reads(
    make: Callable[[BlockShape], Made], target: TinyTarget
) -> None:
    made = make(replace(DFLASH2, causal=True, extra={}, taps=4))
    with eaglecpp.Engine.open(target.gguf, draft=made.gguf, n_ctx=256, n_threads=1) as engine:
        drafted = engine.generate(prompt_ids(20), max_tokens=20, temperature=0.0, strategy="chain:1")
    assert drafted.timings.draft_n > 0


def foreseeing(shape: BlockShape, target: TinyTarget) -> BlockShape:
    """What it drafts is right now and then: the token before says most of what comes."""
    weights, made = target.weights, shape.weights()
    table, head = weights["model.embed_tokens.weight"], weights["lm_head.weight"]
    made["embed_tokens.weight"] = table
    unit = table / np.sqrt((table**2).mean(-1, keepdims=True) + 1e-5)
    before, after = unit * weights["model.norm.weight"], head
    if shape.kind == "dspark" and shape.rank:
        made |= {"markov_head.markov_w1.weight": before, "markov_head.markov_w2.weight": after}
    elif shape.kind == "dflash2":
        rows = made["candidate_selector.hidden_projection.weight"]
        made |= {
            "candidate_selector.predecessor_codebook": before,
            "candidate_selector.successor_codebook": after,
            # every state gives about ones: it is normed, and its weights are the projection
            "candidate_selector.hidden_projection.weight": rows * 0.02,
        }
    made["lm_head.weight"] = 0.02 * made["lm_head.weight"]

    class Foreseeing(BlockShape):
        def weights(self) -> dict[str, Any]:
            return made

    return Foreseeing(**vars(shape))


LAW = {
    "dflash": replace(DFLASH, kind="dspark", rank=0, confidence=False),
    "dspark": replace(DSPARK, rank=64, block=6),
    "dflash2": replace(DFLASH2, rank=64, top_k=64),
}


@pytest.fixture(scope="module", params=LAW)
def engine(
    request: pytest.FixtureRequest, make: Callable[[BlockShape], Made], target: TinyTarget
) -> eaglecpp.Engine:
    shape = LAW[request.param]
    draft = make(foreseeing(shape, target)).gguf
    with eaglecpp.Engine.open(
        target.gguf, draft=draft, n_ctx=512, n_threads=1, planner_cache=False, n_leaves_max=12, **EXACT
    ) as opened:
        yield opened


@pytest.mark.parametrize("temperature", [0.0, 0.8])
@pytest.mark.parametrize("strategy", ["chain:3", "chain:5", "tree:k=3,depth=4,nodes=12", "auto"])
def test_the_text_is_the_plain_one(engine: eaglecpp.Engine, strategy: str, temperature: float) -> None:
    n_drafted = 0
    for seed in range(3):
        more: dict[str, Any] = {
            "max_tokens": 60, "seed": seed, "temperature": temperature, "ignore_eos": True,
        }  # fmt: skip
        drafted = engine.generate(prompt_ids(20, seed), strategy=strategy, **more)
        engine.clear()
        plain = engine.generate(prompt_ids(20, seed), strategy="off", **more)
        engine.clear()
        assert drafted.tokens == plain.tokens
        n_drafted += drafted.timings.draft_n
    assert strategy == "auto" or n_drafted > 0


@pytest.mark.parametrize("kind", ["dflash", "dspark", "dflash2"])
def test_the_engine_drafts_what_the_reference_drafts(
    kind: str, make: Callable[[BlockShape], Made], target: TinyTarget
) -> None:
    """Every draft is taken, so that the text is the drafts, with one token of the target's own a round."""
    made, prompt = make(SHAPES[kind]), prompt_ids(20)
    reference = made.reference()
    depth = len(reference.slots())
    with (
        eaglecpp.Engine.open(target.gguf, draft=made.gguf, n_ctx=256, n_threads=1, **EXACT) as engine,
        accepted_by_lot([1.0] * depth),
    ):
        text = engine.generate(
            prompt, max_tokens=3 * depth + 4, strategy=f"chain:{depth}", temperature=0.0, ignore_eos=True
        ).tokens
    states = Target(target.directory, list(made.shape.layers))
    for start in (1, 2 + depth, 3 + 2 * depth):
        known = [*prompt, *text[:start]]
        states.reset()
        features, _ = states.forward(known[:-1])
        reference.reset()
        reference.commit(features)
        assert text[start : start + depth] == reference.walk(reference.run(known[-1]))


def test_what_a_block_drafter_cannot_do_is_refused(
    make: Callable[[BlockShape], Made], target: TinyTarget
) -> None:
    made = make(DSPARK)
    features, tokens = random_rows(made.shape, N_ROWS)
    with pytest.raises(ValueError, match="9 masked rows behind a commit, expected 0 to 4"):
        made.native().block(features, tokens, [1] * 9, 4)
    native = made.native()
    with pytest.raises(ValueError, match="fed no states"):
        native.commit(features, tokens)
    with pytest.raises(ValueError, match="depend on the tokens before them"):
        native.commit_ahead(features, tokens, 2)
    assert native.n_rows == 0
    with (
        eaglecpp.Engine.open(target.gguf, draft=made.gguf, n_ctx=256, n_threads=1) as engine,
        pytest.raises(ValueError, match="depth 7: this drafter gives 5 tokens"),
    ):
        engine.generate([1, 2, 3], max_tokens=20, strategy="chain:7")
