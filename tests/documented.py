# SPDX-License-Identifier: MIT
"""`write(folder)` writes the Python code of the documentation pages as modules for type checkers.

Each page becomes a module with the page's line numbers. The code blocks of a page share one namespace, which
also has the names in `GIVEN`. A block that uses `await` becomes a function.
"""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
GIVEN = """\
import asyncio
from pathlib import Path

import eaglecpp

conversations: list[list[dict[str, str]]] = []
engine: eaglecpp.Engine
"""
_BLOCK = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def examples() -> list[Path]:
    """Returns the example programs."""
    return sorted((ROOT / "examples").glob("*.py"))


def write(folder: Path) -> list[Path]:
    """Writes a module for each page with Python code, and returns the paths of the modules."""
    (folder / "given.py").write_text(GIVEN, encoding="utf-8")
    written = []
    for page in (ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))):
        text = page.read_text(encoding="utf-8")
        lines = [""] * text.count("\n")
        for block in _BLOCK.finditer(text):
            first = text.count("\n", 0, block.start(1))
            code = block[1].splitlines()
            if "await" in block[1]:
                lines[first - 1] = "async def main() -> None:"
                code = [f"    {line}" for line in code]
            lines[first : first + len(code)] = code
        if any(lines):
            lines[0] = "from given import *"
            name = re.sub(r"\W", "_", page.relative_to(ROOT).with_suffix("").as_posix())
            written.append(folder / f"{name}.py")
            written[-1].write_text("\n".join(lines) + "\n", encoding="utf-8")
    return written
