# SPDX-License-Identifier: MIT
"""Draws the bar charts of the pages from the pages' tables: python docs/generate_charts.py

tests/unit/cli/test_docs.py fails if a chart is stale.
"""

from __future__ import annotations

import re
from html import escape
from pathlib import Path
from typing import NamedTuple

DOCS = Path(__file__).parent
WIDTH, LEFT, BAR, GAP = 720, 190, 15, 12
COLOURS = ("#9db8a9", "#1f7a4d", "#b4560f")


class Chart(NamedTuple):
    """Columns to draw from a page's table (found by its first header), and the labels of the chart."""

    page: str
    header: str
    columns: dict[int, str]
    title: str
    baseline: str = "llama.cpp"  # name of the baseline, which is at 1.0


OVER_LLAMA = "Speed over llama.cpp's target-only decoding, two cores, greedy"
CHARTS = {
    "speed.svg": Chart("smollm2.md", "file", {1: "kernels alone", 2: "with the drafter"}, OVER_LLAMA),
    "kernels.svg": Chart("kernels.md", "model and weights", {2: "AVX2", 1: "AVX-512"}, OVER_LLAMA),
    "drafters.svg": Chart(
        "which-drafter.md",
        "target and text",
        {1: "EAGLE-3", 2: "DFlash", 3: "DSpark"},
        "Tokens a round, by DSpark's paper",
        "no drafter",
    ),
    "long.svg": Chart(
        "research/drift.md",
        "tokens before the question",
        {1: "all in view", 2: "the last 256"},
        "Tokens a round of SmolLM2's drafter after so many tokens",
        "no drafter",
    ),
}


def rows(page: str, header: str) -> list[list[str]]:
    """Returns the cells of the table with this first header, with links replaced by their text."""
    lines = iter((DOCS / page).read_text(encoding="utf-8").splitlines())
    cells: list[list[str]] = []
    for line in lines:
        if line.startswith(f"| {header} |"):
            break
    next(lines)
    for line in lines:
        if not line.startswith("|"):
            break
        line = re.sub(r"\[([^]]*)]\([^)]*\)", r"\1", line)
        cells.append([cell.strip() for cell in line.strip("|").split("|")])
    return cells


def drawn(chart: Chart) -> str:
    """Returns a chart as SVG."""
    body, x, y = [], float(LEFT), 68
    table = rows(chart.page, chart.header)
    scale = (WIDTH - LEFT - 60) / max(float(row[i]) for row in table for i in chart.columns if row[i])
    for name, colour in zip(chart.columns.values(), COLOURS, strict=False):
        body += [f'<rect x="{x:.0f}" y="38" width="12" height="12" fill="{colour}"/>', text(x + 18, 49, name)]
        x += 40 + 8 * len(name)
    top = y
    for row in table:
        bars = [(row[i], colour) for i, colour in zip(chart.columns, COLOURS, strict=False) if row[i]]
        body.append(text(LEFT - 12, y + BAR * len(bars) / 2 + 5, row[0], "end"))
        for value, colour in bars:
            width = float(value) * scale
            body.append(f'<rect x="{LEFT}" y="{y}" width="{width:.1f}" height="{BAR - 2}" fill="{colour}"/>')
            body.append(text(LEFT + width + 6, y + 11, value))
            y += BAR
        y += GAP
    line = LEFT + scale
    body.append(f'<path d="M{line:.1f} {top - 6}V{y - 4}" stroke="#12312a" stroke-dasharray="4 3"/>')
    body.append(text(line, y + 10, f"{chart.baseline} = 1", "middle"))
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {y + 24}" role="img" fill="#12312a" '
    )
    head += f'aria-label="{escape(chart.title)}" font-family="system-ui, sans-serif" font-size="13">'
    card = f'<rect width="{WIDTH}" height="{y + 24}" rx="8" fill="#f2f7f3"/>'
    title = f'<text x="16" y="24" font-weight="600">{escape(chart.title)}</text>'
    return "\n".join([head, card, title, *body, "</svg>\n"])


def text(x: float, y: float, words: str, anchor: str = "start") -> str:
    """Returns an SVG element with a line of text."""
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(words)}</text>'


if __name__ == "__main__":
    for name, chart in CHARTS.items():
        (DOCS / name).write_text(drawn(chart), encoding="utf-8")
