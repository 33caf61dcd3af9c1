# SPDX-License-Identifier: MIT
"""The runs of `compare.py` on one target, on disk after every prompt, so that a killed run can go on.

A file holds what the runs were measured on (`facts`), the settings that must not change for a run to go on
(`identity`), and the runs. It is written under a temporary name and renamed.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from compare_stats import Cell, Run

__all__ = ["Journal"]


class Journal:
    """The runs on one target, on disk after every prompt."""

    def __init__(self, path: Path, identity: dict[str, Any], about: dict[str, Any], resume: bool) -> None:
        """Raises `SystemExit` when the file is there and is not to be, or cannot be, gone on with."""
        self.path, self.runs = path, list[Run]()
        self.document = {"identity": identity, **about}
        if not path.exists():
            return
        if not resume:
            raise SystemExit(f"{path} exists: go on with it (--resume), or choose another --out")
        try:
            before = json.loads(path.read_text(encoding="utf-8"))
            self.runs = [Run(**run) for run in before["runs"]]
            differing = [key for key in identity if before["identity"].get(key) != identity[key]]
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise SystemExit(f"{path}: not a result of this script: {error!r}") from None
        if differing:
            key = differing[0]
            was, now = before["identity"].get(key), identity[key]
            raise SystemExit(f"{path}: {key} was {was!r} and is {now!r}: resume with the same settings")
        self.document["commits_before"] = [*before.get("commits_before", []), before["commit"]]

    def has(self, cell: Cell, prompt: int) -> bool:
        return any(run.cell == cell and run.prompt == prompt for run in self.runs)

    def add(self, runs: Sequence[Run]) -> None:
        self.runs += runs
        document = self.document | {"runs": [dataclasses.asdict(run) for run in self.runs]}
        partial = self.path.with_name(self.path.name + ".part")
        partial.write_text(json.dumps(document, indent=1, default=str) + "\n", encoding="utf-8")
        partial.replace(self.path)
