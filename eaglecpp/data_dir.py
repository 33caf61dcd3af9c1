# SPDX-License-Identifier: MIT
"""Where eaglecpp keeps what belongs to its user: conversations, the input history.

`EAGLECPP_HOME`, or the platform's place for data of programs. Makes nothing.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

__all__ = ["data_dir"]


def data_dir() -> Path:
    """The folder, whether it exists or not."""
    override = os.environ.get("EAGLECPP_HOME")
    if override:
        return Path(override).expanduser()
    if sys.platform == "win32":
        return Path(os.environ.get("LOCALAPPDATA") or Path.home() / "AppData" / "Local") / "eaglecpp"
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Application Support" / "eaglecpp"
    xdg = Path(os.environ.get("XDG_DATA_HOME", ""))
    return (xdg if xdg.is_absolute() else Path.home() / ".local" / "share") / "eaglecpp"
