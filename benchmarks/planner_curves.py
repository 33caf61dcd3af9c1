# SPDX-License-Identifier: MIT
"""What the planner would choose, and gain, on machines that are not at hand: the simulator of its tests on
published costs per row. Prints the tables of docs/research/gpu.md: of long texts, and of the first 256 tokens
without prices and with those of the card (eaglecpp/engine/row_classes.py).

    python benchmarks/planner_curves.py
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

from common import table

from eaglecpp.engine.predicted_costs import Weights, cost_text
from eaglecpp.engine.row_classes import Card

ROOT = Path(__file__).parents[1]
HEAD = ["machine", "text", "planner", "worst 512 tokens", "chain of 3", "best fixed", "rows a round"]
FIRST = ["machine", "text", "no prices", "prices of the card"]
# by number in tests/native/algo/scenarios.cpp
CARDS = {
    1: (Card("cuda", "", "Q4_0"), Weights(4.7e9, 8e9, 0.4)),
    6: (Card("cuda", "", "Q8_0"), Weights(36e9, 34e9, 0.7)),
    18: (Card("cuda", "", "Q8_0"), Weights(29e9, 27e9, 0.7)),
    19: (Card("vulkan", "", "Q4_K"), Weights(18e9, 30e9, 0.7, experts=0.93, used=8 / 128)),
    20: (Card("metal", "", "Q3_K"), Weights(13e9, 27e9, 0.7)),
    21: (Card("metal", "", "BF16"), Weights(16e9, 8e9, 0.4)),
    8: (Card("cuda", "", "Q4_K"), Weights(62e9, 106e9, 0.7, experts=0.95, used=8 / 128)),
}


def first_tokens(program: Path, folder: Path) -> None:
    rows = []
    for number, (card, weights) in CARDS.items():
        draft = Weights(0.05 * weights.n_bytes, 0.05 * weights.n_weights, 0.1)
        tables = {
            "none": b"",
            "card": cost_text(weights, draft, card).replace(b"key predicted", b"key simulator"),
        }
        found = {}
        for name, text in tables.items():
            (folder / name).write_bytes(text)
            command = [program, "first", str(folder / name), str(number)]
            lines = subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()
            found[name] = [line.split("\t") for line in lines]
        rows += [[*a, b[-1]] for a, b in zip(found["none"], found["card"], strict=True)]
    print(table(FIRST, rows))


def main() -> None:
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
        lines = subprocess.run([program], check=True, capture_output=True, text=True).stdout.splitlines()
        first_tokens(program, Path(name))
    keys = lines[0].split("\t")
    rows = []
    for line in lines[1:]:
        found = dict(zip(keys, line.split("\t"), strict=True))
        rows.append(
            [
                found["machine"], found["text"], found["planner"], found["worst"], found["chain_3"],
                f"{found['best']} ({found['best_fixed']})",
                found["rows"] + (", trees" if found["trees"] == "yes" else ""),
            ]
        )  # fmt: skip
    print()
    print(table(HEAD, rows))


if __name__ == "__main__":
    main()
