# SPDX-License-Identifier: MIT
"""Block drafters, DFlash, DSpark and DFlash2: rows of the text and slots as in PyTorch, and texts that they
leave as they are.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
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
    reference = made.reference(kind)
    reference.commit(torch.from_numpy(features))
    done = reference.run(tokens[-1])
    behind = reference.walk(done)[:-1]
    if not reference.top_k:
        behind = np.random.default_rng(3).integers(0, made.shape.n_vocab, len(behind)).tolist()
    native = made.native(**options)
    native.append(np.ascontiguousarray(features[:, :N_BEFORE]), tokens[:N_BEFORE])
    n_most = reference.top_k or made.shape.n_draft_vocab
    found = native.block(np.ascontiguousarray(features[:, N_BEFORE:]), tokens[N_BEFORE:], behind, n_most)
    gaps = []
    for mine, theirs in zip(found, expected(reference, done, behind), strict=True):
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
    assert max(differences(make(SHAPES["dspark"]), Window, draft_window=7)) < TOLERANCE


def other_mask(it: BlockDrafter, anchor: int, n_rows: int) -> torch.Tensor:
    rows = BlockDrafter.embedded(it, anchor, n_rows)
    rows[2] = it.embedding[7]  # type: ignore[index]
    return rows


def fewer_rows(it: BlockDrafter, anchor: int) -> BlockPass:
    done = BlockDrafter.run(it, anchor, it.block - 1)
    return BlockPass(anchor, *(torch.cat([x, x[-1:]]) for x in (done.states, done.logits)))


# Negative controls: each is a mistake that engines and converters have made.
MISTAKES: list[tuple[str, str, Callable[..., Any]]] = [
    ("dflash", "fuse", lambda it, x: torch.cat(list(x), dim=-1) @ it.w["fc.weight"].T),
    ("dflash", "fuse", lambda it, x: BlockDrafter.fuse(it, x.flip(0))),
    ("dflash", "positions", lambda it, n: BlockDrafter.positions(it, n) + 1),
    ("dflash", "embedded", other_mask),
    ("dflash", "causal", lambda it, i: not BlockDrafter.causal(it, i)),
    ("dflash-windows", "causal", lambda it, i: not BlockDrafter.causal(it, i)),
    ("dflash", "run", fewer_rows),
    ("dspark", "conditional", lambda it, done, slot, token: done.logits[slot]),
    ("dflash2", "convolved", lambda it, y, x, name, side: BlockDrafter.convolved(it, y, x, name, 1 - side)),
]


@pytest.mark.parametrize(("name", "method", "mistake"), MISTAKES)
def test_a_mistake_is_seen(
    name: str, method: str, mistake: Callable[..., Any], make: Callable[[BlockShape], Made]
) -> None:
    wrong = type("Mistaken", (BlockDrafter,), {method: mistake})
    assert max(differences(make(SHAPES[name]), wrong)[:-1]) > 100 * TOLERANCE


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


def foreseeing(target: TinyTarget) -> BlockShape:
    """A DFlash2 drafter that is right now and then: the token before says most of what comes."""
    shape, weights = replace(DFLASH2, rank=64, top_k=64), target.weights
    table, head = weights["model.embed_tokens.weight"], weights["lm_head.weight"]
    unit = table / np.sqrt((table**2).mean(-1, keepdims=True) + 1e-5)
    made = shape.weights() | {
        "embed_tokens.weight": table,
        "candidate_selector.predecessor_codebook": unit * weights["model.norm.weight"],
        "candidate_selector.successor_codebook": head,
    }
    # every state gives about ones: it is normed, and its weights are the projection
    for name in ("candidate_selector.hidden_projection.weight", "lm_head.weight"):
        made[name] = 0.02 * made[name]

    class Foreseeing(BlockShape):
        def weights(self) -> dict[str, Any]:
            return made

    return Foreseeing(**vars(shape))


@pytest.fixture(scope="module")
def engine(make: Callable[[BlockShape], Made], target: TinyTarget) -> Iterator[eaglecpp.Engine]:
    """Trained DFlash and DSpark drafters are in test_trained_blocks.py."""
    sizes: dict[str, Any] = {"n_ctx": 512, "n_threads": 1, "n_leaves_max": 12, "planner_cache": False}
    draft = make(foreseeing(target)).gguf
    with eaglecpp.Engine.open(target.gguf, draft=draft, **sizes, **EXACT) as opened:
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
