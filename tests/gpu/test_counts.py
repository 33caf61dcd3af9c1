# SPDX-License-Identifier: MIT
"""Tests the cost of a round on a device, with and without a drafter: number of waits, bytes and graphs. The
target has the size of an 8B model, and 128256 tokens. The counting device counts these costs without
computing. docs/research/gpu.md lists the results.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from helpers.script import run_script
from helpers.sparse import N_VOCAB, WIDTH, write_block_drafter, write_drafter, write_target

from .conftest import Counts

BEGIN = r"""
import ctypes, json, os, sys
from eaglecpp import Engine
from eaglecpp.engine import loading
from eaglecpp.engine.request import ResolvedRequest
from helpers.backends import Counts

loading._MEASURE_S = 1e9  # by Python's clock, which here depends on who else is busy

made, rates = ResolvedRequest.params, []

def params(request):
    found = made(request)
    found.synth_rates = rates
    return found

ResolvedRequest.params = params
read = ctypes.CDLL(os.environ["GGML_BACKEND_PATH"]).eaglecpp_counts
read.restype = Counts
names = [name for name, _ in Counts._fields_]
# with the machine's clock, a busy machine decides what `auto` does
libraries = (ctypes.CDLL(path) for path in (None, os.environ["GGML_BACKEND_PATH"]))
options = dict(n_ctx=2048, n_threads=1, planner_cache=False, text_drafts="off")
clocks = [getattr(one, "_ZNSt6chrono3_V212steady_clock3nowEv", None) for one in libraries]
assert clocks[0], "the counting device's clock is not preloaded (LD_PRELOAD)"
assert len({ctypes.cast(one, ctypes.c_void_p).value for one in clocks}) == 1, "another library's clock"
"""

PROGRAM = r"""
def counted(engine, **options):
    # token 128255 wins every time: drafts are accepted by chance alone, two tokens a round
    rates[:] = [] if options.pop("is_real", False) else [1.0, 1.0, 0.0]
    options = {"max_tokens": 60, "temperature": 0.0, "ignore_eos": True} | options
    prompt = [5 + i % 90 for i in range(1100)]
    first = read().distinct_graphs
    for more in ([], [9]):  # the sizes of a first prompt, and of a prompt that begins with it
        engine.generate([*prompt, *more], **options)
    before = read()
    done = engine.generate([*prompt, 7], **options)
    after = read()
    n = max(1, done.timings.rounds)
    return {name: (getattr(after, name) - getattr(before, name)) / n for name in names} | {
        "rounds": n, "nodes": done.timings.draft_n / n,
        "graphs_first": before.distinct_graphs - first,
        "graphs_later": after.distinct_graphs - before.distinct_graphs,
    }

options = dict(n_ctx=2048, n_threads=1, n_leaves_max=16, n_draft_max=16, planner_cache=False)
out = {}
with Engine.open(sys.argv[1], sys.argv[2], exact=sys.argv[3], **options) as engine:
    tree = "tree:k=4,depth=3,nodes=16"
    out["tree"] = counted(engine, strategy=tree)
    out["sampled"] = counted(engine, strategy=tree, temperature=0.8)
    out["whole"] = counted(engine, strategy=tree, temperature=0.8, top_k=0)
    out["chain"] = counted(engine, strategy="chain:3")
    out["off"] = counted(engine, strategy="off", is_real=True)
print(json.dumps(out))
"""

LONG = r"""
# of the third answer, without its last drafts, which are smaller; one in three is wrong, whatever it is
rates[:] = [0.67 ** depth for depth in range(1, 9)]
out = {}
with Engine.open(sys.argv[1], sys.argv[2], exact=sys.argv[4], **options) as engine:
    for strategy in sys.argv[3].split():
        options = dict(strategy=strategy, max_tokens=720, temperature=0.0, ignore_eos=True, seed=1)
        prompt = [5 + i % 90 for i in range(40)]
        for _ in range(3):
            prompt.append(7)
            n_all = len(prompt)
            with engine.stream(prompt, **options) as stream:
                for n_rounds, chunk in enumerate(stream, -10):
                    n_all += len(chunk.tokens)
                    if n_rounds == 0:
                        before = read()
                    elif n_all < 740:
                        after, n = read(), n_rounds
        out[strategy] = {name: getattr(after, name) - getattr(before, name) for name in names} | {"rounds": n}
print(json.dumps(out))
"""

FIRST = r"""
rates[:] = [0.8 ** depth for depth in range(1, 9)]
with Engine.open(sys.argv[1], sys.argv[2], **options) as engine:
    out = {"exact": engine.exactness.rows, "first": []}
    for i in range(2):
        prompt = [5 + (i + j) % 90 for j in range(40)]
        done = engine.generate(prompt, max_tokens=400, temperature=0.0, ignore_eos=True, log_plan=True)
        modes = [line.split()[0] for line in done.plan_log]
        out["first"].append(modes.index("draft") + 1 if "draft" in modes else len(modes) + 1)
print(json.dumps(out))
"""


CONVERSATION = r"""
rates[:] = [0.67 ** depth for depth in range(1, 9)]
out, prompt = [], [5 + i % 90 for i in range(40)]
with Engine.open(sys.argv[1], sys.argv[2], **options) as engine:
    for _ in range(20):
        before = read()
        done = engine.generate(prompt, max_tokens=40, ignore_eos=True, seed=1, **json.loads(sys.argv[3]))
        after = read()
        out.append({name: getattr(after, name) - getattr(before, name) for name in names})
        out[-1]["drafts"] = done.timings.draft_n
        prompt += [*done.tokens, 7, 8, 9]
print(json.dumps({"answers": out}))
"""


def run(program: str, target: Path, draft: Path, *arguments: str) -> dict[str, Any]:
    """Runs a program and returns its output. The program's C++ code uses the counting device's clock, so that
    the planner measures the same costs each time.
    """
    more = {"PYTHONPATH": str(Path(__file__).parents[1]), "LD_PRELOAD": os.environ["GGML_BACKEND_PATH"]}
    done = run_script(BEGIN + program, target, draft, *arguments, EAGLECPP_COUNTING_IDLE="1", **more)
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


@pytest.fixture(scope="module")
def large(counts: Callable[[], Counts], tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Writes a large target and its drafter."""
    folder = tmp_path_factory.mktemp("sparse")
    target, draft = folder / "target.gguf", folder / "draft.gguf"
    write_target(target)
    write_drafter(draft)
    return target, draft


@pytest.fixture(scope="module", params=["auto", "off"])
def counted(request: pytest.FixtureRequest, large: tuple[Path, Path]) -> dict[str, Any]:
    found = run(PROGRAM, *large, request.param)
    for name, values in found.items():
        print(name, {key: round(value, 1) for key, value in values.items()})
    return found


def test_a_greedy_round_returns_no_logits(counted: dict[str, Any]) -> None:
    """Tests that the device returns only the target's features, 48 KiB per row, and a few numbers."""
    features = 3 * 4 * WIDTH
    assert counted["tree"]["bytes_down"] < features * (counted["tree"]["nodes"] + 1) + 16384
    assert counted["chain"]["bytes_down"] < features * (counted["chain"]["nodes"] + 1) + 16384
    assert counted["off"]["bytes_down"] < features + 4096


def test_a_sampled_round_returns_the_most_likely_tokens(counted: dict[str, Any]) -> None:
    """Tests that the device returns 64 ids and logits per row, which are enough for the default sampler.
    Without a top-k sampler, the device returns all logits.
    """
    features = 3 * 4 * WIDTH
    # The device returns the numbers of a tree a second time if libllama chooses another id for the first row.
    per_row = features + 2 * 2 * 4 * 64
    assert counted["sampled"]["bytes_down"] < per_row * (counted["sampled"]["nodes"] + 1) + 16384
    assert counted["whole"]["bytes_down"] > 8 * 4 * N_VOCAB


def test_the_drafter_waits_once_per_draft_step(counted: dict[str, Any]) -> None:
    """Tests that a round with a tree has three more waits than the target alone: one for the commit, and two
    for the draft steps.
    """
    assert counted["tree"]["waits"] - counted["off"]["waits"] <= 3.5
    assert counted["tree"]["graphs"] - counted["off"]["graphs"] <= 3.5
    # One graph drafts the whole chain, so a chain needs a single wait.
    assert counted["chain"]["waits"] - counted["off"]["waits"] <= 1.5
    assert counted["chain"]["graphs"] - counted["off"]["graphs"] <= 1.5


def test_bytes_up(counted: dict[str, Any]) -> None:
    """Tests the bytes that are sent to the device. The drafter sends the features of committed rows, and the
    token embeddings of committed and draft rows, in F32. For each of the target's rows, libllama sends an
    embedding in F32 and a row of the mask.
    """
    rows = counted["tree"]["nodes"] + 1
    of_target = rows * (4 * WIDTH + 2 * 1280) + 2048
    assert counted["tree"]["bytes_up"] - of_target < (3.2 * 3 + 12) * 4 * WIDTH + 50_000


def test_few_graphs_and_none_after_two_answers(counted: dict[str, Any]) -> None:
    """Tests that graphs are built only in the first two answers: for prompts, for trees, for commits of one
    to four rows, and for draft steps.
    """
    assert counted["tree"]["graphs_first"] <= 10
    assert counted["tree"]["graphs_later"] <= 2  # the last tree of an answer is smaller than the other trees
    for name in ("whole", "chain", "off"):
        assert counted[name]["graphs_later"] == 0, name


@pytest.mark.parametrize("exact", ["auto", "off"])
def test_an_answer_of_200_rounds_runs_from_captured_graphs(exact: str, large: tuple[Path, Path]) -> None:
    """Tests that graphs run from captures, as in ggml's CUDA backend. llama.cpp builds a new graph when the
    text fills another 256 cells of llama.cpp's cache, which happens twice here. The count begins at the tenth
    round and ends before token 740.
    """
    found = run(LONG, *large, "chain:3 chain:5 auto", exact)
    for strategy, values in found.items():
        print(strategy, values)
        assert values["rounds"] >= 200, strategy
        # `auto` may change its batch size once and later change it back.
        assert values["built"] <= (4 if strategy == "auto" else 2), strategy
        assert values["captured"] >= 0.98 * values["graphs"], strategy


SIZES = (1, 2, 3, 4, 5, 6, 8, 12, 16)
"""Tokens of a batch that the planner chooses from on devices (native/algo/planner.cpp)."""


@pytest.mark.parametrize("sampling", [{"temperature": 0.0}, {}], ids=["greedy", "default"])
@pytest.mark.parametrize("kind", ["eagle3", "dflash2"])
def test_the_graphs_of_a_conversation_are_few_and_kept(
    kind: str, sampling: dict[str, Any], large: tuple[Path, Path], tmp_path: Path
) -> None:
    """Runs twenty answers at the default settings, and counts the distinct graphs. Graphs that differ only in
    the length of the cache count as one graph.
    """
    target, draft = large
    if kind != "eagle3":
        write_block_drafter(draft := tmp_path / "draft.gguf", kind)
    answers = run(CONVERSATION, target, draft, json.dumps(sampling))["answers"]
    distinct = [answer["distinct_graphs"] for answer in answers]
    targets = [answer["distinct_targets"] for answer in answers]
    print(kind, sampling, "target's graphs", targets, "all", distinct, [a["drafts"] for a in answers])
    assert sum(answer["drafts"] for answer in answers) > 100
    assert sum(targets) <= len(SIZES) + 2
    assert sum(distinct) - sum(targets) <= len(SIZES) + 2
    assert sum(distinct[10:]) <= 3


@pytest.mark.parametrize("n_layers", [16, 32, 80])
def test_auto_drafts_in_the_first_round(
    n_layers: int, counts: Callable[[], Counts], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Runs two answers at the default exactness. On this device a row's result depends on the batch, so no
    batch of several rows is exact. The targets have as many layers as a 1B, an 8B and a 70B model.
    """
    monkeypatch.setenv("EAGLECPP_COUNTING_MEMORY", str(64 << 30))
    target, draft = tmp_path / "target.gguf", tmp_path / "draft.gguf"
    write_target(target, n_layers)
    write_drafter(draft, n_layers)
    found = run(FIRST, target, draft)
    print(n_layers, found)
    assert found["exact"] == "1"
    assert found["first"] == [1, 1]


def test_nothing_is_allocated_during_an_answer(counted: dict[str, Any]) -> None:
    assert counted["tree"]["allocations"] == counted["chain"]["allocations"] == 0
