# SPDX-License-Identifier: MIT
"""The only place that prints: results to stdout, notes and statistics to stderr.

Progress is drawn only on a terminal. On a terminal control characters are also shown as symbols, because
nearly every text here can come from a model, a file or a server, and could rewrite the screen or worse. Only
`styled` text, whose author took care of that, is printed unchanged. Files and pipes get everything unchanged.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import re
import shutil
import signal
import sys
import threading
from collections.abc import Iterator
from types import FrameType
from typing import Any

import click

from eaglecpp.results import Timings

__all__ = [
    "LogFormatter",
    "Watch",
    "laid_out",
    "not_drafted",
    "note",
    "patience",
    "show_progress",
    "silent_keys",
    "stats_line",
    "stderr_is_terminal",
    "stdout_is_terminal",
    "verbose_lines",
    "visible",
    "wants_colour",
    "write",
    "write_json",
]

_ENOUGH = 4  # tokens; the first comes with the prompt, and the speed of one or two is noise
_SAYS_SOMETHING = 16  # tokens; a speed-up measured on fewer is noise
_SHORT_PROMPT = 256  # tokens; read before anyone would want to see progress


_SYMBOLS = {code: 0x2400 + code for code in range(32) if chr(code) not in "\n\t"} | {0x7F: 0x2421}
_SYMBOLS |= dict.fromkeys(range(0x80, 0xA0), 0xFFFD)
_SYMBOLS |= dict.fromkeys([*range(0x202A, 0x202F), *range(0x2066, 0x206A)], 0xFFFD)  # they reverse text


def visible(text: str) -> str:
    """Text with control characters shown as symbols, except line ends and tabs."""
    return text.translate(_SYMBOLS)


def write(text: str, *, styled: bool = False) -> None:
    """Prints a piece of a result at once. styled: its only escape sequences are our own."""
    sys.stdout.write(text if styled or not stdout_is_terminal() else visible(text))
    sys.stdout.flush()


def write_json(value: Any) -> None:
    """Prints a whole result as one JSON object on one line."""
    write(json.dumps(value, ensure_ascii=False) + "\n")


def note(text: str, *, styled: bool = False) -> None:
    """Prints a line for the user that is not part of the result. styled: as for `write`, and laid out."""
    click.echo(text if styled or not stderr_is_terminal() else laid_out(visible(text)), err=True)


def laid_out(text: str, indent: int = 0) -> str:
    """Text for a terminal, long lines broken between words. What is in backticks stays whole, to be copied.
    indent: of what goes on
    """
    width = shutil.get_terminal_size().columns
    return "\n".join(_broken(line, width, indent) for line in text.split("\n"))


def _broken(line: str, width: int, indent: int) -> str:
    out, column = "", 0
    for blanks, word in re.findall(r"(\s*)((?:`[^`]*`|\S)+)", line):
        if column + len(blanks) + len(word) > width and column > 0 and len(word) <= width - indent:
            blanks = "\n" + " " * indent
            column = -1
        out += blanks + word
        column += len(blanks) + len(word)
        column = column % width if column > width else column
    return out


class LogFormatter(logging.Formatter):
    """Shows control characters as symbols, because log lines quote models and files."""

    def format(self, record: logging.LogRecord) -> str:
        text = super().format(record)
        return visible(text) if stderr_is_terminal() else text


def stdout_is_terminal() -> bool:
    """Whether stdout is a terminal."""
    return sys.stdout.isatty()


def stderr_is_terminal() -> bool:
    """Whether stderr is a terminal."""
    return sys.stderr.isatty()


def wants_colour() -> bool:
    """Whether a terminal may be written to in colour: it can show it, and neither NO_COLOR nor CLICOLOR=0
    forbids it (no-color.org, bixense.com/clicolors).
    """
    env = os.environ
    return not env.get("NO_COLOR") and env.get("CLICOLOR") != "0" and env.get("TERM") != "dumb"


def stats_line(stats: Timings, *, has_draft: bool, speedup: float | None = None) -> str:
    """One line: tokens, tokens/s, acceptance length, the share of drafted tokens accepted, the plan, and the
    speed-up over plain decoding if known.
    """
    parts = [f"{stats.predicted_n} token{'' if stats.predicted_n == 1 else 's'}"]
    if stats.predicted_n >= _ENOUGH:
        parts.append(f"{stats.predicted_per_second:.1f} tokens/s")
    strategy, why = stats.plan.get("strategy", ""), stats.plan.get("why", "")
    if stats.draft_n:
        parts.append(f"acceptance length {stats.acceptance_length:.2f}")
        parts.append(f"{100 * stats.acceptance_rate:.0f}% of {stats.draft_n} drafted tokens accepted")
        if stats.text_draft_n_accepted:
            parts.append(f"{stats.text_draft_n_accepted} of them from the text")
    elif not has_draft:
        parts.append("no drafter")
    else:
        parts.append("drafting off" if strategy == "off" else not_drafted(why))
    if strategy == "auto" and stats.draft_n and not why.startswith("off"):
        parts.append(f"auto: {why.partition(';')[0].partition(':')[0]}")
    elif strategy == "auto" and stats.draft_n:
        parts.append("auto: mostly without drafts")
    elif stats.draft_n and strategy:
        parts.append(strategy)
    if speedup is not None and stats.predicted_n >= _SAYS_SOMETHING:
        parts.append(f"~{speedup:.2f}x plain")
    return "[ " + " · ".join(parts) + " ]"


def not_drafted(why: str) -> str:
    """Why the planner did not draft, in plain words. why: `Timings.plan["why"]`"""
    if "no room" in why:
        return "not drafted: no room left"
    if "measuring" in why or why in ("", "off"):
        return "not drafted yet: measuring the model's own speed first"
    if "nothing in the text" in why:
        return "not drafted: nothing in the text so far to draft from"
    if "waiting" in why:
        return "not drafted: it did not pay a moment ago, and is tried again soon"
    return "not drafted: plain decoding is faster here"


def verbose_lines(stats: Timings, total_ms: float, load_ms: float, speedup: float | None = None) -> list[str]:
    """Ollama's `--verbose` lines (ollama/ollama: api/types.go), then ours; lines without a value are left
    out.
    """
    rows = [
        ("total duration", _duration(total_ms)),
        ("load duration", _duration(load_ms)),
        ("prompt eval count", f"{stats.prompt_n} token(s)" if stats.prompt_n else ""),
        ("prompt eval duration", _duration(stats.prompt_ms)),
        ("prompt eval rate", f"{stats.prompt_per_second:.2f} tokens/s" if stats.prompt_n else ""),
        ("eval count", f"{stats.predicted_n} token(s)" if stats.predicted_n else ""),
        ("eval duration", _duration(stats.predicted_ms)),
        ("eval rate", f"{stats.predicted_per_second:.2f} tokens/s" if stats.predicted_n >= _ENOUGH else ""),
    ]
    if stats.draft_n:
        rates = ", ".join(f"{rate:.2f}" for rate in stats.accepted_per_depth)
        rows += [
            ("strategy", _plan(stats)),
            ("rounds", str(stats.rounds)),
            ("acceptance length", f"{stats.acceptance_length:.2f} tokens/round"),
            ("drafted", f"{stats.draft_n} token(s), {stats.draft_n_accepted} accepted"),
            ("accepted per depth", rates),
            ("draft duration", _duration(stats.draft_ms)),
            ("verify duration", _duration(stats.verify_ms)),
            ("speed-up", "" if speedup is None else f"~{speedup:.2f}x plain decoding"),
        ]
    return [f"{name + ':':<22}{value}" for name, value in rows if value]


def _plan(stats: Timings) -> str:
    """The strategy that ran and why."""
    why = stats.plan.get("why", "")
    return f"{stats.plan.get('strategy', '')} ({why})" if why else str(stats.plan.get("strategy", ""))


def _duration(ms: float) -> str:
    """Milliseconds as Go prints a duration: 52.1ms, 4.1s, 1m2.5s; empty for none."""
    if ms <= 0:
        return ""
    if ms < 1000:
        return f"{ms:.6f}".rstrip("0").rstrip(".") + "ms"
    minutes, seconds = divmod(ms / 1000, 60)
    text = f"{seconds:.9f}".rstrip("0").rstrip(".") + "s"
    hours, minutes = divmod(int(minutes), 60)
    return (f"{hours}h" if hours else "") + (f"{minutes}m" if hours or minutes else "") + text


@contextlib.contextmanager
def silent_keys(*, by_key: bool = False) -> Iterator[None]:
    """Inside the block the terminal does not echo what is typed, because that would appear in the middle of
    an answer. What was typed is kept for the next prompt.

    by_key: kept as keys instead of lines: the driver drops what is beyond 4 KB of a line, and reads Enter as
    a line feed.
    """
    try:
        import termios

        descriptor = sys.stdin.fileno()
        before = termios.tcgetattr(descriptor)
    except (ImportError, OSError, ValueError, AttributeError):  # no terminal, or none of this kind
        yield
        return
    except termios.error:
        yield
        return
    # NOFLSH: otherwise Ctrl+C makes the terminal's driver discard output that is not drawn yet
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
    """What the user sees of a generation: progress while the prompt is read, and Ctrl+C as a request to stop.

    After Ctrl+C the round in progress is finished, so that none of its tokens is lost; a second one
    interrupts at once. `requested` says whether it was pressed.
    """

    def __init__(self) -> None:
        self.requested = False
        self._drawn = False

    def on_prefill(self, n_done: int, n_prompt: int) -> None:
        """For `Session.stream`: draws progress on a terminal, and lets Ctrl+C through between two slices."""
        if self.requested:
            raise KeyboardInterrupt
        if n_prompt > _SHORT_PROMPT and stderr_is_terminal():
            self._drawn = True
            show_progress(f"reading the prompt: {n_done}/{n_prompt}")

    def clear(self) -> None:
        """Clears the progress line, before anything else is printed."""
        if self._drawn:
            self._drawn = False
            show_progress("")

    @contextlib.contextmanager
    def listening(self) -> Iterator[Watch]:
        """Handles SIGINT inside the block. Only possible on the main thread; on others nothing changes."""
        if threading.current_thread() is not threading.main_thread():
            yield self
            return
        previous = signal.signal(signal.SIGINT, self._handle)
        try:
            yield self
        finally:
            signal.signal(signal.SIGINT, previous)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self.requested:
            raise KeyboardInterrupt
        self.requested = True


@contextlib.contextmanager
def patience(seconds: float, text: str) -> Iterator[None]:
    """Shows the text while the block takes long, on a terminal."""
    if not stderr_is_terminal():
        yield
        return
    waiting = threading.Timer(seconds, show_progress, [text])
    waiting.daemon = True
    waiting.start()
    try:
        yield
    finally:
        waiting.cancel()
        waiting.join()
        show_progress("")


def show_progress(text: str) -> None:
    """One line on stderr that the next one replaces; "" clears it. Only if stderr is a terminal."""
    if stderr_is_terminal():
        click.echo(f"\r\x1b[K{text}", nl=False, err=True)
