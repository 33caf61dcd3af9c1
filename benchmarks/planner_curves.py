# SPDX-License-Identifier: MIT
"""Simulates the planner's choices and speed-ups on other machines. Uses the simulator of the planner's tests,
published costs per token, and published tokens per round.

    python benchmarks/planner_curves.py [--first-answers]

Prints the table of docs/research/gpu.md. With --first-answers it prints a new user's first three answers with
default options, from which docs/gpu.md has its table.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from statistics import fmean, geometric_mean

from common import arguments, table

ROOT = Path(__file__).parents[1]


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--first-answers", action="store_true")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        off = ["-DEAGLECPP_PYTHON=OFF", "-DEAGLECPP_TESTS=ON", "-DEAGLECPP_ALGO_ONLY=ON"]
        commands = (
            ["cmake", "-S", str(ROOT), "-B", name, "-DCMAKE_BUILD_TYPE=Release", *off],
            ["cmake", "--build", name, "--target", "planner_curves"],
        )
        for command in commands:
            subprocess.run(command, check=True, stdout=sys.stderr)
        (program,) = (
            p for p in Path(name).rglob("planner_curves*") if p.is_file() and p.suffix in ("", ".exe")
        )
        command = [str(program), *(["first"] if args.first_answers else [])]
        lines = subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()
    keys = lines[0].split("\t")
    cases = [dict(zip(keys, line.split("\t"), strict=True)) for line in lines[1:]]
    if args.first_answers:
        head = [
            "machine",
            "drafter",
            "round of the first accepted draft",
            "answer 1",
            "2",
            "3",
            "later",
            "lowest first",
        ]
        print(table(head, first_answers(cases)))
        return
    drafters = list(dict.fromkeys(c["drafter"] for c in cases))
    found: dict[tuple[str, ...], list[dict[str, str]]] = {}
    for case in cases:
        found.setdefault(tuple(case[key] for key in keys[:3]), []).append(case)
    rows = []
    for machine in dict.fromkeys(c["machine"] for c in cases):
        row = [machine]
        for drafter in drafters:
            runs = [found[machine, drafter, text] for text in ("chat", "code")]
            speeds = (f"{geometric_mean(float(r['speed']) for r in each):.2f}" for each in runs)
            sizes = (f"{fmean(float(r['rows']) for r in each):.1f}" for each in runs)
            row.append(f"{', '.join(speeds)} ({', '.join(sizes)})")
        rows.append([*row, min(c["window"][:4] for c in cases if c["machine"] == machine)])
    print(table(["machine", *drafters, "slowest"], rows))


def first_answers(cases: list[dict[str, str]]) -> Iterator[list[str]]:
    """Yields rows of the table of first answers. A row has the results on chats next to the results on
    code.
    """
    for chat, code in zip(cases[::2], cases[1::2], strict=True):
        columns = ("first", "second", "third", "later", "lowest first")
        rounds = (int(c["before"]) + 1 if float(c["later"]) > 1 else "none" for c in (chat, code))
        speeds = (f"{chat[column]}, {code[column]}" for column in columns)
        yield [chat["machine"], chat["drafter"], ", ".join(map(str, rounds)), *speeds]


if __name__ == "__main__":
    main()
