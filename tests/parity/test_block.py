# SPDX-License-Identifier: MIT
"""Tests drafters that draft in one pass (DFlash, DSpark, DFlash2 and P-EAGLE). Rows and slots must equal
PyTorch's, and drafting must not change texts. Also compares free-running chains of the engine with the
PyTorch loop. This comparison detects faults that teacher-forced parity cannot: the vocabulary map, the commit
after a round, the position of every row.
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
from helpers.random_acceptance import accepted_at_random
from helpers.random_block import BlockShape
from helpers.random_drafter import DraftShape
from helpers.reference.block import BlockDrafter, slot_distributions
from helpers.reference.chain import draft_chain, generate
from helpers.reference.drafter import Drafter as ChainDrafter
from helpers.reference.layers import Rope
from helpers.reference.parallel import ParallelDrafter
from helpers.reference.target import Target
from helpers.tiny import ConvertedPair, TinyTarget, prompt_ids
from helpers.tiny_split import rewrite

from .cases import DEEPSPEC, EAGLE1
from .conftest import EXACT, exact_options, random_rows
from .steps import gap

DFLASH = BlockShape(own_tables=True)
DSPARK = BlockShape(kind="dspark")
DFLASH2 = BlockShape(kind="dflash2", own_tables=True, block=6)
# The weights of this drafter make its drafts depend on the features.
TARGET_HEAD = replace(DSPARK, target_head=True, seed=12)
SHAPES = {
    "dflash": DFLASH,
    "dflash-causal": replace(DFLASH, causal=True),
    "dflash-windows": replace(DFLASH, window=7, n_layers=3, full_layers=(1,)),
    "dflash-sinks": replace(DFLASH, window=7, sinks=True, extra={"attention_value_scale": 0.7}),
    "dflash-gated": replace(DFLASH, gated=True, causal=True),
    "dflash-gated-windows": replace(DFLASH, gated=True, causal=True, window=7, n_layers=3),
    "dflash-one-layer": replace(DFLASH, n_layers=1, block=16),
    "dspark": DSPARK,
    "dspark-causal": replace(DSPARK, causal=True, block=7),
    "dspark-draft-vocabulary": replace(DSPARK, n_draft_vocab=160),
    "dspark-in-place": replace(DSPARK, extra={"sample_from_anchor": False}),
    "dspark-gemma": replace(DSPARK, gemma="keys", head_dim=32),
    "dspark-gemma-values": replace(DSPARK, gemma="values", head_dim=32),
    "rank-0": replace(DSPARK, rank=0),
    "dflash2": DFLASH2,
    "dflash2-scaled": replace(DFLASH2, extra={"output_multiplier": 0.3}),
    "dflash2-window": replace(DFLASH2, window=9, block=8, top_k=6),
}
PARALLEL = DraftShape(n_parallel=6)
PARALLEL_SHAPES = {
    "parallel": PARALLEL,
    "parallel-3.1": replace(PARALLEL, fc_norm=True, norm_output=True),
    "parallel-norm-before-fc": replace(PARALLEL, norm_before_fc=True, norm_before_residual=True),
    "parallel-two-layers": replace(PARALLEL, n_layers=2, n_kv_heads=4),
    "parallel-three-layers-of-3.1": replace(PARALLEL, n_layers=3, fc_norm=True),
    "parallel-window": replace(PARALLEL, window=13),
    "parallel-own-everything": replace(PARALLEL, n_draft_vocab=367, qk_norm=True),
}
N_ROWS, N_BEFORE = 24, 19
Part = tuple[np.ndarray, list[int]]


@dataclass
class Made:
    shape: Any
    gguf: Path
    head: torch.Tensor  # the target's head

    def native(self, **options: Any) -> Drafter:
        return Drafter(str(self.gguf), exact_options(**options))

    def reference(self, kind: Any = None) -> Any:
        by_shape = BlockDrafter if isinstance(self.shape, BlockShape) else ChainDrafter
        kind = kind or (ParallelDrafter if self.is_parallel else by_shape)
        return kind.load(self.gguf.parent / "checkpoint", head=self.head)

    @property
    def is_parallel(self) -> bool:
        return isinstance(self.shape, DraftShape) and self.shape.n_parallel > 0

    def ahead(self, native: Drafter, part: Part) -> Any:
        """Commits these rows, runs a pass, and returns the output of the pass."""
        return native.commit_ahead(*part, 5).tolist() if self.is_parallel else native.block(*part, [], 4)


Make = Callable[..., Made]


@pytest.fixture(scope="module")
def make(tmp_path_factory: pytest.TempPathFactory, target: TinyTarget) -> Make:
    made: dict[str, Made] = {}
    head = Target(target.directory, [2]).head

    def of(shape: BlockShape | DraftShape, **reading: Any) -> Made:
        # the shape's hash leaves some fields out, so the name has the whole config
        name = f"{shape} {reading}"
        if name not in made:
            file = shape.gguf(tmp_path_factory.mktemp("block"), target.gguf, **reading)
            made[name] = Made(shape, file, head)
        return made[name]

    return of


def differences(made: Made, kind: Any = None, **options: Any) -> list[float]:
    """Returns the differences between native drafter and reference: of each slot's log-probabilities and
    confidence, and at the end of keys and values. Each slot gets a random token as its previous token.
    DFlash2's candidates are fixed, so its slots get the tokens of the reference's walk.
    """
    features, tokens = random_rows(made.shape, N_ROWS)
    reference = made.reference(kind)
    reference.commit(torch.from_numpy(features))
    done = reference.run(tokens[-1])
    previous = reference.walk(done)[:-1]
    if not reference.top_k:
        previous = np.random.default_rng(3).integers(0, made.shape.n_vocab, len(previous)).tolist()
    native = made.native(**options)
    native.append(np.ascontiguousarray(features[:, :N_BEFORE]), tokens[:N_BEFORE])
    n_max = reference.top_k or made.shape.n_draft_vocab
    found = native.block(np.ascontiguousarray(features[:, N_BEFORE:]), tokens[N_BEFORE:], previous, n_max)
    gaps = []
    for mine, theirs in zip(found, slot_distributions(reference, done, previous), strict=True):
        shared = [abs(value - theirs[token]) for token, value, _ in mine if token in theirs]
        gaps.append(max(shared, default=np.inf) if len(shared) == len(mine) else np.inf)
    if "confidence_head.proj.weight" in reference.w:
        before = zip(reference.slots(), [tokens[-1], *previous], strict=True)
        mine = [confidence for (_, _, confidence), *_ in found]
        gaps += np.abs(np.subtract(mine, [reference.confidence(done, *one) for one in before])).tolist()
    rows = [
        np.abs(mine - theirs.numpy()).max()
        for i, cache in enumerate(reference.cache)
        for mine, theirs in zip(native.kv(i), (cache.k, cache.v), strict=True)
    ]
    return [*gaps, float(max(rows))]


TOLERANCE = 1e-4


@pytest.mark.parametrize("options", [{}, {"flash_attn": "on"}, {"kernels": "off"}], ids=["", "fused", "ggml"])
@pytest.mark.parametrize("name", SHAPES)
def test_slots_and_rows_equal_the_reference(name: str, options: dict[str, str], make: Make) -> None:
    assert max(differences(make(SHAPES[name]), **options)) < TOLERANCE


def test_a_confidence_head_may_have_any_type(make: Make) -> None:
    """Tests a confidence head in several tensor types. llama.cpp's converter stores the confidence head in
    the type of other matrices, and eaglecpp's converter stores it in F32.
    """
    made = make(SHAPES["dspark"])
    other = made.gguf.with_name("other.gguf")

    def change(tensors: dict[str, Any]) -> None:
        tensors["conf_proj.weight"] = tensors["conf_proj.weight"].astype(np.float16)

    rewrite(made.gguf, other, change)
    assert max(differences(replace(made, gguf=other))) < 100 * TOLERANCE


def test_a_gated_drafter_is_causal_if_its_file_does_not_say(make: Make) -> None:
    """poolside's own GGUFs do not say whether the drafter is causal."""
    made = make(SHAPES["dflash-gated"])
    silent = made.gguf.with_name("silent.gguf")
    rewrite(made.gguf, silent, changed={"dflash_ex.attention.causal": None})
    assert max(differences(replace(made, gguf=silent))) < TOLERANCE


class Window(BlockDrafter):
    def window(self, i: int) -> int:
        return 7

    def causal(self, i: int) -> bool:
        return False


def test_a_window_can_be_set_when_the_drafter_is_opened(make: Make) -> None:
    assert max(differences(make(SHAPES["dspark"]), Window, draft_window=7)) < TOLERANCE


class RotatedInPart(BlockDrafter):
    """Rotates the first half of each head, like engines with partial_rotary_factor 0.5."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        n = self.shape.head_dim // 2
        rope = Rope({"rope_theta": 10000.0}, n)
        self.rope = lambda x, positions: torch.cat([rope(x[..., :n], positions), x[..., n:]], dim=-1)


@pytest.mark.parametrize(("reading", "kind"), [("ignored", BlockDrafter), ("applied", RotatedInPart)])
def test_both_variants_of_partly_rotated_heads(reading: str, kind: type[BlockDrafter], make: Make) -> None:
    shape = replace(DSPARK, extra={"partial_rotary_factor": 0.5})
    assert max(differences(make(shape, readings={"partial_rotary": reading}), kind)) < TOLERANCE


def test_rows_at_a_wrong_position_are_detected(make: Make) -> None:
    """Tests that the comparison is strict enough to detect a mistake."""
    one_later = {"positions": lambda it, n: BlockDrafter.positions(it, n) + 1}
    assert max(differences(make(DFLASH), type("Mistaken", (BlockDrafter,), one_later))[:-1]) > 100 * TOLERANCE


def parallel_differences(made: Made, kind: type[ParallelDrafter] = ParallelDrafter) -> list[float]:
    """Returns the differences between native drafter and reference in the six drafted distributions."""
    features, tokens = random_rows(made.shape, N_ROWS)
    native = made.native()
    native.append(np.ascontiguousarray(features[:, :N_BEFORE]), tokens[:N_BEFORE])
    found = native.commit_ahead(np.ascontiguousarray(features[:, N_BEFORE:]), tokens[N_BEFORE:], 5)
    expected = made.reference(kind).ahead(torch.from_numpy(features), tokens, 5)
    return [gap(one, other) for one, other in zip(found, expected, strict=True)]


@pytest.mark.parametrize("name", PARALLEL_SHAPES)
def test_all_depths_of_one_pass_equal_the_reference(name: str, make: Make) -> None:
    assert max(parallel_differences(make(PARALLEL_SHAPES[name]))) < 10 * TOLERANCE


def test_masked_rows_at_one_position_are_detected(make: Make) -> None:
    """Tests that mistakes in masked rows change the drafts. A mistake in positions only changes the drafts
    from the second masked row on, because the first masked row has no masked row before it.
    """
    at_first = {"mask_positions": lambda it, first, n: torch.full((n,), first)}
    found = parallel_differences(make(PARALLEL), type("Mistaken", (ParallelDrafter,), at_first))
    assert found[0] < 10 * TOLERANCE
    assert min(found[2:]) > 100 * TOLERANCE


@pytest.mark.parametrize(
    "shape",
    [DFLASH, DSPARK, DFLASH2, PARALLEL_SHAPES["parallel-two-layers"]],
    ids=["dflash", "dspark", "dflash2", "parallel"],
)
def test_a_pass_leaves_no_trace(shape: Any, make: Make) -> None:
    """Tests that a pass and truncated rows do not change later results. A text that is committed in any parts
    must give the same rows.
    """
    made = make(shape)
    features, tokens = random_rows(made.shape, N_ROWS)

    def part(a: int, b: int) -> Part:
        return np.ascontiguousarray(features[:, a:b]), tokens[a:b]

    one, other = made.native(), made.native()
    for a, b in ((0, 7), (7, 20)):
        made.ahead(one, part(a, b))
    one.truncate(12)
    other.append(*part(0, 12))
    assert made.ahead(one, part(12, 24)) == made.ahead(other, part(12, 24))
    assert one.n_rows == 24
    for layer in range(made.shape.n_layers):
        for mine, theirs in zip(one.kv(layer), other.kv(layer), strict=True):
            np.testing.assert_array_equal(mine, theirs)


def test_nan_logits_change_no_text(make: Make, target: TinyTarget, tmp_path: Path) -> None:
    """Tests a drafter whose logits are NaN, for example because its weights overflow. It may draft any tokens
    or none, but the text must equal the target's.
    """
    made = make(DFLASH2)
    draft = rewrite(
        made.gguf, tmp_path / "none.gguf", lambda tensors: tensors["enc.output_norm.weight"].fill(np.nan)
    )
    with eaglecpp.Engine.open(target.gguf, draft=draft, n_ctx=256, n_threads=1) as engine:
        for temperature in (0.0, 0.8):
            more: dict[str, Any] = {"max_tokens": 30, "temperature": temperature, "seed": 1}
            drafted = engine.generate(prompt_ids(20), strategy="tree:k=2,depth=3,nodes=6", **more)
            assert drafted.tokens == engine.generate(prompt_ids(20), strategy="off", **more).tokens


def test_a_block_may_be_shorter_than_a_convolution(make: Make, target: TinyTarget) -> None:
    made = make(replace(DFLASH2, causal=True, extra={}, taps=4))
    with eaglecpp.Engine.open(target.gguf, draft=made.gguf, n_ctx=256, n_threads=1) as engine:
        drafted = engine.generate(prompt_ids(20), max_tokens=20, temperature=0.0, strategy="chain:1")
    assert drafted.timings.draft_n > 0


@pytest.fixture(scope="module")
def engine(make: Make, target: TinyTarget) -> Iterator[eaglecpp.Engine]:
    """Opens the engine with a random block drafter. e2e/test_trained_pairs.py tests trained block
    drafters.
    """
    sizes: dict[str, Any] = {"n_ctx": 512, "n_threads": 1, "n_leaves_max": 12, "planner_cache": False}
    with eaglecpp.Engine.open(target.gguf, draft=make(PARALLEL).gguf, **sizes, **EXACT) as opened:
        yield opened


@pytest.mark.parametrize("temperature", [0.0, 0.8])
@pytest.mark.parametrize("strategy", ["chain:3", "chain:5", "tree:k=3,depth=4,nodes=12", "auto"])
def test_the_text_equals_target_only_decoding(
    engine: eaglecpp.Engine, strategy: str, temperature: float
) -> None:
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


def drafts(reference: Any, features: torch.Tensor, known: list[int], depth: int) -> list[int]:
    """Returns the reference's most likely drafts after a text. As in a round, the text's last token has no
    features yet.
    """
    if isinstance(reference, ParallelDrafter):
        return reference.drafts(features, known[1:], depth)
    if isinstance(reference, ChainDrafter):
        return draft_chain(reference, *reference.commit(features, known[1:]), depth)
    reference.commit(features)
    walked: list[int] = reference.walk(reference.run(known[-1]))
    return walked


@pytest.mark.parametrize(
    ("shape", "depth"),
    [
        *((DFLASH, 4), (DSPARK, 5), (TARGET_HEAD, 5), (DFLASH2, 5), (PARALLEL, 6)),
        *((EAGLE1, 4), (DEEPSPEC, 4)),  # these draft a chain, step by step
    ],
    ids=["dflash", "dspark", "target-head", "dflash2", "parallel", "eagle1", "deepspec"],
)
def test_the_engine_drafts_like_the_reference(shape: Any, depth: int, make: Make, target: TinyTarget) -> None:
    """Compares the engine's drafts with the reference's. The test accepts all drafts, so the text consists of
    drafts and one token of the target per round. The prompt is computed in slices. Features of neighbouring
    layers would give other drafts.
    """
    made, prompt, sizes = make(shape), prompt_ids(40), {"n_ctx": 256, "n_threads": 1, "n_batch": 16}
    with (
        eaglecpp.Engine.open(target.gguf, draft=made.gguf, **sizes, **EXACT) as engine,
        accepted_at_random([1.0] * depth),
    ):
        text = engine.generate(
            prompt, max_tokens=3 * depth + 4, strategy=f"chain:{depth}", temperature=0.0, ignore_eos=True
        ).tokens
        if shape not in (EAGLE1, DEEPSPEC):
            more = f"depth {depth + 1}: this drafter gives up to {depth} tokens"
            with pytest.raises(ValueError, match=more):
                engine.generate([1, 2, 3], max_tokens=20, strategy=f"chain:{depth + 1}")
    for shift in (0, -1) if shape == EAGLE1 else (0, -1, 1):  # no feature follows EAGLE-1's
        states, same = Target(target.directory, [k + shift for k in made.shape.layers]), []
        for start in (1, 2 + depth, 3 + 2 * depth):
            known = [*prompt, *text[:start]]
            states.reset()
            features, _ = states.forward(known[:-1])
            same.append(text[start : start + depth] == drafts(made.reference(), features, known, depth))
        assert all(same) == (shift == 0)


def test_requests_that_a_one_pass_drafter_cannot_serve_are_refused(make: Make) -> None:
    features, tokens = random_rows(DSPARK, N_ROWS)
    native = make(DSPARK).native()
    for call, text in (
        (
            lambda: native.block(features, tokens, [1] * 9, 4),
            "expected 0 to 4 masked rows after a commit, found 9",
        ),
        (lambda: native.commit(features, tokens), "do not read states"),
        (lambda: native.commit_ahead(features, tokens, 2), "depend on the previous tokens"),
    ):
        with pytest.raises(ValueError, match=text):
            call()
    assert native.n_rows == 0
    native = make(PARALLEL).native()
    with pytest.raises(ValueError, match="expected 0 to 128 masked rows after a commit, found 200"):
        native.commit_ahead(features, tokens, 200)
    native.commit(features, tokens)
    with pytest.raises(ValueError, match="gives all draft tokens in the commit"):
        native.extend(np.zeros((1, PARALLEL.n_embd), np.float32), [1], [-1])


# Chains of the engine, and the PyTorch loop

DEPTH = 5
N_TOKENS = 150
Rounds = tuple[list[int], list[int]]
"""Tokens of a free-running chain, and the number of accepted drafts of each round."""


def count(session: eaglecpp.Session, prompt: list[int]) -> Rounds:
    """Runs whole rounds until `N_TOKENS` tokens exist, and then closes the stream. Returns the tokens, and
    the number of accepted drafts in each round.
    """
    tokens: list[int] = []
    accepted: list[int] = []
    options: dict[str, Any] = {"temperature": 0.0, "ignore_eos": True, "strategy": f"chain:{DEPTH}"}
    with session.stream(prompt, max_tokens=N_TOKENS + 2 * DEPTH, **options) as stream:
        for chunk in stream:
            if not chunk.tokens:
                continue
            if tokens:  # the first token comes from the prefill, not from a round
                accepted.append(sum(chunk.accepted))
            tokens += chunk.tokens
            if len(tokens) >= N_TOKENS:
                break
    return tokens, accepted


def open_engine(it: ConvertedPair, **options: Any) -> eaglecpp.Engine:
    return eaglecpp.Engine.open(
        it.pair.target.gguf, draft=it.draft, n_ctx=1024, n_threads=1, **EXACT, **options
    )


def engine_run(it: ConvertedPair, prompt: list[int], **options: Any) -> Rounds:
    with open_engine(it, **options) as engine, engine.session() as session:
        return count(session, prompt)


def reference_run(it: ConvertedPair, prompt: list[int]) -> Rounds:
    target = Target(it.pair.target.directory, it.pair.layers)
    drafter = ChainDrafter.load(it.pair.checkpoint, target.embedding, target.head)
    tokens, accepted = generate(target, drafter, prompt, N_TOKENS, DEPTH)
    assert 0 < sum(n > 1 for n in accepted) < len(accepted), "the pair drafts too little to compare"
    return tokens, accepted


@pytest.mark.parametrize(
    ("kind", "arch"), [("eagle3", "llama"), ("eagle31", "llama"), ("eagle31", "qwen2"), ("eagle3", "qwen3")]
)
def test_rounds_equal_the_reference(kind: str, arch: str, pairs: Callable[..., ConvertedPair]) -> None:
    it = pairs(kind, arch)
    for seed in (1, 2):
        prompt = prompt_ids(40, seed)
        assert engine_run(it, prompt) == reference_run(it, prompt)


def test_a_prefill_in_small_slices_changes_nothing(it: ConvertedPair) -> None:
    """Tests that small prompt slices change nothing. The drafter's row at the end of a slice needs the first
    token of the next slice.
    """
    prompt = prompt_ids(75)
    assert engine_run(it, prompt, n_batch=16, n_ubatch=16) == reference_run(it, prompt)


def test_a_second_turn_continues_from_true_features(it: ConvertedPair) -> None:
    """Tests that target and drafter reuse correct rows after an abandoned stream. The rows must equal the
    rows of a fresh prefill.
    """
    prompt = prompt_ids(40)
    with open_engine(it) as engine, engine.session() as session:
        tokens, _ = count(session, prompt)
        longer = [*prompt, *tokens[:100], *prompt_ids(12, seed=5)]
        assert count(session, longer) == reference_run(it, longer)
        reused = session.generate(longer, max_tokens=1, temperature=0.0).timings.reused_n
    assert reused >= len(longer) - 2
