# SPDX-License-Identifier: MIT
"""What users see of long operations: the one progress bar, on stderr.

Bars and steps are drawn on a terminal and in a notebook only, and not when HF_HUB_DISABLE_PROGRESS_BARS is
set.
"""

from __future__ import annotations

import os
import sys
from typing import Any, Self

from eaglecpp.human import visible
from eaglecpp.store.errors import Status

_SMALL = 4 << 20
"""Bytes that are done before anyone could read a bar."""


def bars_are_shown() -> bool:
    """Whether stderr is a terminal, or the output of a notebook, and bars are not disabled."""
    disabled = os.environ.get("HF_HUB_DISABLE_PROGRESS_BARS", "").upper() in ("1", "ON", "YES", "TRUE")
    return (sys.stderr.isatty() or "ipykernel" in sys.modules) and not disabled


def new_bar(label: str, total: int, **options: Any) -> Any:
    """A tqdm bar, to be closed by the caller. label: shortened in the middle if it is long."""
    from tqdm.auto import tqdm

    label = visible(label)
    short = label if len(label) <= 48 else f"{label[:24]}…{label[-23:]}"
    return tqdm(total=total, desc=short, dynamic_ncols=True, **options)


class Bars:
    """A `Report` for the operations of `eaglecpp.store`; close it, or use it as a context manager."""

    def __init__(self) -> None:
        self._shown = bars_are_shown()
        self._bar: Any = None
        self._subject = ""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._close()

    def __call__(self, status: Status) -> None:
        """Draws one step."""
        if not self._shown or 0 < status.total < _SMALL:
            return
        subject = f"{status.status} {status.file}".strip()
        if subject != self._subject:
            self._close()
            self._subject = subject
            if status.total:
                done = {"initial": status.completed, "unit": "B", "unit_scale": True}
                self._bar = new_bar(subject, status.total, **done)
            else:
                from tqdm import tqdm

                tqdm.write(visible(subject), file=sys.stderr)
        if self._bar is not None:
            self._bar.update(status.completed - self._bar.n)
            if status.completed >= status.total:
                self._close()

    def _close(self) -> None:
        if self._bar is not None:
            self._bar.close()
            self._bar = None
