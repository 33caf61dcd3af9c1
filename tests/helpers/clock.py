# SPDX-License-Identifier: MIT
"""A clock of its own for one module."""

from __future__ import annotations

import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest


def set_clock(monkeypatch: pytest.MonkeyPatch, module: str, **functions: Callable[..., Any]) -> None:
    """Gives `module` a `time` with these functions in it.

    Patching `module.time.monotonic` would change the clock of the whole process: an event loop in another
    thread that looks at it meanwhile may wait for hours.
    """
    monkeypatch.setattr(f"{module}.time", SimpleNamespace(**(vars(time) | functions)))
