# SPDX-License-Identifier: MIT
"""What users see of long operations: the one progress bar, on stderr.

Bars and steps are drawn on a terminal only, and not when HF_HUB_DISABLE_PROGRESS_BARS is set.
"""

from __future__ import annotations

import os
from types import TracebackType
from typing import Any, Self

from eaglecpp.cli.terminal import note, stderr_is_terminal, visible
from eaglecpp.store.errors import Status

__all__ = ["Bars", "bars_are_shown", "new_bar"]

_SMALL = 4 << 20
"""Bytes that are done before anyone could read a bar."""


def bars_are_shown() -> bool:
    """Whether stderr is a terminal and bars are not disabled."""
    disabled = os.environ.get("HF_HUB_DISABLE_PROGRESS_BARS", "").upper() in ("1", "ON", "YES", "TRUE")
    return stderr_is_terminal() and not disabled


def new_bar(label: str, total: int, **options: Any) -> Any:
    """A tqdm bar, to be closed by the caller. label: shortened in the middle if it is long."""
    from tqdm import tqdm

    label = visible(label)
    short = label if len(label) <= 48 else f"{label[:24]}…{label[-23:]}"
    return tqdm(total=total, desc=short, dynamic_ncols=True, **options)


class Bars:
    """A `Report` for the operations of `eaglecpp.store`; close it, or use it as a context manager."""

    def __init__(self) -> None:
        self._shown = bars_are_shown()
        self._bar: Any = None
        self._subject = ("", "")
        self._status = ""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._close()

    def __call__(self, status: Status) -> None:
        """Draws one step."""
        if not self._shown or 0 < status.total < _SMALL:
            return
        if not status.total:
            self._close()
            if status.status != self._status:
                note(status.status)
            self._status = status.status
            return
        self._draw(status)

    def _draw(self, status: Status) -> None:
        subject = (status.status, status.file)
        if subject != self._subject:
            self._close()
            self._subject = subject
            label = f"{status.status} {status.file}".strip()
            self._bar = new_bar(label, status.total, initial=status.completed, unit="B", unit_scale=True)
        if self._bar is not None:
            self._bar.update(status.completed - self._bar.n)
            if status.completed >= status.total:
                self._close(keep_subject=True)

    def _close(self, *, keep_subject: bool = False) -> None:
        if self._bar is not None:
            self._bar.close()
            self._bar = None
        if not keep_subject:
            self._subject = ("", "")
