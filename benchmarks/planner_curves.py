# SPDX-License-Identifier: MIT
"""What the planner would choose, and gain, on machines that are not at hand: the simulator of its tests on
published costs per row and published tokens per round. Prints the table of docs/research/gpu.md.

    python benchmarks/planner_curves.py
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

from common import table

ROOT = Path(__file__).parents[1]


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
    cases = [dict(zip(keys, line.split("\t"), strict=True)) for line in lines[1:]]
    drafters = list(dict.fromkeys(c["drafter"] for c in cases))
    rows = []
    for machine in dict.fromkeys(c["machine"] for c in cases):
        found = {(c["drafter"], c["text"]): c for c in cases if c["machine"] == machine}
        row = [machine]
        for drafter in drafters:
            chat, code = (found[drafter, text] for text in ("chat", "code"))
            row.append(f"{chat['planner']}, {code['planner']} ({chat['rows']}, {code['rows']})")
        rows.append([*row, min(c["worst"] for c in found.values())])
    print(table(["machine", *drafters, "slowest"], rows))


if __name__ == "__main__":
    main()
