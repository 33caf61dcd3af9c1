# SPDX-License-Identifier: MIT
"""`Learning`: what a target's drafters may learn from, and those that learnt, in the user's own folder.

Nothing is kept unless the option `learn` asks for it, and nothing is ever sent anywhere. A record is the
tokens of an answer behind those of its prompt: readable to whoever can read the user's files, like saved
conversations. One file for each, named by the hash of the tokens: 32-bit numbers, first how many the prompt
has.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import os
import shutil
import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from eaglecpp.data_dir import data_dir
from eaglecpp.errors import DataError
from eaglecpp.files import fingerprint, make_private, read_json, replace_bytes, replaced
from eaglecpp.human import counted, human_bytes

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

MAX_BYTES, MAX_FILES = 512 << 20, 50_000
"""Of a target's records, in blocks of the disk; the oldest go first."""
MIN_ANSWER = 2
"""Tokens. Training has no use for shorter answers."""
_BLOCK_BYTES = 4096
_KEEPS_PER_SCAN = 1000  # other processes may write to the same folder
LEAST_TEXTS = 24
"""Fewer tell nothing about what they have in common."""
_ENDING = ".tokens"
_log = logging.getLogger("eaglecpp.learning")
_writer = ThreadPoolExecutor(1, "eaglecpp-records")  # the program ends after its last record
_keeping = threading.Lock()


@dataclass
class _Memory:
    """What the last scan of the records found, so that not every answer and look needs one.

    n_keeps: until the next scan; seen: when records were last added and tried, at the scan for news
    """

    n_keeps: int = 0
    n_files: int = 0
    n_bytes: int = 0
    seen: tuple[int, int] = (-1, -1)
    has_news: bool = False


@dataclass(frozen=True)
class Learning:
    """The folder of one target, by its content; it need not exist.

    answers: the records; work: of a training under way
    """

    folder: Path
    _reported: set[int | None] = field(default_factory=set, init=False, repr=False, compare=False)
    _memory: _Memory = field(default_factory=lambda: _Memory(), init=False, repr=False, compare=False)

    @classmethod
    def of(cls, target: Path) -> Self:
        """Of a target's file."""
        learning = cls(data_dir() / "learning" / fingerprint(target))
        if learning.folder.is_dir():
            with contextlib.suppress(OSError):  # of another user
                make_private(learning.folder)  # earlier versions left it readable
        return learning

    @property
    def answers(self) -> Path:
        return self.folder / "answers"

    @property
    def work(self) -> Path:
        return self.folder / "work"

    def records(self) -> list[Path]:
        """The files of all records, the oldest first; those that wait to be written included."""
        self.flush()
        return [path for _, _, path in self._entries()]

    def _entries(self) -> list[tuple[int, int, Path]]:
        """Returns when each record was written, its size on the disk, and its file; the oldest first."""
        found = []
        with contextlib.suppress(FileNotFoundError), os.scandir(self.answers) as entries:
            for entry in entries:
                if entry.name.endswith(_ENDING):
                    with contextlib.suppress(FileNotFoundError):  # removed meanwhile
                        stat = entry.stat()
                        size = -(-stat.st_size // _BLOCK_BYTES) * _BLOCK_BYTES
                        found.append((stat.st_mtime_ns, size, Path(entry.path)))
        return sorted(found)

    def keep_later(self, prompt: Sequence[int], answer: Sequence[int]) -> None:
        """As `keep`, in a thread of its own: no engine waits for the disk. `flush` waits for it."""
        import numpy as np

        tokens, n_prompt = np.array([*prompt, *answer], np.int32), len(prompt)
        try:
            _writer.submit(self.keep, tokens, n_prompt)
        except RuntimeError:  # the program ends
            self.keep(tokens, n_prompt)

    @staticmethod
    def flush() -> None:
        """Waits until everything is written that `keep_later` was given."""
        with contextlib.suppress(RuntimeError):  # the program ends: nothing is pending
            _writer.submit(int).result()

    def keep(self, tokens: NDArray[np.int32], n_prompt: int, max_bytes: int = MAX_BYTES) -> None:
        """Adds a record, and drops the oldest where all have more than max_bytes or are more than MAX_FILES.
        Never raises: no answer fails because it cannot be learnt from; the log says so once, not for every
        answer on a full disk. Ignores answers of fewer than MIN_ANSWER tokens.

        tokens: i32 [S], prompt and answer; n_prompt: of the prompt
        """
        import numpy as np

        if len(tokens) - n_prompt < MIN_ANSWER:
            return
        data = np.array([n_prompt, *tokens], "<i4").tobytes()
        name = hashlib.sha256(data[4:]).hexdigest()[:32] + _ENDING
        try:
            with _keeping:
                make_private(self.folder)
                make_private(self.answers)
                replace_bytes(self.answers / name, data, mode=0o600)
                self._drop_oldest(max_bytes, len(data))
            self._reported.clear()
        except OSError as error:
            if error.errno not in self._reported:
                _log.warning("answers are not kept for learning: %s", error)
            self._reported.add(error.errno)

    def _drop_oldest(self, max_bytes: int, n_added: int) -> None:
        """Drops the oldest records if there are too many, down to nine tenths of what is allowed."""
        memory = self._memory
        memory.n_keeps -= 1
        memory.seen = -1, -1
        memory.n_files += 1
        memory.n_bytes += -(-n_added // _BLOCK_BYTES) * _BLOCK_BYTES
        if memory.n_keeps > 0 and memory.n_bytes <= max_bytes and memory.n_files <= MAX_FILES:
            return
        entries = self._entries()
        memory.n_keeps, memory.n_files = _KEEPS_PER_SCAN, len(entries)
        memory.n_bytes = sum(size for _, size, _ in entries)
        if memory.n_bytes <= max_bytes and memory.n_files <= MAX_FILES:
            return
        for _, size, path in entries:
            if memory.n_bytes <= 0.9 * max_bytes and memory.n_files <= 0.9 * MAX_FILES:
                return
            path.unlink(missing_ok=True)
            memory.n_bytes -= size
            memory.n_files -= 1

    def has_news(self, failed: int = 0) -> bool:
        """Returns whether enough came since the last training to try another one, or one was begun.

        failed: when a training last failed, in nanoseconds since 1970; 0 = never
        """
        if not failed and (self.work / "texts.json").exists():
            return True
        tried = self.folder / "tried"
        since = max(failed, tried.stat().st_mtime_ns if tried.exists() else 0)
        seen = self.answers.stat().st_mtime_ns if self.answers.exists() else 0, since
        if seen != self._memory.seen:
            n_new = sum(written > since for written, _, _ in self._entries())
            self._memory.seen, self._memory.has_news = seen, n_new >= LEAST_TEXTS
        return self._memory.has_news

    def note_tried(self) -> None:
        """A training came to its end, whatever came of it."""
        if self.folder.is_dir():
            replace_bytes(self.folder / "tried", b"", mode=0o600)

    def forget(self) -> int:
        """Deletes all records and whatever a training made of them, but for drafters in use; returns how many
        records there were.
        """
        n = len(self.records())
        with _keeping:
            for folder in (self.answers, self.work):
                shutil.rmtree(folder, ignore_errors=True)
        return n

    def drafter(self, stock: Path) -> Path | None:
        """The drafter in use that learnt, beginning with `stock`; None where none did."""
        record = self._record(stock)
        return self._drafters / record["file"] if record else None

    def facts(self, stock: Path) -> dict[str, Any] | None:
        """How that drafter came to be; None where there is none."""
        record = self._record(stock)
        return {k: v for k, v in record.items() if k != "file"} if record else None

    def status(self, stock: Path) -> dict[str, Any]:
        """What is kept and what came of it, as plain values."""
        self.flush()
        entries = self._entries()
        return {
            "records": len(entries),
            "bytes": sum(size for _, size, _ in entries),
            "folder": str(self.folder),
            "drafter": self.facts(stock),
        }

    def rows(self, stock: Path) -> list[tuple[str, str]]:
        """The same in words; nothing where nothing is kept and nothing was learnt."""
        facts = self.status(stock)
        made, rows = facts["drafter"], []
        if facts["records"]:
            size = human_bytes(facts["bytes"])
            rows.append(("kept", f"{counted(facts['records'], 'answer')}, {size}, in {facts['folder']}"))
        if made is not None:
            own, other = (
                f"{made[name]['before']:.2f} -> {made[name]['after']:.2f}" for name in ("user", "general")
            )
            rows.append(("learnt", f"{made['made']}, from {made['n_texts']} of your texts"))
            rows.append(("acceptance length", f"{own} on your texts, {other} on others"))
        return rows

    def use(self, made: Path, stock: Path, facts: Mapping[str, Any]) -> None:
        """Puts a new drafter in place of the one in use. Raises OSError, and leaves the old one in use.

        The new file gets a name of its own first. The record, which names the drafter in use, is then
        replaced in one step, so that a kill leaves the old one or the new one in use.
        """
        make_private(self.folder)
        now, name = self._record(stock).get("file"), fingerprint(stock)
        file = f"{name}.1.gguf" if now == f"{name}.0.gguf" else f"{name}.0.gguf"
        with replaced(self._drafters / file, mode=0o600) as temporary:
            shutil.copyfile(made, temporary)
        record = json.dumps({**facts, "file": file}, indent=1) + "\n"
        replace_bytes(self._record_file(stock), record.encode(), mode=0o600)
        self._drop(now)

    def undo(self, stock: Path) -> bool:
        """Goes back to `stock`; False where that one is in use."""
        record = self._record(stock)
        if record:
            self._record_file(stock).unlink()
            self._drop(record["file"])
        return bool(record)

    @property
    def _drafters(self) -> Path:
        return self.folder / "drafters"

    def _record_file(self, stock: Path) -> Path:
        return self._drafters / f"{fingerprint(stock)}.json"

    def _record(self, stock: Path) -> dict[str, Any]:
        """The facts of the drafter in use, and its `file`; empty = `stock` is."""
        try:
            record: dict[str, Any] = read_json(self._record_file(stock))
            return record if (self._drafters / record["file"]).is_file() else {}
        except (OSError, ValueError, LookupError, TypeError):
            return {}

    def _drop(self, file: str | None) -> None:
        """Deletes a drafter that no record names; what cannot be deleted is written over later."""
        if file:
            with contextlib.suppress(OSError):
                (self._drafters / file).unlink()


def read_record(path: Path) -> tuple[NDArray[np.int32], int]:
    """Tokens i32 [S] of prompt and answer, and how many are the prompt's. Raises DataError."""
    import numpy as np

    with contextlib.suppress(OSError, ValueError):
        found = np.frombuffer(path.read_bytes(), "<i4")
        if len(found) and 0 <= found[0] < len(found) and found.min() >= 0:
            return found[1:].astype(np.int32), int(found[0])
    raise DataError(f"{path}: expected the tokens of an answer, found something else; delete the file")
