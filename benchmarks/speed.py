# SPDX-License-Identifier: MIT
"""Measures decoding speed on chats. Contestants take turns: target-only, `auto`, fixed strategies, llama.cpp.

    python benchmarks/speed.py TARGET.gguf [--draft D.gguf]... [--questions SET-OR-FILE] [--strategy S]...
           [--llama-server PATH [--n-max 3,7]] [--server URL] [--useless] [--text] [--temperature 0,0.8]
           [--limit N] [--minutes M] [--option NAME=VALUE]... [--json OUT]

--questions: chat, copy, documents or humaneval (`questions.py`); a file of SPEED-Bench, Spec-Bench, MT-bench,
HumanEval or of chats; or hf.co/datasets/OWNER/NAME[:PART], such as
hf.co/datasets/nvidia/SPEED-Bench:qualitative. Every question is asked of every contestant:

- eaglecpp without drafting, with `auto` for each drafter, and with each `--strategy` (a chain of five gives
  the acceptance length that publications report);
- with `--text`, `auto` with drafts from the text alone;
- with `--llama-server`, llama.cpp's own server without drafting and, for each drafter that it reads, with its
  own drafting at each `--n-max`, and with ngram-mod;
- with `--server`, an OpenAI-compatible server that is running.

`--useless` shuffles the output rows of the drafters, so that each draft is wrong; `auto` must stay as fast as
target-only decoding. An answer ends where the target begins to repeat itself. *length*: tokens per round. *by
depth*: the share of accepted drafts at depth 1, 2, ..., among drafts whose predecessor was accepted. *speed*:
the geometric mean over questions of two ratios. The ratio to our target-only decoding has a 95 % interval.
The ratio to llama.cpp's target-only decoding has the lowest value. All contestants stay loaded. `auto` has a
separate engine, because fixed strategies would teach its planner their costs. The categories take turns, so a
run that ends early has seen all categories.
"""

from __future__ import annotations

import argparse
import contextlib
import statistics
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from chat_server import ChatServer
from common import arguments, by_name, facts, note, option, table, warn_if_busy, write_json
from llama_server import LlamaServer, block_size, draft_kind
from questions import SETS, Suite, in_turns, read_set, read_suite
from runner import Contestant, Results, chat_server, llama_server, ours, run, until_loops

import eaglecpp
from eaglecpp.lowlevel import system_info
from eaglecpp.options import Strategy

TARGET_ONLY, LLAMA = "target-only", "llama.cpp"


def main() -> None:
    args = parse()
    warn_if_busy()
    suite = (
        Suite(args.questions, read_set(args.questions))
        if args.questions in SETS
        else read_suite(args.questions)
    )
    if suite.n_masked:
        note(f"skipping {suite.n_masked} questions whose text is not in {suite.name}")
    asked = list(in_turns(suite.questions, args.limit))
    result = facts({"target": args.target, **by_name(args.draft)}, questions=suite.name, seed=args.seed)
    with contextlib.ExitStack() as stack:
        drafters = {
            name: shuffled(path, Path(stack.enter_context(tempfile.TemporaryDirectory())))
            if args.useless
            else path
            for name, path in by_name(args.draft).items()
        }
        plain = opened(args, stack, None, strategy="off")
        contestants = [ours(plain, "off", TARGET_ONLY), *line_up(args, stack, drafters, plain)]
        until = time.monotonic() + 60 * args.minutes
        for i, temperature in enumerate(args.temperature):
            sampling = {"temperature": temperature, "n_tokens": args.n_tokens, "seed": args.seed}
            limited = until_loops(plain, asked, "off", **sampling) if plain.has_chat_template else iter(asked)
            seconds = (until - time.monotonic()) / (len(args.temperature) - i)
            found = run(limited, contestants, seconds=seconds, progress=note, **sampling)
            print(f"\n## temperature {temperature:g}\n\n{summary(found)}", flush=True)
            result[f"temperature {temperature:g}"] = found.as_dict()
    write_json(args.json, result)


def line_up(
    args: argparse.Namespace, stack: contextlib.ExitStack, drafters: dict[str, Path], plain: eaglecpp.Engine
) -> Iterator[Contestant]:
    """Yields all contestants except the first, with their models loaded. stack: closes the contestants at its
    end.
    """
    for name, draft in drafters.items():
        yield ours(opened(args, stack, draft), "auto", f"auto, {name}")
        if args.strategy:
            strategies = [Strategy.parse(text) for text in args.strategy]
            limits = {
                "n_draft_max": max(one.nodes for one in strategies),
                "n_leaves_max": max(one.n_leaves for one in strategies),
            }
            engine = opened(args, stack, draft, **limits)
            for text in args.strategy:
                yield ours(engine, text, f"{text}, {name}")
    if args.text:
        yield ours(opened(args, stack, "text"), "auto", "auto, text")
    if args.llama_server is not None:
        for name, settings in {LLAMA: {}, **their_drafting(args, drafters)}.items():
            sizes = {"n_ctx": args.n_ctx, "n_threads": args.threads or system_info()["n_cores"]}
            server = LlamaServer(args.llama_server, args.target, **sizes, **settings)
            yield llama_server(stack.enter_context(server), plain, name)
    if args.server:
        yield chat_server(ChatServer(args.server), "server")


def their_drafting(args: argparse.Namespace, drafters: dict[str, Path]) -> dict[str, dict[str, Any]]:
    """Returns arguments for llama-server by contestant's name, for each drafting method of llama.cpp. A block
    drafter is also measured with as many drafted tokens as its block has positions.
    """
    found: dict[str, dict[str, Any]] = {}
    for name, draft in drafters.items():
        kind = draft_kind(draft)
        whole = [block_size(draft)] if kind in ("draft-dflash", "draft-dspark") else []
        for n in sorted({*args.n_max, *whole}) if kind else ():
            found[f"{LLAMA} {kind} {n}, {name}"] = {"draft": draft, "kind": kind, "n_max": n}
    return found | {f"{LLAMA} ngram-mod": {"extra": ["--spec-type", "ngram-mod"]}}


def opened(
    args: argparse.Namespace, stack: contextlib.ExitStack, draft: Path | str | None, **options: Any
) -> eaglecpp.Engine:
    """Opens an engine with default options, but without saved costs of the planner."""
    sizes = {"n_ctx": args.n_ctx, "n_threads": args.threads, "planner_cache": False}
    engine = stack.enter_context(
        eaglecpp.Engine.open(args.target, draft=draft, **sizes, **options, **dict(args.option))
    )
    engine.measure_exactness()
    return engine


def shuffled(draft: Path, folder: Path) -> Path:
    """Writes a copy of a drafter with its output rows in random order, so that its drafts are confident but
    wrong.
    """
    data = bytearray(draft.read_bytes())
    tensor = next(t for t in gguf.GGUFReader(draft).tensors if t.name == "output.weight")
    begin, size = int(tensor.data_offset), int(tensor.n_bytes)
    # Each row of a quantised matrix takes a whole number of bytes.
    matrix = np.frombuffer(data, np.uint8, size, begin).reshape(int(tensor.shape[1]), -1)
    data[begin : begin + size] = matrix[np.random.default_rng(1).permutation(len(matrix))].tobytes()
    out = folder / draft.name
    out.write_bytes(data)
    return out


def summary(found: Results) -> str:
    """Returns the results as a Markdown table by category and contestant."""
    head = ["category", "contestant", "questions", "tokens/s", "length", "by depth", "speed", "95 %"]
    has_llama = LLAMA in found.names
    rows = []
    for category in [*found.categories, "all"] if found.cells else ():
        for name in found.names:
            cell = found.of(category, name)
            mean, low, high = cell.speed or (0.0, 0.0, 0.0)
            timings, rates = cell.timings, cell.timings.accepted_per_depth[:8]
            row = [category, name, cell.n_questions, f"{timings.predicted_per_second:.1f}"]
            row += [f"{timings.acceptance_length:.2f}" if timings.draft_n_accepted else ""]
            row += [" ".join(f"{rate:.2f}" for rate in rates), mean, f"{low:.2f} to {high:.2f}"]
            if has_llama:
                over = found.over(name, LLAMA, category) or [1.0]
                row += [statistics.geometric_mean(over), min(over)]
            rows.append(row)
    text = table([*head, *(["over llama.cpp", "lowest"] if has_llama else [])], rows)
    if found.n_long:
        text += f"\n{found.n_long} questions do not fit into the context and are left out"
    return text if found.complete else f"{text}\nended early, after {found.n_asked} questions"


def numbers(text: str) -> list[float]:
    return [float(part) for part in text.split(",")]


def parse() -> argparse.Namespace:
    parser = arguments(__doc__)
    parser.add_argument("target", type=Path)
    parser.add_argument("--draft", type=Path, action="append", default=[], help="drafter; repeatable")
    parser.add_argument("--questions", default="chat")
    parser.add_argument("--strategy", action="append", default=[], help="fixed strategy; repeatable")
    parser.add_argument("--text", action="store_true")
    parser.add_argument("--useless", action="store_true")
    parser.add_argument("--llama-server", type=Path)
    parser.add_argument("--n-max", type=lambda text: [int(part) for part in text.split(",")], default=[3, 7])
    parser.add_argument("--server", metavar="URL")
    parser.add_argument("--temperature", type=numbers, default=[0.0, 0.8])
    parser.add_argument("--limit", type=int, help="number of questions of each category")
    parser.add_argument("--minutes", type=float, default=30)
    parser.add_argument("-n", "--n-tokens", type=int, default=128, help="maximum tokens of an answer")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("-c", "--n-ctx", type=int, default=4096)
    parser.add_argument("-t", "--threads", type=int, default=0, help="0 = number of physical cores")
    parser.add_argument(
        "--option", type=option, action="append", default=[], help="NAME=VALUE for our engines"
    )
    parser.add_argument("--json", type=Path)
    return parser.parse_args()


if __name__ == "__main__":
    main()
