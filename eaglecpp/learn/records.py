# SPDX-License-Identifier: MIT
"""`Learning`: recorded answers and trained drafters of a target, in the user's data folder.

Answers are recorded only with the option `learn`, and are never sent anywhere. A record has the tokens of a
prompt and its answer. Like saved conversations, records can be read by anyone who can read the user's files.
Each record is a file named by the hash of its tokens. The file contains 32-bit integers: the number of prompt
tokens, then the tokens.
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
"""Limits of a target's records, in disk blocks and files; the oldest are deleted first."""
MIN_ANSWER = 2
"""Tokens. Shorter answers are useless for training."""
_BLOCK_BYTES = 4096
# Number of new records after which the folder is scanned again. Other processes may also write to the folder.
_KEEPS_PER_SCAN = 1000
LEAST_TEXTS = 24
"""Minimum number of texts to train on."""
_ENDING = ".tokens"
_log = logging.getLogger("eaglecpp.learning")
_writer = ThreadPoolExecutor(1, "eaglecpp-records")  # the interpreter waits for this thread at exit
_keeping = threading.Lock()


@dataclass
class _Memory:
    """Cached result of the last scan of the records, so that not every answer needs a scan.

    n_keeps: number of answers until the next scan; seen: times of the last record and of the last training,
    as found by the last scan for new records
    """

    n_keeps: int = 0
    n_files: int = 0
    n_bytes: int = 0
    seen: tuple[int, int] = (-1, -1)
    has_news: bool = False


@dataclass(frozen=True)
class Learning:
    """The folder with the records and drafters of one target. A hash of the target's content names the
    folder, which need not exist.

    answers: folder of the records; work: folder of an unfinished training
    """

    folder: Path
    _reported: set[int | None] = field(default_factory=set, init=False, repr=False, compare=False)
    _memory: _Memory = field(default_factory=lambda: _Memory(), init=False, repr=False, compare=False)

    @classmethod
    def of(cls, target: Path) -> Self:
        """Returns the folder with the records of a target's file."""
        learning = cls(data_dir() / "learning" / fingerprint(target))
        if learning.folder.is_dir():
            with contextlib.suppress(OSError):  # the folder may belong to another user
                make_private(learning.folder)  # earlier versions created a folder that other users could read
        return learning

    @property
    def answers(self) -> Path:
        return self.folder / "answers"

    @property
    def work(self) -> Path:
        return self.folder / "work"

    def records(self) -> list[Path]:
        """Waits until pending records are written, and returns the files of all records, oldest first."""
        self.flush()
        return [path for _, _, path in self._entries()]

    def _entries(self) -> list[tuple[int, int, Path]]:
        """Returns the time, the size on disk and the file of each record, oldest first."""
        records = []
        with contextlib.suppress(FileNotFoundError), os.scandir(self.answers) as entries:
            for entry in entries:
                if entry.name.endswith(_ENDING):
                    # another process may have deleted the record
                    with contextlib.suppress(FileNotFoundError):
                        stat = entry.stat()
                        size = -(-stat.st_size // _BLOCK_BYTES) * _BLOCK_BYTES
                        records.append((stat.st_mtime_ns, size, Path(entry.path)))
        return sorted(records)

    def keep_later(self, prompt: Sequence[int], answer: Sequence[int]) -> None:
        """Stores an answer like `keep`, but in a separate thread, so that no engine waits for the disk.
        `flush` waits for the thread.
        """
        import numpy as np

        tokens, n_prompt = np.array([*prompt, *answer], np.int32), len(prompt)
        try:
            _writer.submit(self.keep, tokens, n_prompt)
        except RuntimeError:  # the interpreter is shutting down
            self.keep(tokens, n_prompt)

    @staticmethod
    def flush() -> None:
        """Waits until all records of `keep_later` are written."""
        with contextlib.suppress(RuntimeError):  # at shutdown of the interpreter, no record is pending
            _writer.submit(int).result()

    def keep(self, tokens: NDArray[np.int32], n_prompt: int, max_bytes: int = MAX_BYTES) -> None:
        """Stores an answer as a record, and deletes the oldest records while there are more than max_bytes
        bytes or MAX_FILES files. Ignores answers of fewer than MIN_ANSWER tokens.

        Never raises an exception, so that no answer fails because of a full disk. Logs each kind of error
        once.

        tokens: i32 [S], the prompt and the answer; n_prompt: number of prompt tokens
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
                _log.warning("answers cannot be recorded for learning: %s", error)
            self._reported.add(error.errno)

    def _drop_oldest(self, max_bytes: int, n_added: int) -> None:
        """If the records exceed a limit, deletes the oldest records until nine tenths of the limit are
        left.
        """
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
        """Returns True if there are enough new records for a training, or if a training is unfinished.

        failed: time of the last failed training, in nanoseconds since 1970; 0 = never
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
        """Records that a training finished, whatever its result."""
        if self.folder.is_dir():
            replace_bytes(self.folder / "tried", b"", mode=0o600)

    def forget(self) -> int:
        """Deletes all records and unfinished trainings, but no drafters. Returns the number of records."""
        n = len(self.records())
        with _keeping:
            for folder in (self.answers, self.work):
                shutil.rmtree(folder, ignore_errors=True)
        return n

    def drafter(self, stock: Path) -> Path | None:
        """Returns the trained drafter that replaces `stock`, or None if `stock` itself is in use."""
        record = self._record(stock)
        return self._drafters / record["file"] if record else None

    def facts(self, stock: Path) -> dict[str, Any] | None:
        """Returns the training result of the drafter that replaces `stock`, or None."""
        record = self._record(stock)
        return {k: v for k, v in record.items() if k != "file"} if record else None

    def status(self, stock: Path) -> dict[str, Any]:
        """Returns the number of records and the last result, as JSON-ready data."""
        self.flush()
        entries = self._entries()
        return {
            "records": len(entries),
            "bytes": sum(size for _, size, _ in entries),
            "folder": str(self.folder),
            "drafter": self.facts(stock),
        }

    def rows(self, stock: Path) -> list[tuple[str, str]]:
        """Formats the status of learning as rows of text. The result is empty if there are neither records
        nor a trained drafter.
        """
        facts = self.status(stock)
        drafter, rows = facts["drafter"], []
        if facts["records"]:
            size = human_bytes(facts["bytes"])
            rows.append(("recorded", f"{counted(facts['records'], 'answer')}, {size}, in {facts['folder']}"))
        if drafter is not None:
            own, other = (
                f"{drafter[name]['before']:.2f} -> {drafter[name]['after']:.2f}"
                for name in ("user", "general")
            )
            rows.append(("trained", f"{drafter['made']}, on {drafter['n_texts']} of your texts"))
            rows.append(("acceptance length", f"{own} on your texts, {other} on other texts"))
        return rows

    def use(self, new: Path, stock: Path, facts: Mapping[str, Any]) -> None:
        """Replaces the drafter in use by a new file. If this raises OSError, the old drafter stays in use.

        The new drafter is first written under a new name. Then the file that names the drafter in use is
        replaced atomically, so that a kill leaves either the old or the new drafter in use.
        """
        make_private(self.folder)
        now, name = self._record(stock).get("file"), fingerprint(stock)
        file = f"{name}.1.gguf" if now == f"{name}.0.gguf" else f"{name}.0.gguf"
        with replaced(self._drafters / file, mode=0o600) as temporary:
            shutil.copyfile(new, temporary)
        record = json.dumps({**facts, "file": file}, indent=1) + "\n"
        replace_bytes(self._record_file(stock), record.encode(), mode=0o600)
        self._drop(now)

    def undo(self, stock: Path) -> bool:
        """Puts the original drafter `stock` back in use. Returns False if `stock` is already in use."""
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
        """Returns the training result of the drafter that replaces `stock`, with the name of the drafter's
        file under "file". Returns {} if `stock` itself is in use.
        """
        try:
            record: dict[str, Any] = read_json(self._record_file(stock))
            return record if (self._drafters / record["file"]).is_file() else {}
        except (OSError, ValueError, LookupError, TypeError):
            return {}

    def _drop(self, file: str | None) -> None:
        """Deletes the file of a drafter that is no longer used. If deleting fails, a later drafter overwrites
        the file.
        """
        if file:
            with contextlib.suppress(OSError):
                (self._drafters / file).unlink()


def read_record(path: Path) -> tuple[NDArray[np.int32], int]:
    """Reads a record. Returns the tokens of prompt and answer, i32 [S], and the number of prompt tokens.
    Raises DataError.
    """
    import numpy as np

    with contextlib.suppress(OSError, ValueError):
        values = np.frombuffer(path.read_bytes(), "<i4")
        if len(values) and 0 <= values[0] < len(values) and values.min() >= 0:
            return values[1:].astype(np.int32), int(values[0])
    raise DataError(f"{path}: expected the tokens of an answer, found something else; delete the file")
