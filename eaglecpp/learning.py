# SPDX-License-Identifier: MIT
"""`Learning`: what a target's drafters may learn from, and those that learnt, in the user's own folder.

Nothing is kept unless the option `learn` asks for it, and nothing is ever sent anywhere. A record is a text,
prompt included, and what verification said of its drafts (`eaglecpp.rounds`): readable to whoever can read
the user's files, like saved conversations. `eaglecpp.train.learn` trains on them.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from eaglecpp.data_dir import data_dir
from eaglecpp.files import fingerprint, replace_bytes
from eaglecpp.human import human_bytes

if TYPE_CHECKING:
    from eaglecpp.rounds import Rounds

__all__ = ["LEAST_TEXTS", "MAX_BYTES", "Learning"]

MAX_BYTES = 512 << 20
"""Of a target's records; the oldest go first."""
LEAST_TEXTS = 24
"""Fewer tell nothing about what they have in common."""
_log = logging.getLogger("eaglecpp.learning")


@dataclass(frozen=True)
class Learning:
    """The folder of one target, by its content; it need not exist.

    rounds: the records; work: of a training under way
    """

    folder: Path

    @classmethod
    def of(cls, target: Path) -> Self:
        """Of a target's file."""
        return cls(data_dir() / "learning" / fingerprint(target))

    @property
    def rounds(self) -> Path:
        return self.folder / "rounds"

    @property
    def work(self) -> Path:
        return self.folder / "work"

    def records(self) -> list[Path]:
        """The files of all records, the oldest first."""
        found = []
        with contextlib.suppress(FileNotFoundError), os.scandir(self.rounds) as entries:
            found = [(e.stat().st_mtime_ns, e.path) for e in entries if e.name.endswith(".npz")]
        return [Path(path) for _, path in sorted(found)]

    def n_bytes(self) -> int:
        """Of all records."""
        return sum(path.stat().st_size for path in self.records())

    def keep(self, rounds: Rounds, n_most: int = MAX_BYTES) -> None:
        """Adds a record and drops the oldest beyond n_most bytes. Never raises: no answer fails because it
        cannot be learnt from; the log says so.
        """
        try:
            self.rounds.mkdir(parents=True, exist_ok=True, mode=0o700)
            rounds.write(self.rounds)
            records = self.records()
            n_over = sum(path.stat().st_size for path in records) - n_most
            for path in records:
                if n_over <= 0:
                    break
                n_over -= path.stat().st_size
                path.unlink()
        except OSError as error:
            _log.warning("an answer was not kept for learning: %s", error)

    def has_news(self) -> bool:
        """Whether enough came since the last training to try another one, or one was begun."""
        if (self.work / "texts.json").exists():
            return True
        tried = self.folder / "tried"
        since = tried.stat().st_mtime_ns if tried.exists() else 0
        return sum(path.stat().st_mtime_ns > since for path in self.records()) >= LEAST_TEXTS

    def note_tried(self) -> None:
        """A training came to its end, whatever came of it."""
        if self.folder.is_dir():
            (self.folder / "tried").write_bytes(b"")

    def forget(self) -> int:
        """Deletes all records and whatever a training made of them, but for drafters in use; returns how many
        records there were.
        """
        n = len(self.records())
        for folder in (self.rounds, self.work):
            shutil.rmtree(folder, ignore_errors=True)
        return n

    def drafter(self, stock: Path) -> Path:
        """Where the drafter is that learnt, beginning with `stock`; it may not exist."""
        return self.folder / "drafters" / f"{fingerprint(stock)}.gguf"

    def facts(self, stock: Path) -> dict[str, Any] | None:
        """How that drafter came to be; None where there is none."""
        try:
            found: dict[str, Any] = json.loads(self.drafter(stock).with_suffix(".json").read_bytes())
        except (OSError, ValueError):
            return None
        return found if self.drafter(stock).is_file() else None

    def status(self, stock: Path) -> dict[str, Any]:
        """What is kept and what came of it, as plain values."""
        return {
            "records": len(self.records()),
            "bytes": self.n_bytes(),
            "folder": str(self.folder),
            "drafter": self.facts(stock),
        }

    def rows(self, stock: Path) -> list[tuple[str, str]]:
        """The same in words; nothing where nothing is kept and nothing was learnt."""
        facts = self.status(stock)
        made, rows = facts["drafter"], []
        if facts["records"]:
            size = human_bytes(facts["bytes"])
            rows.append(("kept", f"{facts['records']} answers, {size}, in {facts['folder']}"))
        if made is not None:
            own, other = (
                f"{made[name]['before']:.2f} -> {made[name]['after']:.2f}" for name in ("user", "general")
            )
            rows.append(("learnt", f"{made['made']}, from {made['n_texts']} of your texts"))
            rows.append(("acceptance length", f"{own} on your texts, {other} on others"))
        return rows

    def use(self, made: Path, stock: Path, facts: Mapping[str, Any]) -> None:
        """Puts a new drafter in place of the one in use, which `undo` brings back."""
        place = self.drafter(stock)
        place.parent.mkdir(parents=True, exist_ok=True)
        for suffix in (".gguf", ".json"):
            before = place.with_suffix(f".before{suffix}")
            before.unlink(missing_ok=True)
            if place.with_suffix(suffix).exists():
                place.with_suffix(suffix).rename(before)
        replace_bytes(place.with_suffix(".json"), (json.dumps(facts, indent=1) + "\n").encode())
        shutil.copyfile(made, place.with_suffix(".new"))
        place.with_suffix(".new").rename(place)

    def undo(self, stock: Path) -> bool:
        """Goes back to the drafter before, which may be `stock`; False where that one is in use."""
        place = self.drafter(stock)
        if not place.exists():
            return False
        for suffix in (".gguf", ".json"):
            before = place.with_suffix(f".before{suffix}")
            if before.exists():
                before.replace(place.with_suffix(suffix))
            else:
                place.with_suffix(suffix).unlink(missing_ok=True)
        return True
