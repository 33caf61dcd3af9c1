# SPDX-License-Identifier: MIT
"""What the planner would choose, and gain, on machines that are not at hand: the simulator of its tests on
published costs per row. Prints the table of docs/research/gpu.md.

    python benchmarks/planner_curves.py
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

from common import table

ROOT = Path(__file__).parents[1]
HEAD = ["machine", "text", "planner", "worst 512 tokens", "chain of 3", "best fixed", "rows a round"]


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
    print(table(HEAD, rows))


if __name__ == "__main__":
    main()
