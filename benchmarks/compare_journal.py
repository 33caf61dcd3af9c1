# SPDX-License-Identifier: MIT
"""The runs of `compare.py` on one target, on disk after every prompt, so that a killed run can go on.

A file holds what the runs were measured on (`facts`), the settings that must not change for a run to go on
(`identity`), and the runs. It is written under a temporary name and renamed.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from common import resumed, write_whole
from compare_stats import Cell, Run

__all__ = ["Journal"]


class Journal:
    """The runs on one target, on disk after every prompt."""

    def __init__(self, path: Path, identity: dict[str, Any], about: dict[str, Any], resume: bool) -> None:
        """Raises `SystemExit` when the file is there and is not to be, or cannot be, gone on with."""
        before = resumed(path, identity, resume)
        self.path, self.runs = path, [Run(**run) for run in before.get("runs", [])]
        self.document = {"identity": identity, **about}
        if before:
            self.document["commits_before"] = [*before.get("commits_before", []), before["commit"]]

    def has(self, cell: Cell, prompt: int) -> bool:
        return any(run.cell == cell and run.prompt == prompt for run in self.runs)

    def add(self, runs: Sequence[Run]) -> None:
        self.runs += runs
        write_whole(self.path, self.document | {"runs": [dataclasses.asdict(run) for run in self.runs]})
