# SPDX-License-Identifier: MIT
"""The progress bar of long operations, on stderr.

Bars and steps are drawn only on a terminal and in a notebook, and not if HF_HUB_DISABLE_PROGRESS_BARS is set.
"""

from __future__ import annotations

import os
import shutil
import sys
from contextlib import AbstractContextManager
from typing import Any

from eaglecpp.human import human_bytes, visible
from eaglecpp.store.errors import Status

_LAYOUT = "{desc}: {percentage:3.0f}%|{bar}| {remaining} left{postfix}"
_SMALL = 4 << 20
"""Bytes below which a download gets no bar, because the download ends before a user could read the bar."""


def bars_are_shown() -> bool:
    """Returns whether stderr is a terminal or a notebook's output, and bars are not disabled."""
    disabled = os.environ.get("HF_HUB_DISABLE_PROGRESS_BARS", "").upper() in ("1", "ON", "YES", "TRUE")
    return (sys.stderr.isatty() or "ipykernel" in sys.modules) and not disabled


def new_bar(label: str, total: int, **options: Any) -> Any:
    """Returns a tqdm bar, which the caller must close. label: text that is shortened in the middle if it is
    long.
    """
    from tqdm.auto import tqdm

    # The label is shortened to the columns that are left for it.
    label, room = visible(label), min(max(shutil.get_terminal_size().columns - 50, 12), 48)
    short = label if len(label) <= room else f"{label[: room // 2]}…{label[1 - room // 2 :]}"
    return tqdm(total=total, desc=short, dynamic_ncols=True, **options)


class Bars(AbstractContextManager["Bars", None]):
    """A `Report` for the operations of `eaglecpp.store`. The caller must close it, or use it as a context
    manager.
    """

    def __init__(self) -> None:
        self._shown = bars_are_shown()
        self._bar: Any = None
        self._subject = ""

    def __exit__(self, *error: object) -> None:
        self._close()

    def __call__(self, status: Status) -> None:
        """Draws the progress of one step."""
        if not self._shown or 0 < status.total < _SMALL:
            return
        subject = f"{status.status} {status.file}".strip()
        if subject != self._subject:
            self._close()
            self._subject = subject
            if status.total:
                self._bar = new_bar(subject, status.total, initial=status.completed, bar_format=_LAYOUT)
            else:
                sys.stderr.write(f"{visible(subject)}\n")
        if self._bar is not None:
            done, whole, speed = status.completed, status.total, self._bar.format_dict["rate"]
            sizes = f"{human_bytes(done)} of {human_bytes(whole)}, {human_bytes(speed)}/s"
            self._bar.set_postfix_str(sizes, refresh=False)
            self._bar.update(done - self._bar.n)
            if status.completed >= status.total:
                self._close()

    def _close(self) -> None:
        if self._bar is not None:
            self._bar.close()
            self._bar = None
