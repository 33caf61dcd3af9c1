# SPDX-License-Identifier: MIT
"""One report of a machine with a GPU, to paste into an issue: what is installed, what a row costs, what
drafting gains.

    python benchmarks/gpu.py TARGET.gguf DRAFT.gguf [--pair TARGET.gguf DRAFT.gguf]... [--demo ...]...
           [--rows TARGET.gguf]... [--sizes-of-8b FOLDER] [--server PATH/llama-server] [-ngl N] [--tokens 200]

Nothing is sent anywhere. Speeds are of the same prompts in turns, so that a machine that warms up slows all
of them. `--demo` pairs are of the demo target, and asked what it knows. `--rows` adds targets whose rows are
timed, without a drafter. `--sizes-of-8b` writes a target and an EAGLE-3 drafter of an 8B's shapes in Q4_0,
all zeros, to FOLDER: what they cost is real, and which drafts are accepted is drawn by chances that were
published or measured elsewhere (ACCEPTANCE); not with `auto`, because zeros are sure of nothing. With
--server llama.cpp's own plain decoding and its own drafting are measured on the same files, where it reads
the drafter; a block drafter at its default, 7, and its width. A process started with LD_PRELOAD=count_cuda.so
(see count_cuda.c) also says how often the host waits for CUDA, and what becomes of CUDA graphs. gpu_kit.py
makes a folder that does all of this on a machine without a network.
"""

from __future__ import annotations

import argparse
import ctypes
import statistics
import sys
from collections.abc import Iterator, Sequence
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
from helpers import sparse

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
ROWS = (1, 2, 3, 4, 5, 6, 7, 8, 9, 12, 16, 17, 24, 32)


class Counts(ctypes.Structure):
    """count_cuda.c"""

    names = ("waits", "launches", "graph_launches", "captures", "instantiations", "updates")
    _fields_ = [(name, ctypes.c_uint64) for name in names]


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("target")
    parser.add_argument("draft")
    parser.add_argument("--pair", nargs=2, action="append", default=[], metavar=("TARGET", "DRAFT"))
    parser.add_argument("--demo", nargs=2, action="append", default=[], metavar=("TARGET", "DRAFT"))
    parser.add_argument("--rows", action="append", default=[], metavar="TARGET")
    parser.add_argument("--sizes-of-8b", type=Path, metavar="FOLDER")
    parser.add_argument("--server", help="llama.cpp's llama-server")
    parser.add_argument("-ngl", type=int, default=-1)
    parser.add_argument("--tokens", type=int, default=200)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--without-gpu", action="store_true", help="to try this script, on the CPU")
    args = parser.parse_args()
    pairs = [(args.target, args.draft), *args.pair, *args.demo]
    # part by part, so that a run that is cut off has told what it knew
    say(machine(args.without_gpu))
    sized: list[tuple[str, str]] = []
    if args.sizes_of_8b:
        target, draft = args.sizes_of_8b / "8b-Q4_0.gguf", args.sizes_of_8b / "8b-draft-Q4_0.gguf"
        sparse.write_target(target)
        sparse.write_drafter(draft)
        sized = [(str(target), str(draft))]
    say(row_curves(args, [*args.rows, *(target for target, _ in [*sized, *pairs])]))
    for target, draft in sized:
        for name, rates in ACCEPTANCE.items():
            with accepted(rates):
                say(speeds(args, target, draft, name))
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


def row_curves(args: argparse.Namespace, targets: list[str]) -> list[str]:
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


def counted() -> Counts | None:
    """What CUDA was asked so far; None where nobody counts."""
    if not hasattr(ctypes.CDLL(None), "eaglecpp_cuda_counts"):
        return None
    read = ctypes.CDLL(None).eaglecpp_cuda_counts
    read.restype = Counts
    return read()


def per_round(before: Counts | None, after: Counts | None, rounds: int) -> list[str]:
    if before is None or after is None:
        return []
    return [f"{(getattr(after, name) - getattr(before, name)) / rounds:.2f}" for name in Counts.names]


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


def speeds(
    args: argparse.Namespace,
    target: str,
    draft: str,
    acceptance: str = "",
    questions: Sequence[str] = PROMPTS,
) -> list[str]:
    """`acceptance`: the name of the chances that decide, if not the target."""
    options: dict[str, Any] = {"max_tokens": args.tokens, "temperature": 0.0, "ignore_eos": True}
    (kind,) = drafters_by_kind([Path(draft)])
    is_block = their_kind(kind) in ("draft-dflash", "draft-dspark")
    # auto in an engine of its own: what a planner sees of fixed strategies would help it
    engines = [("off", *(OF_A_BLOCK if is_block else FIXED)), ("off", "auto")][: 1 if acceptance else 2]
    names = list(dict.fromkeys(name for strategies in engines for name in strategies))
    speed: dict[str, list[float]] = {name: [] for name in names}
    over_off: dict[str, list[float]] = {name: [] for name in names}
    length: dict[str, list[float]] = {name: [] for name in names}
    same: dict[str, int] = dict.fromkeys(names, 0)
    counts: dict[str, list[str]] = {}
    plan: dict[str, Any] = {}
    opening: dict[str, Any] = {"n_ctx": 2048, "n_gpu_layers": args.ngl, "planner_cache": False}
    if acceptance:  # what is drawn repeats
        opening["text_drafts"] = "off"
    for strategies in engines:
        with eaglecpp.Engine.open(target, draft, **opening) as engine:
            where = engine.device_info
            if acceptance:  # a vocabulary of holes has no text
                prompts = [[5 + (7 * i + j) % 90 for j in range(40)] for i in range(len(questions))]
            else:
                prompts = [engine.chat_prompt([{"role": "user", "content": asked}]) for asked in questions]
            for repeat in range(args.repeats + 1):
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
                        speed[name].append(1000 * (stats.predicted_n - 1) / stats.predicted_ms)
                        over_off[name].append(speed[name][-1] / speed["off"][-1])
                        length[name].append(stats.predicted_n / max(1, stats.rounds))
                        plan = stats.plan if name == "auto" else plan
    same["off"] //= len(engines)
    off = statistics.median(speed["off"])
    rows = [
        [
            name,
            f"{statistics.median(speed[name]):.1f}",
            f"{statistics.median(over_off[name]):.2f}",
            f"{statistics.mean(length[name]):.2f}",
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
            rows.append([name, f"{speed_of:.1f}", f"{speed_of / off:.2f}", "", ""])
        except ServerError as error:
            notes.append(f"{name}: {error}")
    head = ["strategy", "tokens/s", "over off", "tokens a round", "text as off"]
    size = Path(target).stat().st_size / 2**30
    lines = [
        f"## Speed, {Path(target).stem} ({size:.2f} GiB){acceptance and f', acceptance: {acceptance}'}",
        "",
        f"target on {where['target']}, drafter on {where['draft']}",
        "",
        table(head, rows),
        "",
        *([f"auto: {plan['strategy']}, {plan['why']}"] if plan else []),
        *notes,
    ]
    if any(counts.values()):
        asked = [[name, *row] for name, row in counts.items()]
        head = ["a round", *(name.replace("_", " ") for name in Counts.names)]
        lines += ["", "Asked of CUDA in the last answer, the prompt included:", "", table(head, asked)]
    return lines


def server_speed(
    args: argparse.Namespace, target: str, draft: str, kind: str, n_max: int, prompts: list[list[int]]
) -> float:
    """Tokens per second of llama.cpp's own server. n_max: its default is 3; 0 = no drafts."""
    extra = ["-ngl", str(args.ngl if args.ngl >= 0 else 99), *(["-ngld", "99"] if n_max else [])]
    found = []
    with LlamaServer(
        Path(args.server), Path(target), draft=Path(draft), kind=kind, n_max=n_max, n_ctx=2048, extra=extra
    ) as server:
        for repeat in range(args.repeats + 1):
            for prompt in prompts:
                timings = server.complete_and_rest(prompt, args.tokens).timings
                if repeat > 0:
                    found.append(float(timings["predicted_per_second"]))
    return statistics.median(found)


if __name__ == "__main__":
    main()
