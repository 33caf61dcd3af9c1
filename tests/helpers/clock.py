# SPDX-License-Identifier: MIT
"""Replaces time in tests: a fake clock for one module, and a number of steps."""

from __future__ import annotations

import time
from collections.abc import Callable
from itertools import count
from types import SimpleNamespace
from typing import Any

import pytest


def set_clock(monkeypatch: pytest.MonkeyPatch, module: str, **functions: Callable[..., Any]) -> None:
    """Replaces the name `time` in `module` by an object with these functions.

    Patching `module.time.monotonic` would change the clock of the whole process: an event loop in another
    thread could then wait for hours.
    """
    monkeypatch.setattr(f"{module}.time", SimpleNamespace(**(vars(time) | functions)))


def n_times(n: int) -> Callable[[], bool]:
    """Returns a function that is true n times, to end a measurement after n steps."""
    numbers = count()
    return lambda: next(numbers) < n
