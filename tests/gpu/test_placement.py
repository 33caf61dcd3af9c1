# SPDX-License-Identifier: MIT
"""Tests the placement of target and drafter: layers, experts, the drafter on the device of the target's
output layer, and devices without enough memory.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import eaglecpp
from helpers.models import Models
from helpers.random_drafter import DraftShape
from helpers.script import run_script
from helpers.tiny import ConvertedPair, TargetSpec, converted_pair, make_target, prompt_ids, write_gguf
from helpers.tiny_arch import make_latent, make_with_assistant, make_with_head
from helpers.tiny_tokenizer import tiny_tokenizer

from .conftest import SIZES, Counts, Device

EXPERTS = 7 * 3 * 4 * 64 * 32 * 4  # layers * matrices * experts * width * inner width * bytes per value


def held(engine: eaglecpp.Engine, device: str, what: str) -> int:
    """Returns the bytes of one kind of memory that are allocated on a device."""
    return sum(int(place[what]) for place in engine.memory_plan if place["device"] == device)


def weights_off_the_cpu(engine: eaglecpp.Engine) -> int:
    """Returns the bytes of the target's weights on all devices."""
    return sum(int(place["target_weights"]) for place in engine.memory_plan if place["device"] != "CPU")


@pytest.fixture(scope="module")
def mixture(tmp_path_factory: pytest.TempPathFactory) -> Models:
    return make_latent(tmp_path_factory.mktemp("mixture"))


@pytest.mark.parametrize(
    ("options", "share"),
    [
        ({"n_cpu_moe": -1}, 1.0),
        ({"n_cpu_moe": 2}, 1 / 7),
        ({"n_cpu_moe": 99}, 1.0),
        ({"override_tensor": r"ffn_up_exps=CPU,blk\.[0-3]\.ffn_down_exps=CPU"}, 10 / 21),
    ],
    ids=["all", "two layers", "more than there are", "override"],
)
def test_experts_stay_in_host_memory(
    options: dict[str, Any], share: float, mixture: Models, device: Device, greedy: dict[str, Any]
) -> None:
    prompt = prompt_ids(40)
    with eaglecpp.Engine.open(mixture.target, n_gpu_layers=0, **device.sizes) as cpu:
        plain = cpu.generate(prompt, **greedy)
    with eaglecpp.Engine.open(mixture.target, **device.sizes) as engine:
        everything = weights_off_the_cpu(engine)
    with eaglecpp.Engine.open(mixture.target, draft=mixture.draft, **device.sizes, **options) as engine:
        assert everything - weights_off_the_cpu(engine) == pytest.approx(share * EXPERTS, rel=0.02)
        for strategy in ("off", "chain:4", "tree:k=3,depth=4,nodes=12", "auto"):
            done = engine.generate(prompt, strategy=strategy, **greedy)
            device.assert_same_text(done.tokens, plain)
            if strategy not in ("off", "auto"):
                assert done.timings.draft_n_accepted > 0


def test_the_drafter_is_placed_with_the_output_layer(
    it: ConvertedPair, device: Device, servers: tuple[str, ...]
) -> None:
    """Tests that the drafter is on the device of the output layer, unless this device is on another machine.
    A draft needs many short waits, which a network makes slow.
    """
    beside = "CPU" if servers else device.name
    for layers, expected in ((-1, beside), (1, beside), (0, "CPU")):
        options = device.sizes | {"draft": it.draft, "n_gpu_layers": layers}
        with eaglecpp.Engine.open(it.pair.target.gguf, **options) as engine:
            assert engine.device_info["draft"] == expected
            assert engine.device_info["draft_why"] == ""
            assert held(engine, expected, "draft_weights") > 0
            assert held(engine, expected, "draft_cache") > 0


def test_a_tied_head_is_shared_without_a_copy(
    device: Device, servers: tuple[str, ...], tmp_path: Path, greedy: dict[str, Any]
) -> None:
    """Tests a target whose embeddings are also its head. A drafter that uses the target's embeddings and head
    needs no copy of them.
    """
    if servers:
        pytest.skip("this test needs a drafter on the servers")
    target = make_target(tmp_path)
    weights = {name: value for name, value in target.weights.items() if name != "lm_head.weight"}
    tied = tmp_path / "tied.gguf"
    write_gguf(tied, TargetSpec(), tiny_tokenizer(), weights, "F32")
    sizes = {}
    for own in (True, False):
        shape = DraftShape(n_draft_vocab=target.n_vocab, own_embedding=False, own_head=own)
        draft = shape.gguf(tmp_path / str(own), tied)
        with eaglecpp.Engine.open(tied, draft=draft, **device.sizes) as engine:
            sizes[own] = held(engine, device.name, "draft_weights")
            assert engine.device_info["draft"] == device.name
            plain = engine.generate(prompt_ids(30), strategy="off", **greedy)
            ours = engine.generate(prompt_ids(30), strategy="chain:3", **greedy)
            device.assert_same_text(ours.tokens, plain)
    assert sizes[True] - sizes[False] == pytest.approx(target.n_vocab * 64 * 4, abs=4096)


PROGRAM = """
import sys, logging
logging.basicConfig(level=logging.WARNING, stream=sys.stdout, format="%(message)s")
from eaglecpp import Engine
with Engine.open(sys.argv[1], sys.argv[2], n_ctx=512, n_threads=1, planner_cache=False) as engine:
    print(engine.device_info["draft"], "|", engine.device_info["draft_why"])
    done = engine.generate([5] * 40, max_tokens=20, temperature=0.0, ignore_eos=True, strategy="chain:3")
    print(done.timings.draft_n_accepted > 0)
"""


@pytest.mark.parametrize(
    ("room", "expected"),
    [(64 << 20, "less than 0.27 GB would stay free"), (100 << 10, "it does not fit on Counting0")],
    ids=["no margin", "no room"],
)
def test_a_drafter_without_room_runs_on_the_cpu(
    room: int, expected: str, it: ConvertedPair, counts: Callable[[], Counts]
) -> None:
    before = counts().bytes_held
    options = {**SIZES, "n_ctx": 512, "draft_device": "cpu", "n_batch": 2048, "n_ubatch": 512}
    with eaglecpp.Engine.open(it.pair.target.gguf, it.draft, **options):
        memory = counts().bytes_held - before + room
    done = run_script(PROGRAM, it.pair.target.gguf, it.draft, EAGLECPP_COUNTING_MEMORY=str(memory))
    assert done.returncode == 0, done.stdout + done.stderr
    # ggml's own log line about the failed allocation is left out.
    lines = [line for line in done.stdout.splitlines() if "alloc_tensor_range" not in line]
    warning, where, drafts = lines
    assert warning.startswith("the drafter runs on the CPU") and expected in warning
    assert where == f"CPU | {warning}"
    assert drafts == "True"


TWO_CARDS = """
import json, sys
from eaglecpp import Engine
target, draft, options = *sys.argv[1:3], json.loads(sys.argv[3])
sizes = dict(n_ctx=512, n_threads=1, n_batch=512, n_ubatch=128, planner_cache=False)
prompt, out = [5 + 3 * i % 90 for i in range(40)], {"same": [], "accepted": 0}
try:
    with Engine.open(target, draft or None, **sizes, **options) as engine:
        out["draft"] = engine.device_info["draft"]
        out["target"] = [place["device"] for place in engine.memory_plan if place["target_weights"]]
        for sampling in ({"temperature": 0.0}, {"seed": 3}):
            more = dict(max_tokens=60, ignore_eos=True, **sampling)
            texts = [engine.generate(prompt, strategy="off", **more).tokens]
            for strategy in ("auto", "chain:4"):
                done = engine.generate(prompt, strategy=strategy, **more)
                texts.append(done.tokens)
                out["accepted"] += done.timings.draft_n_accepted
            out["same"] += [text == texts[0] for text in texts[1:]]
except Exception as error:
    out["error"] = f"{type(error).__name__}: {error}"
print(json.dumps(out))
"""
CARDS = ["Counting0", "Counting1", "CPU"]
TWO: dict[str, tuple[dict[str, Any], str, list[str]]] = {
    "layers": ({}, "Counting1", CARDS),
    "shares": ({"tensor_split": [3, 1]}, "Counting1", CARDS),
    "partly on the CPU": ({"n_gpu_layers": 5}, "Counting1", CARDS),
    "one card": ({"split_mode": "none", "main_gpu": 1}, "Counting1", CARDS[1:]),
    "the drafter on the other card": ({"draft_device": "Counting0"}, "Counting0", CARDS),
    "the drafter on the CPU": ({"draft_device": "cpu"}, "CPU", CARDS),
    "tensors": ({"split_mode": "tensor"}, "Counting0", ["Meta()", "CPU"]),
}


def on_two_cards(target: Path, draft: Path | str, options: dict[str, Any]) -> dict[str, Any]:
    """Runs TWO_CARDS with two counting devices, and returns its output."""
    done = run_script(TWO_CARDS, target, draft, json.dumps(options), EAGLECPP_COUNTING_DEVICES="2")
    assert done.returncode == 0, done.stdout + done.stderr
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


@pytest.mark.parametrize("name", TWO)
def test_two_cards_keep_the_text(
    name: str, it: ConvertedPair, counts: Callable[[], Counts], tmp_path: Path
) -> None:
    """Tests that the text stays the same on two cards. The second drafter uses the target's embeddings and
    head, which may be on the other card.
    """
    options, draft_device, devices = TWO[name]
    if name == "tensors":
        it = converted_pair(tmp_path, "eagle31", TargetSpec(n_ff=256, seed=2))
    target = it.pair.target
    shape = DraftShape(n_draft_vocab=target.n_vocab, own_embedding=False, own_head=False)
    for draft in (it.draft, shape.gguf(tmp_path / "sharing", target.gguf)):
        found = on_two_cards(target.gguf, draft, options)
        assert "error" not in found, found
        assert (found["draft"], set(found["target"])) == (draft_device, set(devices))
        assert all(found["same"]) and found["accepted"] > 0, found


def test_unsupported_splits_are_refused_with_the_reason(
    it: ConvertedPair, counts: Callable[[], Counts], tmp_path: Path
) -> None:
    refused: list[tuple[Path, Path | str, str, str]] = [
        (it.pair.target.gguf, it.draft, "row", "Counting0 does not support split buffers"),
        (
            make_with_head(tmp_path, "glm4moe"),
            "mtp",
            "tensor",
            "only on whole layers; use split_mode 'layer'",
        ),
        # The 128 rows of `ffn_up` are a single part in this Gemma 4. Without the check, the model answered
        # with token 0.
        (make_with_assistant(tmp_path)[0], "", "tensor", "no part of tensor 'blk.0.ffn_"),
        (it.pair.target.gguf, it.draft, "tensor", "no part of tensor 'blk.0.ffn_"),
    ]
    for target, draft, split_mode, reason in refused:
        assert reason in on_two_cards(target, draft, {"split_mode": split_mode})["error"]


@pytest.mark.parametrize("exact", ["auto", "off"])
def test_verification_stays_where_the_weights_are(
    exact: str, it: ConvertedPair, counts: Callable[[], Counts], device: Device, greedy: dict[str, Any]
) -> None:
    """Tests a target with three layers on the device. For batches of 32 rows and more, llama.cpp must not
    send the weights of the other layers to the device.
    """
    options = {**SIZES, "n_gpu_layers": 3, "draft_device": "cpu", "n_draft_max": 48, "exact": exact}
    with eaglecpp.Engine.open(it.pair.target.gguf, draft=it.draft, **options) as engine:
        up = {}
        for nodes in (16, 40):
            strategy = f"tree:k=8,depth=5,nodes={nodes}"
            engine.clear()
            before = counts().bytes_up
            done = engine.generate(prompt_ids(8), strategy=strategy, **greedy)
            up[nodes] = (counts().bytes_up - before) / done.timings.rounds
        # For comparison, the matrices of one layer have 200 KB, and a row of activations has 256 bytes.
        assert up[40] < up[16] + 100_000, up
        engine.clear()
        before = counts().bytes_up
        engine.generate(prompt_ids(100), strategy="off", max_tokens=1, temperature=0.0)
        assert counts().bytes_up - before > 400_000, "the GPU must still compute prompts"
