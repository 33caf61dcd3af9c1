# SPDX-License-Identifier: MIT
"""Tables and times as Ollama prints them (ollama/ollama: cmd/cmd.go, format/).

On a terminal a line that is too long goes on under its last column.
"""

from __future__ import annotations

import math
import shutil
from collections.abc import Sequence
from datetime import UTC, datetime

from eaglecpp.cli.terminal import fitted, stdout_is_terminal
from eaglecpp.human import counted

_GAP = "    "
_UNITS = [(1, "second"), (60, "minute"), (3600, "hour"), (86400, "day"), (604800, "week"), (2592000, "month")]
_NARROWEST = 24  # a last column with less room than this goes on at the left instead


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Columns four blanks apart, two on a terminal that is too narrow for that; the header in capitals. Ends
    with a newline.
    """
    return _columns([header, *rows])


def section(title: str, rows: Sequence[Sequence[str]]) -> str:
    """A titled block of `show`, with an empty line after it."""
    return f"  {title}\n{_columns([['', *row] for row in rows])}\n"


def labelled(rows: Sequence[tuple[str, str]]) -> str:
    """Facts, each behind its label; ends with a newline."""
    return "".join(f"{_broken(f'{label:<18}{text}', 18)}\n" for label, text in rows)


def help_table(title: str, rows: Sequence[tuple[str, str]]) -> str:
    """A titled list of things and what they do; ends without a newline."""
    width = max(len(left) for left, _ in rows) + 2
    return "\n".join([title, *(_broken(f"  {left:<{width}}{right}", 2 + width) for left, right in rows)])


def human_time(when: datetime, now: datetime | None = None) -> str:
    """3 days ago."""
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
    return "".join(f"{_broken(line, last)}\n" for line in lines)


def _broken(line: str, last: int) -> str:
    """A line as a terminal shows it. last: where its last column begins"""
    has_room = shutil.get_terminal_size().columns - last >= _NARROWEST
    return fitted(line, last if has_room else len(_GAP))
