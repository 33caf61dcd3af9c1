# SPDX-License-Identifier: MIT
"""Tests drafters on a device. The slots of block drafters must equal PyTorch's, and the texts must equal
target-only decoding, also for several conversations at a time. A round waits for the device once, and the
graphs of a round are reused. Other drafters must equal PyTorch for every switch, every number of rows and
every type of weights.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import eaglecpp
from eaglecpp.lowlevel import Drafter
from helpers.native import engine_options
from helpers.random_block import BlockShape
from helpers.random_drafter import DraftShape
from helpers.reference.block import BlockDrafter, BlockPass, slot_distributions
from helpers.reference.drafter import Drafter as Reference
from helpers.sparse import write_block_drafter, write_target
from helpers.tiny import TinyTarget

from .conftest import Counts, Device
from .test_counts import LONG, run

TESTS = Path(__file__).parents[1]
TARGET = TESTS.parent / "examples" / "demo_model" / "pair" / "demo-target.gguf"
CHATS = [
    [{"role": "user", "content": question}]
    for question in ("Explain math.sqrt.", "What is in the module json?", "Who are you?")
]
KINDS = ["dflash", "dspark", "dflash2"]


@pytest.mark.parametrize("kind", KINDS)
def test_the_texts_equal_target_only_decoding(kind: str, device: Device) -> None:
    chats = CHATS[:2] if device.is_slow else CHATS
    options: dict[str, Any] = device.sizes | {"n_sequences": len(chats), "draft_device": device.name}
    draft = TESTS / "fixtures" / f"demo-{kind}.gguf"
    with eaglecpp.Engine.open(TARGET, draft=draft, **options) as engine:
        for temperature in (0.0, 0.8):
            more: dict[str, Any] = {"max_tokens": device.n_tokens, "temperature": temperature, "seed": 3}
            # For a sampled text, only an exact device must give the tokens of target-only decoding.
            is_compared = device.is_exact or temperature == 0.0
            plain = [engine.chat(c, strategy="off", n_probs=2, **more) for c in chats if is_compared]
            for strategy in device.some(["chain:4", "tree:k=3,depth=4,nodes=8", "auto"]):
                found = engine.generate_many(chats, strategy=strategy, **more)
                for ours, target_only in zip(found, plain, strict=False):
                    assert not device.is_exact or ours.tokens == target_only.tokens
                    device.assert_same_text(ours.tokens, target_only)
                accepted = sum(one.timings.draft_n_accepted for one in found)
                assert strategy == "auto" or accepted > 0


def test_about_as_much_is_accepted_as_on_the_cpu(device: Device) -> None:
    """Tests that a device accepts about as many drafts as the CPU. Acceptance may differ a little, because
    for DSpark slots after the first a device computes the effect of the previous token for only 128 tokens.
    """
    questions = ["os.path.join", "zip", "re.match", "random.choice", "enumerate", "collections.Counter"]
    draft, gains = TESTS / "fixtures" / "demo-dspark.gguf", []
    for place in ("cpu", device.name):
        options: dict[str, Any] = device.sizes | {"draft_device": place, "text_drafts": "off"}
        n_tokens = n_rounds = 0
        with eaglecpp.Engine.open(TARGET, draft=draft, n_gpu_layers=0, **options) as engine:
            for name in device.some(questions):
                done = engine.chat(
                    [{"role": "user", "content": f"Explain {name}."}], strategy="tree:k=3,depth=5,nodes=12",
                    temperature=0.8, seed=1, max_tokens=2 * device.n_tokens, ignore_eos=True,
                )  # fmt: skip
                n_tokens += len(done.tokens)
                n_rounds += done.timings.rounds
        gains.append(n_tokens / n_rounds - 1)
    print("tokens a round beyond one, on the CPU and on the device:", gains)
    assert gains[1] > (0.5 if device.is_slow else 0.9) * gains[0]


class Kept(BlockDrafter):
    """The 128 tokens that a device returns for a slot. In DSpark's slots after the first slot, the previous
    token only changes the probabilities of these tokens.
    """

    def conditional(self, done: BlockPass, slot: int, token: int) -> torch.Tensor:
        whole = super().conditional(done, slot, token)
        if not self.has_markov or slot == self.slots()[0]:
            return whole
        kept = done.logits[slot].topk(128).indices
        return done.logits[slot].scatter(0, kept, whole[kept])


@pytest.mark.parametrize("kind", [*KINDS, "gated"])
def test_slots_equal_the_reference(kind: Any, device: Device, target: TinyTarget, tmp_path: Path) -> None:
    """Compares the slots with PyTorch's, after random tokens and after commits of several sizes."""
    is_gated = kind == "gated"
    shape = BlockShape(kind="dflash" if is_gated else kind, own_tables=True, gated=is_gated)
    path = shape.gguf(tmp_path, target.gguf)
    options = engine_options(n_ctx=512, draft_type_kv="f32", draft_device=device.name)
    native, reference = Drafter(str(path), options), Kept.load(path.parent / "checkpoint")
    rng = np.random.default_rng(5)
    for n_rows in (17, 1, 3, 4):
        features = rng.normal(size=(len(shape.layers), n_rows, shape.n_embd_target)).astype(np.float32)
        anchor, *previous = rng.integers(0, shape.n_vocab, len(reference.slots())).tolist()
        reference.commit(torch.from_numpy(features))
        done = reference.run(anchor)
        if kind == "dflash2":  # the slots of DFlash2 return only their most likely tokens
            previous = reference.walk(done)[:-1]
        tokens = [*rng.integers(0, shape.n_vocab, n_rows - 1).tolist(), anchor]
        found = native.block(features, tokens, previous, 4)
        for slot, expected in zip(found, slot_distributions(reference, done, previous), strict=True):
            gaps = [abs(logp - expected[token]) for token, logp, _ in slot]
            assert len(gaps) == 4
            assert max(gaps) < (2e-3 if device.is_exact else 6e-2), f"{n_rows} rows"


@pytest.mark.parametrize("kind", KINDS)
def test_a_round_waits_once_and_runs_from_captured_graphs(
    kind: str, counts: Callable[[], Counts], tmp_path: Path
) -> None:
    """Tests that a round waits only once more than the target alone, for every strategy including `auto`: the
    pass, its heads and the search for their most likely tokens are one graph. When the text fills another 256
    cells of llama.cpp's cache, the target's graph is built anew, and therefore not captured. Here this
    happens twice.
    """
    target, draft = tmp_path / "target.gguf", tmp_path / "draft.gguf"
    write_target(target)
    write_block_drafter(draft, kind)
    found = run(LONG, target, draft, "off chain:3 chain:5 tree:k=3,depth=5,nodes=16 auto", "auto")
    print(kind, found)
    plain = found.pop("off")
    for strategy, values in found.items():
        n = values["rounds"]
        assert n <= 0.5 * plain["rounds"], f"{strategy} saves less than half of the rounds"
        assert values["waits"] / n <= plain["waits"] // plain["rounds"] + 1, strategy
        assert values["graphs"] / n <= 2, strategy
        # `auto` may change its batch size once and later change it back.
        assert values["built"] <= (4 if strategy == "auto" else 2), strategy
        assert values["captured"] >= 0.98 * values["graphs"], strategy


# Drafters that draft step by step

ROWS = (1, 2, 3, 4, 5, 6, 7, 8, 9, 17)
SHAPES = {
    "eagle3": DraftShape(),
    "eagle31": DraftShape(fc_norm=True, norm_output=True),
    "two-layers": DraftShape(n_layers=2),
    "three-layers-and-a-window": DraftShape(window=13, n_layers=3, full_layers=(1,)),
    "qk-norm-and-biases": DraftShape(qk_norm=True, attention_bias=True, fc_bias=True),
}
# Maximum difference of a logit, by the type of the weights. Logits are of the order of 3. The counting device
# rounds to half precision and to 8 bits in the same way as the CPU, and GPUs compute in half precision. For
# comparison, a row that is rotated to a wrong position differs by 0.14 or more.
EXACT = {"F32": 2e-3, "F16": 4e-2, "Q8_0": 0.5}
HALF = {"F32": 6e-2, "F16": 6e-2, "Q8_0": 0.5}


@pytest.fixture(scope="module")
def load(
    target: TinyTarget, device: Device, tmp_path_factory: pytest.TempPathFactory
) -> Callable[..., tuple[Drafter, Reference]]:
    def make(name: str, dtype: str, flash_attn: str) -> tuple[Drafter, Reference]:
        path = SHAPES[name].gguf(tmp_path_factory.mktemp("draft"), target.gguf, dtype)
        type_kv = "f32" if dtype == "F32" else "f16"
        options: dict[str, Any] = {"flash_attn": flash_attn, "draft_device": device.name}
        native = Drafter(str(path), engine_options(n_ctx=512, draft_type_kv=type_kv, **options))
        assert native.info["device"] == device.name
        return native, Reference.load(path.parent / "checkpoint")

    return make


def rows_of(shape: DraftShape, n_rows: int) -> tuple[np.ndarray, list[int]]:
    rng = np.random.default_rng(5)
    features = rng.normal(size=(len(shape.layers), n_rows, shape.n_embd_target)).astype(np.float32)
    return features, rng.integers(0, shape.n_vocab, n_rows).tolist()


@pytest.mark.parametrize("flash_attn", ["on", "off"])
@pytest.mark.parametrize(
    ("name", "dtype"),
    [*((name, "F32") for name in SHAPES), *((n, d) for n in ("eagle3", "eagle31") for d in ("F16", "Q8_0"))],
)
def test_logits_equal_the_reference(
    name: str, flash_attn: str, dtype: str, device: Device, load: Callable[..., tuple[Drafter, Reference]]
) -> None:
    """Tests every number of committed rows, because each number has a separate graph on a device."""
    bound = (EXACT if device.is_exact else HALF)[dtype]
    native, reference = load(name, dtype, flash_attn)
    features, tokens = rows_of(SHAPES[name], sum(ROWS))
    start, worst = 0, 0.0
    for n_rows in ROWS:
        part = slice(start, start + n_rows)
        logits, _ = native.commit(np.ascontiguousarray(features[:, part]), tokens[part])
        ref_logits, ref_state = reference.commit(torch.from_numpy(features[:, part].copy()), tokens[part])
        gap = np.abs(logits - ref_logits.numpy()).max()
        assert gap < bound, f"logits differ after {n_rows} committed rows"
        # A draft step of n_rows rows. The largest n_rows is the drafter's maximum.
        level = [(7 * i + 3) % 367 for i in range(n_rows)]
        fed = np.repeat(ref_state.numpy()[None], n_rows, 0)
        out, _ = native.extend(fed, level, [-1] * n_rows)
        ref_out, _ = reference.extend(torch.from_numpy(fed), level, [-1] * n_rows, 1)
        level_gap = np.abs(out - ref_out.numpy()).max()
        assert level_gap < bound, f"logits differ in a draft step of {n_rows} rows"
        worst = max(worst, gap, level_gap)
        reference.truncate(start + n_rows)
        native.truncate(start + n_rows)
        start += n_rows
    print(f"\nparity {device.name} {name} {dtype} fused attention {flash_attn}: {worst:.1e}")


def test_an_unknown_device_is_named(target: TinyTarget, tmp_path: Path) -> None:
    draft = SHAPES["eagle3"].gguf(tmp_path, target.gguf)
    with pytest.raises(
        ValueError, match=r"draft_device: expected auto, cpu or one of .*CPU.*, found 'Nowhere7'"
    ):
        Drafter(str(draft), engine_options(draft_device="Nowhere7"))
