# SPDX-License-Identifier: MIT
"""Fills the hardware table of docs/benchmarks.md from docs/hardware.toml: python docs/generate_hardware.py

`eaglecpp bench --share` prints the `[[bench]]` entries. tests/unit/cli/test_docs.py fails if the page
is stale.
"""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

PAGE = Path(__file__).with_name("benchmarks.md")
BLOCKS = Path(__file__).with_name("hardware.toml")
BLOCK = re.compile(r"(<!-- hardware -->\n).*?(<!-- end -->)", re.DOTALL)
HEAD = "| machine | model, drafter | greedy | 0.8 | accepted at position 1, 2, 3 | date |\n"


def filled(page: str) -> str:
    """Returns the page with a new table."""
    return BLOCK.sub(lambda match: match[1] + table() + match[2], page)


def table() -> str:
    """Returns a Markdown table with the speed of `auto` over target-only decoding, and tokens per second in
    brackets.
    """
    blocks = tomllib.loads(BLOCKS.read_text(encoding="utf-8"))["bench"]
    return HEAD + "| --- | --- | --- | --- | --- | --- |\n" + "".join(map(_row, blocks))


def _row(block: dict[str, Any]) -> str:
    machine = f"{block['cpu']}, {block['cores']} cores, {block['kernels']}"
    machine = f"{block['gpu']} ({machine})" if block["gpu"] else machine
    by_temperature = {one["temperature"]: one for one in block["results"] if one["strategy"] == "auto"}
    cells = []
    for temperature in (0.0, 0.8):
        one = by_temperature.get(temperature)
        cells.append("" if one is None else f"{one['speed']:.2f} ({one['tokens_per_second']:.0f})")
    rates = by_temperature[min(by_temperature)]["acceptance_by_position"][:3]
    cells += [", ".join(f"{rate:.2f}" for rate in rates), str(block["date"])]
    return f"| {machine} | {block['model']}, {block['drafter'] or 'none'} | {' | '.join(cells)} |\n"


if __name__ == "__main__":
    PAGE.write_text(filled(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
