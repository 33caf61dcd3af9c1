# SPDX-License-Identifier: MIT
"""Drafters from `eaglecpp train`, each trained on the states of one target file, all serving another.

    python benchmarks/trained.py --serve T-Q4_0.gguf --arm Q4_0=T-Q4_0.gguf --arm F16=T-F16.gguf \
        --known supplied=DRAFT.gguf --data /usr/lib/python3.11 --reference prompts.json --minutes 10 -o runs

An arm is trained where its folder is not there yet, with `--parallel` all at once; the rest of the command
line of `eaglecpp train` goes behind `--`. Then every drafter runs a greedy chain of five on the prompts, and
acceptance length, rates per depth and the training's tokens/s are printed.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from acceptance import Counts, measure
from common import arguments, facts, note, read_prompts, table, write_json

import eaglecpp

DEPTH = 5
EAGLECPP = str(Path(sys.executable).with_name("eaglecpp"))


def named_path(text: str) -> tuple[str, Path]:
    """`name=path`."""
    name, _, path = text.partition("=")
    if not path or not Path(path).exists():
        raise argparse.ArgumentTypeError(f"expected NAME=FILE, found {text!r}")
    return name, Path(path).resolve()


def parse() -> argparse.Namespace:
    parser = arguments(__doc__)
    parser.add_argument("--serve", type=Path, required=True, help="the target that all serve")
    parser.add_argument("--arm", type=named_path, action="append", required=True, help="NAME=TARGET")
    parser.add_argument("--known", type=named_path, action="append", default=[], help="NAME=DRAFTER.gguf")
    parser.add_argument("--data", type=Path, action="append", required=True)
    parser.add_argument("--reference", type=Path, required=True, help="JSON with prompts")
    parser.add_argument("--minutes", type=float, default=20.0)
    parser.add_argument("--parallel", action="store_true", help="train all arms at once, one thread each")
    parser.add_argument("--processes", type=int, default=1, help="of each training, under torchrun")
    parser.add_argument("-o", "--out", type=Path, required=True, help="folder of the runs")
    parser.add_argument("--threads", type=int, default=0)
    parser.add_argument("--json", type=Path)
    parser.add_argument("train", nargs="*", help="more options of `eaglecpp train`, behind --")
    return parser.parse_args()


def train(args: argparse.Namespace) -> None:
    """Runs the arms that have no result yet. Raises SystemExit when one fails."""
    running: list[subprocess.Popen[bytes]] = []
    for name, target in args.arm:
        out = (args.out / name).resolve()
        if (out / "training.json").exists():
            continue
        launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
        command = [*launcher, f"--nproc-per-node={args.processes}"] if args.processes > 1 else []
        command += [
            EAGLECPP,
            "train",
            "--target",
            str(target),
            "-o",
            str(out),
            "--minutes",
            str(args.minutes),
        ]
        for path in args.data:
            command += ["--data", str(path.resolve())]
        command += ["-t", "1"] if args.parallel else []
        note("+ " + " ".join([*command, *args.train]))
        running.append(subprocess.Popen([*command, *args.train], cwd=args.out))
        if not args.parallel:
            running[-1].wait()
    if any(process.wait() for process in running):
        raise SystemExit("a training failed")


def accepted(args: argparse.Namespace, draft: Path) -> Counts:
    """A greedy chain on all prompts."""
    options: dict[str, Any] = {"n_ctx": 1024, "n_threads": args.threads, "strategy": f"chain:{DEPTH}"}
    with eaglecpp.Engine.open(args.serve, draft=draft, **options) as engine:
        return measure(engine, read_prompts(args.reference, engine), DEPTH)[0]


def main() -> None:
    args = parse()
    args.out.mkdir(parents=True, exist_ok=True)
    train(args)
    rows: list[list[Any]] = []
    results: dict[str, Any] = {}
    for name, draft in [
        *args.known,
        *((name, args.out / name / "drafter-Q8_0.gguf") for name, _ in args.arm),
    ]:
        counts = accepted(args, draft)
        result = {"acceptance_length": counts.acceptance_length, "accepted_per_depth": counts.rates}
        report = draft.parent / "training.json"
        if any(name == arm for arm, _ in args.arm):
            run = json.loads(report.read_text(encoding="utf-8"))
            result |= {key: run[key] for key in ("tokens", "seconds", "steps")}
        results[name] = result
        trained = f"{result['tokens'] / 1e6:.2f} M" if "tokens" in result else ""
        speed = f"{result['tokens'] / result['seconds']:.0f}" if "tokens" in result else ""
        rows.append([name, counts.acceptance_length, *counts.rates, trained, speed])
    head = [
        "drafter",
        "acceptance length",
        *(f"depth {d + 1}" for d in range(DEPTH)),
        "trained on",
        "tokens/s",
    ]
    print(table(head, rows))
    settings = {
        "minutes": args.minutes,
        "processes": args.processes,
        "parallel": args.parallel,
        "depth": DEPTH,
    }
    write_json(args.json, {**facts({"serve": args.serve}, **settings), "results": results})


if __name__ == "__main__":
    main()
