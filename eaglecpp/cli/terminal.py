# SPDX-License-Identifier: MIT
"""The only module that prints: results to stdout, notes and statistics to stderr.

Progress is drawn only on a terminal. There, control characters are shown as symbols, because nearly every
text can come from a model, a file or a server, and could rewrite the screen or attack the terminal. `styled`
text is printed unchanged, because the caller has already made it safe. Files and pipes receive all text
unchanged.
"""

from __future__ import annotations

import contextlib
import json
import logging
import math
import os
import re
import shutil
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime
from types import FrameType
from typing import Any

import click

from eaglecpp.human import counted, visible
from eaglecpp.results import READ_MS, AnswerStream, Chunk

# Maximum number of tokens of a short prompt. A short prompt is read so fast that no progress is shown.
_SHORT_PROMPT = 256


def write(text: str, *, styled: bool = False) -> None:
    """Prints a piece of a result and flushes the stream. styled: True if the only escape sequences in the
    piece are eaglecpp's own.
    """
    sys.stdout.write(text if styled or not stdout_is_terminal() else visible(text))
    sys.stdout.flush()


def write_json(value: Any) -> None:
    """Prints a whole result as one JSON object on one line."""
    write(json.dumps(value, ensure_ascii=False) + "\n")


def note(text: str, *, styled: bool = False) -> None:
    """Prints a line for the user that is not part of the result. styled: True if the line is safe to print
    (see `write`), and already broken into lines.
    """
    click.echo(text if styled or not stderr_is_terminal() else laid_out(visible(text)), err=True)


def laid_out(text: str, indent: int = 0) -> str:
    """Breaks long lines between words, for a terminal. Text in backticks stays whole, to be copied.

    indent: blanks before continuation lines
    """
    width = shutil.get_terminal_size().columns
    return "\n".join(_broken(line, width, indent) for line in text.split("\n"))


def fitted(text: str, indent: int = 0) -> str:
    """Returns the text for stdout. If stdout is a terminal, breaks long lines."""
    return laid_out(text, indent) if stdout_is_terminal() else text


def _broken(line: str, width: int, indent: int) -> str:
    out, column = "", 0
    for blanks, word in re.findall(r"(\s*)((?:`[^`]*`|\S)+)", line):
        if column + len(blanks) + len(word) > width and column > 0 and len(word) <= width:
            blanks = " " * min(indent, width - len(word))  # a smaller indent keeps a path in one line
            out += "\n"
            column = 0
        out += blanks + word
        column += len(blanks) + len(word)
        column = column % width if column > width else column
    return out


class LogFormatter(logging.Formatter):
    """Log formatter that shows control characters as symbols, because log lines quote models and files."""

    def format(self, record: logging.LogRecord) -> str:
        text = super().format(record)
        return visible(text) if stderr_is_terminal() else text


def stdout_is_terminal() -> bool:
    """Returns True if stdout is a terminal."""
    return sys.stdout.isatty()


def stderr_is_terminal() -> bool:
    """Returns True if stderr is a terminal."""
    return sys.stderr.isatty()


def wants_colour() -> bool:
    """Returns True if a terminal supports colour, and neither NO_COLOR nor CLICOLOR=0 forbids it
    (no-color.org, bixense.com/clicolors).
    """
    env = os.environ
    return not env.get("NO_COLOR") and env.get("CLICOLOR") != "0" and env.get("TERM") != "dumb"


@contextlib.contextmanager
def silent_keys(*, by_key: bool = False) -> Iterator[None]:
    """Turns off the terminal's echo inside the `with` block, so that typed text does not appear in an answer.
    The typed text is kept for the next prompt.

    by_key: read single keys instead of lines. In line mode, the terminal's driver drops everything after the
    first 4 KB of a line, and turns Enter into a line feed
    """
    if os.name != "posix" or not sys.stdin.isatty():
        yield
        return
    import termios

    descriptor = sys.stdin.fileno()
    before = termios.tcgetattr(descriptor)
    # Without NOFLSH, the terminal's driver would discard pending output at Ctrl+C.
    silent = [*before[:3], before[3] & ~termios.ECHO | termios.NOFLSH, *before[4:]]
    if by_key:
        silent[0] &= ~termios.ICRNL
        silent[3] &= ~termios.ICANON
        silent[6] = [*before[6]]
        silent[6][termios.VMIN], silent[6][termios.VTIME] = 1, 0
    try:
        termios.tcsetattr(descriptor, termios.TCSANOW, silent)
        yield
    finally:
        termios.tcsetattr(descriptor, termios.TCSANOW, before)


class Watch:
    """Shows progress while the prompt is read, and turns Ctrl+C into a request to stop.

    After Ctrl+C the current round is finished, so that no token of the round is lost; a second Ctrl+C
    interrupts at once. requested: True if Ctrl+C was pressed; on_request: function that is called when Ctrl+C
    is pressed
    """

    def __init__(self, on_request: Callable[[], None] = lambda: None) -> None:
        self.requested = False
        self._on_request = on_request
        self._drawn = False

    def on_prefill(self, n_done: int, n_prompt: int) -> None:
        """Draws progress on a terminal, and raises KeyboardInterrupt after Ctrl+C . `Session.stream` calls
        this method.
        """
        if self.requested:
            raise KeyboardInterrupt
        if n_prompt > _SHORT_PROMPT and stderr_is_terminal():
            self._drawn = True
            show_progress(f"reading the prompt: {n_done}/{n_prompt}")

    def clear(self) -> None:
        """Clears the progress line, so that other text can be printed."""
        if self._drawn:
            self._drawn = False
            show_progress("")

    @contextlib.contextmanager
    def listening(self) -> Iterator[Watch]:
        """Handles SIGINT inside the `with` block. Has no effect outside the main thread."""
        if threading.current_thread() is not threading.main_thread():
            yield self
            return
        previous = signal.signal(signal.SIGINT, self._handle)
        try:
            yield self
        finally:
            signal.signal(signal.SIGINT, previous)

    def follow(self, answer: AnswerStream, show: Callable[[Chunk], object]) -> None:
        """Shows an answer until the answer ends or Ctrl+C is pressed, and then shows the text that was held
        back.
        """
        answer.chunk_ms = READ_MS
        try:
            for chunk in answer:
                self.clear()
                show(chunk)
                if self.requested:
                    break
        except KeyboardInterrupt:
            self.requested = True
        finally:
            self.clear()
            show(answer.close())

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self.requested:
            raise KeyboardInterrupt
        self.requested = True
        self._on_request()


@contextlib.contextmanager
def patience(text: str) -> Iterator[None]:
    """Shows a text on a terminal while the `with` block runs."""
    show_progress(text)
    try:
        yield
    finally:
        show_progress("")


def show_progress(text: str) -> None:
    """Replaces the progress line on stderr if stderr is a terminal. "" clears the line."""
    if stderr_is_terminal():
        click.echo(f"\r\x1b[K{text}", nl=False, err=True)


_GAP = "    "
_UNITS = [(1, "second"), (60, "minute"), (3600, "hour"), (86400, "day"), (604800, "week"), (2592000, "month")]
# Minimum width of the last column. In narrower terminals, the column's text continues at the left.
_NARROWEST = 24


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Formats a table with four blanks between columns, or two blanks on a narrow terminal. The text ends
    with a newline.
    """
    return _columns([header, *rows])


def section(title: str, rows: Sequence[Sequence[str]]) -> str:
    """Formats a titled block of `show`, with an empty line after it."""
    return f"  {title}\n{_columns([['', *row] for row in rows])}\n"


def labelled(rows: Sequence[tuple[str, str]]) -> str:
    """Formats pairs of a label and a text as lines. The result ends with a newline."""
    return "".join(f"{_hanging(f'{label:<18}{text}', 18)}\n" for label, text in rows)


def help_table(title: str, rows: Sequence[tuple[str, str]]) -> str:
    """Formats a titled list of names and explanations. The result ends without a newline."""
    width = max(len(left) for left, _ in rows) + 2
    return "\n".join([title, *(_hanging(f"  {left:<{width}}{right}", 2 + width) for left, right in rows)])


def human_time(when: datetime, now: datetime | None = None) -> str:
    """Formats a time relative to now, such as "3 days ago"."""
    seconds = ((now or datetime.now(UTC)) - when).total_seconds()
    size, unit = max((one for one in _UNITS if abs(seconds) >= 2 * one[0]), default=_UNITS[0])
    return f"{counted(int(abs(seconds) // size), unit)} {'ago' if seconds >= 0 else 'from now'}"


def _columns(rows: Sequence[Sequence[str]]) -> str:
    n_columns = max((len(row) for row in rows), default=0)
    widths = [max((len(row[i]) for row in rows if i < len(row)), default=0) for i in range(n_columns)]
    room = shutil.get_terminal_size().columns - sum(widths) if stdout_is_terminal() else math.inf
    gap = "  " if 2 * (n_columns - 1) <= room < len(_GAP) * (n_columns - 1) else _GAP
    last = sum(widths[:-1]) + len(gap) * (n_columns - 1)
    lines = (
        gap.join(cell.ljust(width) for cell, width in zip(row, widths, strict=False)).rstrip() for row in rows
    )
    return "".join(f"{_hanging(line, last)}\n" for line in lines)


def _hanging(line: str, last: int) -> str:
    """Breaks a line of a table for a terminal. last: position in the line at which the last column starts."""
    has_room = shutil.get_terminal_size().columns - last >= _NARROWEST
    return fitted(line, last if has_room else len(_GAP))
