# SPDX-License-Identifier: MIT
"""Type of the fixture `models` (tests/conftest.py)."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Models:
    """GGUF files of a tiny target and of a drafter that is right about half the time."""

    target: Path
    draft: Path
