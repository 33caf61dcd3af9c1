# SPDX-License-Identifier: MIT
"""Fills the table of a server's limits in SECURITY.md: python docs/generate_limits.py"""

from __future__ import annotations

import re
from pathlib import Path

from eaglecpp.cli.options import help_text
from eaglecpp.options import describe
from eaglecpp.server.config import ServerConfig

PAGE = Path(__file__).parents[1] / "SECURITY.md"
BLOCK = re.compile(r"(<!-- limits of serve -->\n).*?(<!-- end -->)", re.DOTALL)


def filled(page: str) -> str:
    """Returns the page with a new table."""
    rows = "| what | option of `serve` | beyond it |\n| --- | --- | --- |\n"
    for one in (one for one in describe(ServerConfig) if one.limit):
        rows += f"| {help_text(one).replace('  ', ' ')} | `{one.flags[0]}` | {one.limit} |\n"
    return BLOCK.sub(lambda match: match[1] + rows + match[2], page)


if __name__ == "__main__":
    PAGE.write_text(filled(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
