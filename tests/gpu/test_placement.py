# SPDX-License-Identifier: MIT
"""Tests the placement of target and drafter: layers, experts, the drafter on the device of the target's
output layer, and devices without enough memory. Every placement must give the text and the acceptance of the
CPU, and every generation must end.

Devices that compute with the CPU's code give the CPU's text. GPUs round differently, so a text may differ
from the CPU's where the two best tokens are nearly equally likely. tests/gpu/conftest.py sets the limit for
nearly equal.
"""

from __future__ import annotations

import itertools
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


# The engine

Open = Callable[..., eaglecpp.Engine]
PLACES = ["all", "some layers", "drafter", "target"]
STRATEGIES = ["chain:1", "chain:5", "tree:k=3,depth=4,nodes=12", "auto"]


@pytest.mark.parametrize("exact", ["auto", "off"])
@pytest.mark.parametrize("place", PLACES)
def test_every_placement_gives_the_cpus_text(
    place: str, exact: str, device: Device, open_engine: Open, greedy: dict[str, Any]
) -> None:
    n_accepted: dict[str, dict[str, int]] = {}
    options: dict[str, Any] = {"exact": exact}
    with open_engine("cpu", **options) as cpu, open_engine(place, **options) as engine:
        where = engine.device_info
        assert ("CPU" if place == "target" else device.name) == where["draft"]
        for seed in device.some((1, 2, 3)):
            prompt = prompt_ids(40, seed)
            plain = cpu.generate(prompt, strategy="off", **greedy)
            for strategy in STRATEGIES:
                ours = engine.generate(prompt, strategy=strategy, **greedy)
                device.assert_same_text(ours.tokens, plain)
                if strategy == "auto":
                    continue
                theirs = cpu.generate(prompt, strategy=strategy, **greedy)
                if ours.tokens != theirs.tokens:
                    continue  # the texts differ, so the drafter may suit one text better than the other
                both = n_accepted.setdefault(strategy, {"here": 0, "cpu": 0})
                both["here"] += ours.timings.draft_n_accepted
                both["cpu"] += theirs.timings.draft_n_accepted
    # Exact batch sizes differ by device. If only exact sizes are used, the drafted trees differ too.
    for strategy in STRATEGIES[:-1] if exact == "off" else []:
        n = n_accepted[strategy]
        assert n["cpu"] > (5 if device.is_slow else 20), strategy
        assert abs(n["here"] - n["cpu"]) <= 0.01 * n["cpu"] + 1, (strategy, n)


@pytest.mark.parametrize(
    "sampling",
    [
        {"temperature": 0.8, "seed": 1},
        {"temperature": 1.2, "seed": 2, "top_k": 0, "top_p": 1.0, "min_p": 0.0},
        {"temperature": 0.8, "seed": 3, "top_k": 100},
        {"temperature": 0.8, "seed": 4, "rng": "llama"},
        {"temperature": 0.0, "grammar": r"root ::= [ -~]*"},
    ],
    ids=["warm", "hot and whole", "more than is picked", "llama-rng", "grammar"],
)
def test_samplers_draft_like_on_the_cpu(sampling: dict[str, Any], device: Device, open_engine: Open) -> None:
    """Tests that the device chooses the same token as the CPU, which has all logits, for every sampler."""
    options = {"max_tokens": device.n_tokens, "ignore_eos": True, "strategy": "chain:4", **sampling}
    with open_engine("cpu") as cpu, open_engine("drafter") as engine:
        for seed in device.some((1, 2)):
            prompt = prompt_ids(40, seed)
            ours, theirs = (e.generate(prompt, **options) for e in (engine, cpu))
            assert ours.tokens == theirs.tokens, "the target runs on the CPU, so texts must be equal"
            n, n_cpu = ours.timings.draft_n_accepted, theirs.timings.draft_n_accepted
            assert abs(n - n_cpu) <= (0.01 if device.is_exact else 0.1) * n_cpu + 1, (n, n_cpu)


@pytest.mark.parametrize("strategy", ["off", *STRATEGIES])
def test_tokens_found_on_the_device_are_those_of_the_logits(
    strategy: str, device: Device, open_engine: Open, greedy: dict[str, Any]
) -> None:
    """Compares two searches for the most likely tokens. With `n_probs`, the device returns the logits and the
    CPU searches. Otherwise the device searches.
    """
    with open_engine("all") as engine:
        for seed in device.some((1, 2)):
            prompt = prompt_ids(40, seed)
            expected = engine.generate(prompt, strategy=strategy, **greedy)
            # The caches are cleared, so that both runs have the same batches. Then only the search for the
            # most likely tokens differs.
            engine.clear()
            found = engine.generate(prompt, strategy=strategy, **{**greedy, "n_probs": 0})
            assert found.tokens == expected.tokens
            assert engine.generate(prompt, temperature=0.8, seed=1, max_tokens=9).tokens


def test_parallel_conversations(device: Device, open_engine: Open, greedy: dict[str, Any]) -> None:
    with open_engine("cpu", draft=False) as cpu, open_engine("all", n_sequences=3) as engine:
        sessions = [engine.session() for _ in range(3)]
        streams = [
            session.stream(prompt_ids(30 + 9 * i, i + 1), strategy=STRATEGIES[i], **greedy)
            for i, session in enumerate(sessions)
        ]
        texts: list[list[int]] = [[] for _ in streams]
        for chunks in itertools.zip_longest(*streams):
            for text, chunk in zip(texts, chunks, strict=True):
                text += chunk.tokens if chunk else []
        for i, text in enumerate(texts):
            device.assert_same_text(text, cpu.generate(prompt_ids(30 + 9 * i, i + 1), **greedy))


def test_a_prefix_is_reused(device: Device, open_engine: Open, greedy: dict[str, Any]) -> None:
    n_ctx = 320  # room for the longest prompt and its answer
    with open_engine("cpu", draft=False, n_ctx=n_ctx) as cpu, open_engine("all", n_ctx=n_ctx) as engine:
        system = prompt_ids(200, seed=3)
        for seed in (5, 6, 7):
            prompt = [*system[: 200 - 20 * (seed == 7)], *prompt_ids(50, seed=seed)]
            ours = engine.generate(prompt, strategy="tree:k=3,depth=4,nodes=12", **greedy)
            assert ours.timings.reused_n >= (0 if seed == 5 else 179)
            device.assert_same_text(ours.tokens, cpu.generate(prompt, **greedy))


@pytest.mark.parametrize("exact", ["auto", "off"])
def test_costs_are_measured_before_an_answer(exact: str, open_engine: Open) -> None:
    """Tests that the engine measures costs before the first answer: of each batch size, of a change of the
    batch size, and of the drafter.
    """
    with open_engine("all", exact=exact, n_ctx=SIZES["n_ctx"]) as engine, engine.session():
        report = engine.native.planner_report(0)
    for name, n_rows in (("verify", (1, 2, 3, 4, 5, 8, 16)), ("commit", (1,)), ("level", (1,))):
        n_samples = {n: samples for n, _, samples in report[name]}
        assert not [n for n in n_rows if n_samples[n] == 0], f"{name}: batch sizes without a sample"
    assert 0.0 <= report["change_ms"] != 3.0  # 3.0 is the assumed cost before the first measurement


def test_a_parallel_drafter_of_two_tokens_opens(
    device: Device, it: ConvertedPair, tmp_path: Path, greedy: dict[str, Any]
) -> None:
    draft = DraftShape(n_parallel=2).gguf(tmp_path, it.pair.target.gguf)
    options: dict[str, Any] = {**device.sizes, "draft_device": device.name}
    with eaglecpp.Engine.open(it.pair.target.gguf, draft=draft, **options) as engine:
        assert engine.generate(prompt_ids(40), strategy="chain:2", **greedy).timings.draft_n > 0


def test_without_layers_on_the_device_nothing_is_sent_to_it(
    open_engine: Open, counts: Callable[[], Counts], it: ConvertedPair
) -> None:
    """Tests that nothing is sent to a device that has no layers. Otherwise llama.cpp would send the weights
    to the device for prompt batches of 32 rows and more.
    """
    with open_engine("cpu", draft=False) as engine:
        before = counts()
        engine.generate(prompt_ids(200), max_tokens=4, temperature=0.0)
        after = counts()
    assert (after.graphs, after.bytes_up) == (before.graphs, before.bytes_up)
