# SPDX-License-Identifier: MIT
"""Fills the table of docs/measured.md from benchmarks/measured/*.json: python docs/generate_measured.py

tests/unit/cli/test_docs.py fails when the page is stale or a record has a fault.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from eaglecpp.bench.share import HEAD, cells

PAGE = Path(__file__).with_name("measured.md")
RECORDS = Path(__file__).parents[1] / "benchmarks" / "measured"
BLOCK = re.compile(r"(<!-- measured -->\n).*?(<!-- end -->)", re.DOTALL)


def filled(page: str) -> str:
    """The page with its table made anew."""
    return BLOCK.sub(lambda match: match[1] + table() + match[2], page)


def table() -> str:
    """A Markdown table, sorted by model and machine."""
    rows = sorted(cells(record) for record in records().values())
    return "".join(f"| {' | '.join(row)} |\n" for row in (HEAD, ["---"] * len(HEAD), *rows))


def records() -> dict[str, Any]:
    """By the names of their files."""
    paths = sorted(RECORDS.glob("*.json"))
    return {path.name: json.loads(path.read_text(encoding="utf-8")) for path in paths}


if __name__ == "__main__":
    PAGE.write_text(filled(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
