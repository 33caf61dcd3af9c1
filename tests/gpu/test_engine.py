# SPDX-License-Identifier: MIT
"""Tests the engine on a device. Every placement must give the text and the acceptance of the CPU, and every
generation must end.

Devices that compute with the CPU's code give the CPU's text. GPUs round differently, so a text may differ
from the CPU's where the two best tokens are nearly equally likely. tests/gpu/conftest.py sets the limit for
nearly equal.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import eaglecpp
from helpers.random_drafter import DraftShape
from helpers.tiny import ConvertedPair, prompt_ids

from .conftest import SIZES, Counts, Device

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
