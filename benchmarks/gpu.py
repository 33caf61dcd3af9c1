# SPDX-License-Identifier: MIT
"""One report of a machine with a GPU, to paste into an issue: what is installed, what a row costs, what
drafting gains.

    python benchmarks/gpu.py [TARGET.gguf DRAFT.gguf]... [--demo TARGET.gguf DRAFT.gguf]...
           [--rows TARGET.gguf]... [--sizes-of-8b FOLDER] [--server PATH/llama-server] [-ngl N] [--tokens 200]

Nothing is sent anywhere. Speeds are of the same prompts in turns, so that a machine that warms up slows all
of them. `--demo` pairs are of the demo target, and asked what it knows. `--rows` adds targets whose rows are
timed, without a drafter. `--sizes-of-8b` writes a target, an EAGLE-3 and a DSpark drafter of an 8B's shapes
in Q4_0, all zeros, to FOLDER: what they cost is real, and which drafts are accepted is drawn by chances that
were published or measured elsewhere (ACCEPTANCE), one of them once more behind 32k tokens; not with `auto`,
because zeros are sure of nothing. With --server llama.cpp's own plain decoding and its own drafting are
measured on the same files, where it reads the drafter; a block drafter at its default, 7, and its width.
A process started with LD_PRELOAD=count_cuda.so (see count_cuda.c) also says how often the host waits for
CUDA, and what becomes of CUDA graphs. Where GGML_BACKEND_PATH is the counting device of the tests, only what
that counts is told. gpu_kit.py makes a folder that does all of this on a machine without a network.
"""

from __future__ import annotations

import argparse
import ctypes
import os
import statistics
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from common import arguments, table
from compare_targets import block_size, drafters_by_kind
from contestants import their_kind
from llama_server import LlamaServer, ServerError

import eaglecpp
from eaglecpp.engine.request import Request
from eaglecpp.lowlevel import EngineOptions, Target, system_info, versions
from eaglecpp.results import Timings
from helpers import backends, sparse

PROMPTS = (
    "Explain in a few paragraphs how a bicycle stays upright.",
    "Write a Python class for a queue with a maximum length, with its tests.",
    "List the planets of the solar system with a sentence about each.",
)
DEMO = ("What does os.path.join do?", "Explain math.sqrt.", "What is in the module json?")
"""What the demo target was made for."""
FIXED = ("chain:2", "chain:4", "tree:k=4,depth=3,nodes=7", "tree:k=4,depth=4,nodes=16")
OF_A_BLOCK = ("chain:4", "chain:7", "tree:k=4,depth=7,nodes=8", "tree:k=4,depth=7,nodes=16")
# how likely the drafts of a depth are accepted, all before them included: EAGLE-3 on HumanEval as published;
# a drafter that keeps 0.83 of each depth, as on code, and 0.59, as on prose
ACCEPTANCE = {
    "published": [0.72, 0.50, 0.34, 0.22, 0.14, 0.09, 0.05, 0.03],
    "code": [0.83**depth for depth in range(1, 9)],
    "prose": [0.59**depth for depth in range(1, 9)],
}
LONG = 32768
ROWS = (1, 2, 3, 4, 5, 6, 7, 8, 9, 12, 16, 17, 24, 32)


class Counts(ctypes.Structure):
    """count_cuda.c"""

    names = ("waits", "launches", "graph_launches", "captures", "instantiations", "updates")
    _fields_ = [(name, ctypes.c_uint64) for name in names]


class DeviceCounts(backends.Counts):
    """names: those that are reported."""

    names = ("waits", "copies", "graphs", "built", "captured", "operations", "bytes_up", "bytes_down")


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("pairs", nargs="*", metavar="TARGET DRAFT")
    parser.add_argument("--demo", nargs=2, action="append", default=[], metavar=("TARGET", "DRAFT"))
    parser.add_argument("--rows", action="append", default=[], metavar="TARGET")
    parser.add_argument("--sizes-of-8b", type=Path, metavar="FOLDER")
    parser.add_argument("--server", help="llama.cpp's llama-server")
    parser.add_argument("-ngl", type=int, default=-1)
    parser.add_argument("--tokens", type=int, default=200)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--without-gpu", action="store_true", help="to try this script, on the CPU")
    args = parser.parse_args()
    if len(args.pairs) % 2:
        parser.error(f"expected a draft behind each target, found {' '.join(args.pairs)}")
    pairs = [*zip(args.pairs[::2], args.pairs[1::2], strict=True), *args.demo]
    # part by part, so that a run that is cut off has told what it knew
    say(machine(args.without_gpu))
    sized: list[tuple[str, str, str, int]] = []
    if args.sizes_of_8b:
        target, draft, block = (args.sizes_of_8b / f"{n}-Q4_0.gguf" for n in ("8b", "eagle3", "dspark"))
        sparse.write_target(target)
        sparse.write_drafter(draft)
        sparse.write_block_drafter(block, "dspark")
        sized = [(str(target), str(draft), name, 40) for name in ACCEPTANCE]
        sized += [(str(target), str(draft), "code", LONG), (str(target), str(block), "code", 40)]
    if not isinstance(counted(), DeviceCounts):
        say(row_curves(args, dict.fromkeys([*args.rows, *(files[0] for files in (*sized, *pairs))])))
    for target, draft, name, n_prompt in sized:
        with accepted(ACCEPTANCE[name]):
            say(speeds(args, target, draft, name, n_prompt=n_prompt))
    for target, draft in pairs:
        say(speeds(args, target, draft, questions=DEMO if [target, draft] in args.demo else PROMPTS))


def say(lines: list[str]) -> None:
    print("\n".join([*lines, ""]), flush=True)


def machine(without_gpu: bool) -> list[str]:
    gpus = [d for d in system_info()["devices"] if d["kind"] == "gpu"]
    if not gpus and not without_gpu:
        sys.exit("llama.cpp finds no GPU here: see docs/install.md#gpu (and --no-cache-dir)")
    lines = [
        "## Machine",
        "",
        f"eaglecpp {eaglecpp.__version__}, llama-cpp-python {versions()['llama_cpp_python']}",
    ]
    for d in gpus:
        gib = [d[name] / 2**30 for name in ("memory_free", "memory_total")]
        lines.append(f"{d['name']}: {d['description']}, {gib[0]:.1f} of {gib[1]:.1f} GiB free")
    return lines


def row_curves(args: argparse.Namespace, targets: Iterable[str]) -> list[str]:
    """What a decode of n rows costs over one of a single row, for each target."""
    ms: dict[str, dict[int, float]] = {}
    changes: dict[str, float] = {}
    for path in targets:
        options = EngineOptions()
        options.target_path, options.n_ctx, options.n_gpu_layers = path, 1024, args.ngl
        target = Target(options, [])
        prefix = [1 + i % 100 for i in range(256)]
        # twice each: the first use loads kernels
        times = {n: target.time_rows(prefix, [5] * n, 2 + 5 * args.repeats) for n in (*ROWS, *ROWS)}
        one = ms[Path(path).stem] = {n: statistics.median(times[n][2:]) for n in ROWS}
        changes[Path(path).stem] = statistics.median(sum(times[n][:2]) - 2 * one[n] for n in ROWS)
    rows = [[str(n), *(f"{one[n] / one[1]:.2f}" for one in ms.values())] for n in ROWS]
    rows.insert(0, ["ms of one", *(f"{one[1]:.2f}" for one in ms.values())])
    rows.append(["ms more for another number", *(f"{change:.2f}" for change in changes.values())])
    return ["## A decode of n rows behind 256, over one of a single row", "", table(["rows", *ms], rows)]


def counted() -> Counts | DeviceCounts | None:
    """What CUDA, or the counting device, was asked so far; None where nobody counts."""
    device = os.environ.get("GGML_BACKEND_PATH")
    for kind, path, name in ((Counts, None, "cuda_counts"), (DeviceCounts, device, "counts")):
        read = getattr(ctypes.CDLL(path), f"eaglecpp_{name}", None)
        if read is not None:
            read.restype = kind
            found: Counts | DeviceCounts = read()
            return found
    return None


def per_round(before: Any, after: Any, rounds: int) -> list[str]:
    """Both as `counted` returns them."""
    if after is None:
        return []
    return [f"{(getattr(after, name) - getattr(before, name)) / rounds:.2f}" for name in after.names]


@contextmanager
def accepted(rates: list[float]) -> Iterator[None]:
    """Drafts are accepted by these chances, whatever the target says."""
    made = Request.params

    def params(request: Request) -> Any:
        found = made(request)
        found.synth_rates = rates
        return found

    Request.params = params  # type: ignore[method-assign]
    try:
        yield
    finally:
        Request.params = made  # type: ignore[method-assign]


def rate(timings: Timings) -> float:
    """Tokens per second after the first."""
    return 1000 * (timings.predicted_n - 1) / timings.predicted_ms


def speeds(
    args: argparse.Namespace,
    target: str,
    draft: str,
    acceptance: str = "",
    questions: Sequence[str] = PROMPTS,
    n_prompt: int = 40,
) -> list[str]:
    """`acceptance`: the name of the chances that decide, if not the target; then a prompt has `n_prompt`
    tokens, and one long one does.
    """
    options: dict[str, Any] = {"max_tokens": args.tokens, "temperature": 0.0, "ignore_eos": True}
    (kind,) = drafters_by_kind([Path(draft)])
    is_block = their_kind(kind) in ("draft-dflash", "draft-dspark")
    # auto in an engine of its own: what a planner sees of fixed strategies would help it
    engines = [("off", *(OF_A_BLOCK if is_block else FIXED)), ("off", "auto")][: 1 if acceptance else 2]
    names = list(dict.fromkeys(name for strategies in engines for name in strategies))
    runs: dict[str, list[Timings]] = {name: [] for name in names}
    over_off: dict[str, list[float]] = {name: [] for name in names}
    same: dict[str, int] = dict.fromkeys(names, 0)
    counts: dict[str, list[str]] = {}
    plan: dict[str, Any] = {}
    opening: dict[str, Any] = {"n_ctx": 2008 + n_prompt, "n_gpu_layers": args.ngl, "planner_cache": False}
    questions, repeats = (questions[:1], 1) if n_prompt == LONG else (questions, args.repeats)
    if acceptance:  # what is drawn repeats
        opening["text_drafts"] = "off"
    for strategies in engines:
        with eaglecpp.Engine.open(target, draft, **opening) as engine:
            where = engine.device_info
            if acceptance:  # a vocabulary of holes has no text
                prompts = [[5 + (7 * i + j) % 90 for j in range(n_prompt)] for i in range(len(questions))]
            else:
                prompts = [engine.chat_prompt([{"role": "user", "content": asked}]) for asked in questions]
            if "auto" in strategies:
                first = rate(engine.generate(prompts[0], strategy="auto", **options).timings)
            for repeat in range(repeats + 1):
                for prompt in prompts:
                    plain: list[int] = []
                    for name in strategies:
                        engine.clear()
                        before = counted()
                        done = engine.generate(prompt, strategy=name, **options)
                        plain = plain or done.tokens
                        if repeat == 0:  # the first time is a warm-up, but its text counts
                            same[name] += done.tokens == plain
                            continue
                        stats = done.timings
                        counts[name] = per_round(before, counted(), max(1, stats.rounds))
                        runs[name].append(stats)
                        over_off[name].append(rate(stats) / rate(runs["off"][-1]))
                        plan = stats.plan if name == "auto" else plan
    same["off"] //= len(engines)
    off = statistics.median(map(rate, runs["off"]))
    rows = [
        [
            name,
            f"{statistics.median(map(rate, runs[name])):.1f}",
            f"{statistics.median(over_off[name]):.2f}",
            f"{statistics.mean(t.predicted_n / max(1, t.rounds) for t in runs[name]):.2f}",
            f"{statistics.median(t.prompt_per_second for t in runs[name]):.0f}",
            "" if acceptance else f"{same[name]} of {len(questions)}",
        ]
        for name in names
    ]
    notes = []
    theirs = [0] if args.server else []
    if theirs and not acceptance:
        theirs += sorted({3, 7, block_size(Path(draft))}) if is_block else [3]
    for n_max in theirs:
        name = f"llama-server, {f'{their_kind(kind)} {n_max}' if n_max else 'plain'}"
        if n_max and not their_kind(kind):
            notes.append(f"llama.cpp reads no drafter of the architecture {kind}.")
            continue
        try:
            speed_of = server_speed(args, target, draft, their_kind(kind), n_max, prompts)
            rows.append([name, f"{speed_of:.1f}", f"{speed_of / off:.2f}", "", "", ""])
        except ServerError as error:
            notes.append(f"{name}: {error}")
    head = ["strategy", "tokens/s", "over off", "tokens a round", "prompt, tokens/s", "text as off"]
    size = Path(target).stat().st_size / 2**30
    drawn = f", acceptance: {acceptance}, prompts of {n_prompt}" if acceptance else ""
    title = f"{Path(target).stem} with {Path(draft).stem}{drawn}"
    lines = [
        f"## Speed, {title}, {size:.2f} GiB",
        "",
        f"target on {where['target']}, drafter on {where['draft']}",
        "",
        table(head, rows),
        "",
        *([f"auto: {plan['strategy']}, {plan['why']}; first answer {first / off:.2f}"] if plan else []),
        *notes,
    ]
    if any(counts.values()):
        asked = [[name, *row] for name, row in counts.items()]
        found = counted()
        head = ["a round", *(name.replace("_", " ") for name in found.names)] if found else []
        if isinstance(found, DeviceCounts):
            lines = [f"## The counting device, {title}"]
        lines += ["", "Asked of the device in the last answer, the prompt included:", "", table(head, asked)]
    return lines


def server_speed(
    args: argparse.Namespace, target: str, draft: str, kind: str, n_max: int, prompts: list[list[int]]
) -> float:
    """Tokens per second of llama.cpp's own server. n_max: its default is 3; 0 = no drafts."""
    extra = ["-ngl", str(args.ngl if args.ngl >= 0 else 99), *(["-ngld", "99"] if n_max else [])]
    found = []
    with LlamaServer(
        Path(args.server), Path(target), draft=Path(draft), kind=kind, n_max=n_max, extra=extra,
        n_ctx=2008 + max(map(len, prompts)),
    ) as server:  # fmt: skip
        for repeat in range(args.repeats + 1):
            for prompt in prompts:
                timings = server.complete_and_rest(prompt, args.tokens).timings
                if repeat > 0:
                    found.append(float(timings["predicted_per_second"]))
    return statistics.median(found)


if __name__ == "__main__":
    main()
