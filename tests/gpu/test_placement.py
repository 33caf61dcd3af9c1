# SPDX-License-Identifier: MIT
"""Placement of target and drafter: layers, experts, the drafter next to the target's output, and devices
without room.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import eaglecpp
from helpers.models import Models
from helpers.random_drafter import DraftShape
from helpers.tiny import ConvertedPair, TargetSpec, make_target, prompt_ids, write_gguf
from helpers.tiny_arch import make_mixture
from helpers.tiny_tokenizer import tiny_tokenizer

from .conftest import SIZES, Counts, Device

OPEN: dict[str, Any] = {**SIZES, "planner_cache": False}
EXPERTS = 8 * 3 * 8 * 64 * 128 * 4  # layers, matrices, experts, width, inner width, bytes


def held(engine: eaglecpp.Engine, device: str, what: str) -> int:
    """Returns the bytes of one kind on a device, 0 if it has none."""
    return sum(int(place[what]) for place in engine.memory_plan if place["device"] == device)


def weights_off_the_cpu(engine: eaglecpp.Engine) -> int:
    """Returns the bytes of the target's weights on all devices."""
    return sum(int(place["target_weights"]) for place in engine.memory_plan if place["device"] != "CPU")


@pytest.fixture(scope="module")
def mixture(tmp_path_factory: pytest.TempPathFactory) -> Models:
    return make_mixture(tmp_path_factory.mktemp("mixture"))


@pytest.mark.parametrize(
    ("options", "share"),
    [
        ({"n_cpu_moe": -1}, 1.0),
        ({"n_cpu_moe": 2}, 0.25),
        ({"n_cpu_moe": 99}, 1.0),
        ({"override_tensor": r"ffn_up_exps=CPU,blk\.[0-3]\.ffn_down_exps=CPU"}, 0.5),
    ],
    ids=["all", "two layers", "more than there are", "override"],
)
def test_experts_stay_in_host_memory(
    options: dict[str, Any], share: float, mixture: Models, device: Device, greedy: dict[str, Any]
) -> None:
    prompt = prompt_ids(40)
    with eaglecpp.Engine.open(mixture.target, n_gpu_layers=0, **OPEN) as cpu:
        plain = cpu.generate(prompt, **greedy)
    with eaglecpp.Engine.open(mixture.target, **OPEN) as engine:
        everything = weights_off_the_cpu(engine)
    with eaglecpp.Engine.open(mixture.target, draft=mixture.draft, **OPEN, **options) as engine:
        assert everything - weights_off_the_cpu(engine) == pytest.approx(share * EXPERTS, rel=0.02)
        for strategy in ("off", "chain:4", "tree:k=3,depth=4,nodes=12", "auto"):
            done = engine.generate(prompt, strategy=strategy, **greedy)
            device.assert_same_text(done.tokens, plain)
            if strategy not in ("off", "auto"):
                assert done.timings.draft_n_accepted > 0


def test_the_drafter_is_placed_with_the_output_layer(
    it: ConvertedPair, device: Device, servers: tuple[str, ...]
) -> None:
    """Except on another machine: a draft is many short waits."""
    beside = "CPU" if servers else device.name
    for layers, expected in ((-1, beside), (1, beside), (0, "CPU")):
        with eaglecpp.Engine.open(it.pair.target.gguf, draft=it.draft, n_gpu_layers=layers, **OPEN) as engine:
            assert engine.device_info["draft"] == expected
            assert engine.device_info["draft_why"] == ""
            assert held(engine, expected, "draft_weights") > 0
            assert held(engine, expected, "draft_cache") > 0


def test_a_tied_head_is_shared_without_a_copy(
    device: Device, servers: tuple[str, ...], tmp_path: Path, greedy: dict[str, Any]
) -> None:
    """A target whose embeddings are also its head, and a drafter that uses both: nothing is copied."""
    if servers:
        pytest.skip("the drafter is not on the servers")
    target = make_target(tmp_path)
    weights = {name: value for name, value in target.weights.items() if name != "lm_head.weight"}
    tied = tmp_path / "tied.gguf"
    write_gguf(tied, TargetSpec(), tiny_tokenizer(), weights, "F32")
    sizes = {}
    for own in (True, False):
        shape = DraftShape(n_draft_vocab=target.n_vocab, own_embedding=False, own_head=own)
        draft = shape.gguf(tmp_path / str(own), tied)
        with eaglecpp.Engine.open(tied, draft=draft, **OPEN) as engine:
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
    [(64 << 20, "less than 0.27 GB would be free"), (100 << 10, "there was no room on Counting0")],
    ids=["no margin", "no room"],
)
def test_a_drafter_without_room_runs_on_the_cpu(
    room: int, expected: str, it: ConvertedPair, counts: Callable[[], Counts]
) -> None:
    before = counts().bytes_held
    options = {**OPEN, "n_ctx": 512, "draft_device": "cpu", "n_batch": 2048, "n_ubatch": 512}
    with eaglecpp.Engine.open(it.pair.target.gguf, it.draft, **options):
        memory = counts().bytes_held - before + room
    done = subprocess.run(
        [sys.executable, "-P", "-c", PROGRAM, str(it.pair.target.gguf), str(it.draft)],
        env={**os.environ, "EAGLECPP_COUNTING_MEMORY": str(memory)},
        capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    # ggml logs a line of its own about the failed allocation
    lines = [line for line in done.stdout.splitlines() if "alloc_tensor_range" not in line]
    warning, where, drafts = lines
    assert warning.startswith("the drafter runs on the CPU") and expected in warning
    assert where == f"CPU | {warning}"
    assert drafts == "True"


@pytest.mark.parametrize("exact", ["auto", "off"])
def test_verification_stays_where_the_weights_are(
    exact: str, it: ConvertedPair, counts: Callable[[], Counts], device: Device, greedy: dict[str, Any]
) -> None:
    """With three layers on the device, llama.cpp would send it the other layers' weights for batches of 32
    rows and more.
    """
    options = {**OPEN, "n_gpu_layers": 3, "draft_device": "cpu", "n_draft_max": 48, "exact": exact}
    with eaglecpp.Engine.open(it.pair.target.gguf, draft=it.draft, **options) as engine:
        up = {}
        for nodes in (16, 40):
            strategy = f"tree:k=8,depth=5,nodes={nodes}"
            engine.clear()
            before = counts().bytes_up
            done = engine.generate(prompt_ids(8), strategy=strategy, **greedy)
            up[nodes] = (counts().bytes_up - before) / done.timings.rounds
        # one layer's matrices are 200 KB, a row of activations 256 bytes
        assert up[40] < up[16] + 100_000, up
        engine.clear()
        before = counts().bytes_up
        engine.generate(prompt_ids(100), strategy="off", max_tokens=1, temperature=0.0)
        assert counts().bytes_up - before > 400_000, "prompts still go there"
