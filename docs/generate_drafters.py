# SPDX-License-Identifier: MIT
"""Fills the table of docs/which-drafter.md from eaglecpp/drafters.toml: python docs/generate_drafters.py

tests/unit/cli/test_docs.py fails if the page is stale.
"""

from __future__ import annotations

import re
import tomllib
from collections import defaultdict
from pathlib import Path

PAGE = Path(__file__).with_name("which-drafter.md")
DRAFTERS = Path(__file__).parents[1] / "eaglecpp" / "drafters.toml"
BLOCK = re.compile(r"(<!-- drafters -->\n).*?(<!-- end -->)", re.DOTALL)


def filled(page: str) -> str:
    """Returns the page with a new table."""
    return BLOCK.sub(lambda match: match[1] + table() + match[2], page)


def table() -> str:
    """Returns a Markdown table of targets by name, with their drafters in the order of `--draft auto`."""
    drafters: dict[str, list[str]] = defaultdict(list)
    aliases: dict[str, list[str]] = {}
    for row in tomllib.loads(DRAFTERS.read_text(encoding="utf-8"))["drafter"]:
        target, *others = row["targets"]
        drafters[target].append(f"`{row['repo']}`" + (" (cannot run)" if row.get("refused") else ""))
        names = [name for name in others if "/" not in name and not name.endswith(":latest")]
        aliases.setdefault(target, names)
    lines = ["| target | drafters |\n", "| --- | --- |\n"]
    for target in sorted(drafters, key=str.lower):
        names = ", ".join([target, *(f"`{name}`" for name in aliases[target])])
        lines.append(f"| {names} | {', '.join(drafters[target])} |\n")
    return "".join(lines)


if __name__ == "__main__":
    PAGE.write_text(filled(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
