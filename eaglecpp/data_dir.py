# SPDX-License-Identifier: MIT
"""Where eaglecpp keeps its user's data: models, conversations, the input history, what the planner
learned.

`EAGLECPP_HOME`, or the platform's folder for application data, which platformdirs knows. Creates nothing.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

__all__ = ["data_dir"]


def data_dir() -> Path:
    """The folder, whether it exists or not; one that an earlier release made elsewhere is used on."""
    override = os.environ.get("EAGLECPP_HOME")
    if override:
        return Path(override).expanduser()
    from platformdirs import user_data_path

    usual, former = user_data_path("eaglecpp", appauthor=False), _former()
    return former if former is not None and former.is_dir() and not usual.is_dir() else usual


def _former() -> Path | None:
    """Where releases up to 0.1 kept it, which knew no XDG_DATA_HOME on a Mac and asked the environment on
    Windows; None where that cannot differ.
    """
    if sys.platform == "win32":
        local = os.environ.get("LOCALAPPDATA")
        return Path(local) / "eaglecpp" if local else None
    return Path.home() / "Library" / "Application Support" / "eaglecpp" if sys.platform == "darwin" else None
