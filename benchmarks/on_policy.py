# SPDX-License-Identifier: MIT
"""What learning from rejected drafts gains: two trainings from the same drafter on the same answers.

    python benchmarks/on_policy.py TARGET.gguf DRAFT.gguf OUT --answers A.jsonl,B.jsonl --rounds DIR
           [--minutes 15] [--epochs E] [--type Q4_1] [--only texts,rounds] [-t 1]

`eaglecpp train --on-policy` leaves answers.jsonl and rounds/ in its folder. Both trainings see the same texts
in the same order: *texts* learns from these alone, *rounds* also from what the target said behind rejected
drafts. With --epochs they see the same tokens, with --minutes they have the same time. The drafters are in
OUT/texts and OUT/rounds; `smollm2.py --measure length` tells what the engine makes of them.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from common import arguments, note, table

from eaglecpp.train.capture.cache import CacheOptions
from eaglecpp.train.fit.allocator import with_allocator
from eaglecpp.train.fit.loop import Budget, Limits, StepReport
from eaglecpp.train.prepare import TrainOptions
from eaglecpp.train.run import train


class Listener:
    """Says what is worth a line."""

    def __init__(self, name: str) -> None:
        self.name = name

    def stop(self) -> bool:
        return False

    def note(self, text: str) -> None:
        note(f"{self.name}: {text}")

    def on_work(self, what: str, n_done: int, n_all: int, detail: str = "") -> None:
        pass

    def on_step(self, report: StepReport) -> None:
        pass

    def on_evaluation(self, step: int, found: Any, best: bool) -> None:
        self.note(f"step {step}: {found.length:.3f}")


def main() -> int:
    args = parse()
    rows = []
    for name in args.only.split(","):
        options = TrainOptions(
            args.target,
            args.out / name,
            data=tuple(Path(path) for path in args.answers.split(",")),
            finetune=str(args.draft),
            rounds=args.rounds if name == "rounds" else None,
            loss="lk",
            lr=args.lr,
            type=args.type,
            qat=True,
            threads=args.threads,
            cache=CacheOptions(args.out / "states"),
            budget=Budget(minutes=args.minutes, epochs=args.epochs),
            limits=Limits(),
            resume=(args.out / name / "state" / "last.pt").exists(),
        )
        train(options, Listener(name))
        record = json.loads((args.out / name / "training.json").read_text())
        compared = record["compared"]
        rows.append(
            (
                name,
                f"{record['tokens'] / 1e6:.2f}",
                f"{record['seconds'] / 60:.1f}",
                f"{compared['held_out']['length']:.3f}",
                f"{compared['trained']['length']:.3f}",
            )
        )
    print(table(("learnt from", "million tokens", "minutes", "held out", "trained"), rows))
    return 0


def parse() -> argparse.Namespace:
    parser = arguments(__doc__)
    parser.add_argument("target", type=Path)
    parser.add_argument("draft", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--answers", required=True)
    parser.add_argument("--rounds", type=Path, required=True)
    parser.add_argument("--minutes", type=float)
    parser.add_argument("--epochs", type=float)
    parser.add_argument("--lr", type=float, default=0.0)
    parser.add_argument("--type", default="Q4_1")
    parser.add_argument("--only", default="texts,rounds")
    parser.add_argument("-t", "--threads", type=int, default=1)
    args = parser.parse_args()
    if args.minutes is None and args.epochs is None:
        parser.error("give --minutes or --epochs")
    return args


if __name__ == "__main__":
    with_allocator([sys.executable, *sys.argv])
    raise SystemExit(main())
