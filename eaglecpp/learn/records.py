# SPDX-License-Identifier: MIT
"""`Learning`: recorded answers and trained drafters of a target, in the user's data folder.

Answers are recorded only with the option `learn`, and are never sent anywhere. A record has the tokens of a
prompt and its answer. Like saved conversations, records can be read by anyone who can read the user's files.
The records are one table of an SQLite file. Several processes may write to the file at the same time.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import os
import shutil
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from eaglecpp.data_dir import data_dir
from eaglecpp.errors import DataError
from eaglecpp.files import fingerprint, make_private, read_json, replace_bytes, replaced
from eaglecpp.human import counted, human_bytes

if TYPE_CHECKING:
    import sqlite3

    import numpy as np
    from numpy.typing import NDArray

MAX_BYTES, MAX_ANSWERS = 512 << 20, 50_000
"""Limits of a target's records; the oldest are deleted first."""
MIN_ANSWER = 2
"""Tokens. Shorter answers are useless for training."""
LEAST_TEXTS = 24
"""Minimum number of texts to train on."""
_WAIT_S = 10.0
"""Maximum seconds to wait while another process writes to the file."""
# at: time of the answer in nanoseconds since 1970. Answers with the same time get successive values.
_TABLE = """CREATE TABLE IF NOT EXISTS answers
(at INTEGER PRIMARY KEY, digest BLOB UNIQUE, n_prompt INTEGER, tokens BLOB)"""
_INSERT = """INSERT OR REPLACE INTO answers
SELECT max(?, ifnull(max(at) + 1, 0)), ?, ?, ? FROM answers"""
_IS_OVER = """SELECT n > ? OR n > 1 AND page_size * (page_count - freelist_count) > ?
FROM (SELECT count(*) AS n FROM answers), pragma_page_size, pragma_page_count, pragma_freelist_count"""
_DROP_OLDEST = "DELETE FROM answers WHERE at = (SELECT min(at) FROM answers)"
_log = logging.getLogger("eaglecpp.learning")
_writer = ThreadPoolExecutor(1, "eaglecpp-records")  # the interpreter waits for this thread at exit
_creating = threading.Lock()


@dataclass(frozen=True)
class Learning:
    """The folder with the records and drafters of one target. A hash of the target's content names the
    folder, which need not exist.

    answers: file of the records; work: folder of an unfinished training
    """

    folder: Path
    _reported: set[str] = field(default_factory=set, init=False, repr=False, compare=False)

    @classmethod
    def of(cls, target: Path) -> Self:
        """Returns the folder with the records of a target's file."""
        learning = cls(data_dir() / "learning" / fingerprint(target))
        if learning.folder.is_dir():
            with contextlib.suppress(OSError):  # the folder may belong to another user
                make_private(learning.folder)  # earlier versions created a folder that other users could read
        if (learning.folder / "answers").is_dir():
            _log.warning("%s: the former records in answers/ are ignored; delete them", learning.folder)
        return learning

    @property
    def answers(self) -> Path:
        return self.folder / "answers.sqlite"

    @property
    def work(self) -> Path:
        return self.folder / "work"

    def records(self, n_ctx: int = -1) -> dict[str, tuple[NDArray[np.int32], int]]:
        """Waits until pending records are written. Returns for the digest of each record, oldest first, the
        tokens of prompt and answer, i32 [S], and the number of prompt tokens. Raises DataError.

        n_ctx: number of first tokens to return; -1 = all
        """
        import numpy as np

        n_bytes = n_ctx * 4 if n_ctx >= 0 else MAX_BYTES
        rows = self._query(
            "SELECT hex(digest), substr(tokens, 1, ?), n_prompt FROM answers WHERE typeof(tokens) = 'blob' "
            "AND length(tokens) % 4 = 0 AND n_prompt BETWEEN 0 AND length(tokens) / 4 ORDER BY at",
            n_bytes,
        )
        return {name: (np.frombuffer(row, "<i4").astype(np.int32), n) for name, row, n in rows}

    def _query(self, statement: str, *values: int) -> list[Any]:
        """Runs a statement after pending records are written. Returns its rows, or [] if there is no file."""
        self.flush()
        if not self.answers.exists():
            return []
        return self._run(lambda database: database.execute(statement, values).fetchall())

    def _run(self, work: Callable[[sqlite3.Connection], list[Any]], *, is_retry: bool = False) -> list[Any]:
        """Runs `work` as one transaction on the file of the records. Creates a missing file. Renames a
        damaged file and runs `work` on a new file. Raises DataError if the file cannot be read or written.
        """
        import sqlite3

        with _creating:
            make_private(self.folder)
            # Closing a file drops the process's locks on it, so no thread may have opened the file before.
            # SQLite gives its journal the mode of the file.
            self.answers.touch(0o600)
            opened = self.answers.stat()
        wait_s = 0.1 if self._reported else _WAIT_S  # other answers queue up behind this one
        try:
            connection = sqlite3.connect(self.answers, wait_s, isolation_level="IMMEDIATE")
            with contextlib.closing(connection), connection:
                connection.execute("PRAGMA secure_delete = ON")  # overwrites deleted answers
                connection.execute(_TABLE)
                return work(connection)
        except sqlite3.Error as error:
            # A damaged file raises DatabaseError itself, all other errors raise classes derived from it.
            if is_retry or type(error) is not sqlite3.DatabaseError:
                raise DataError(f"{self.answers}: {error}") from error
            _log.warning("%s: %s; new answers are recorded in a new file", self.answers, error)
        with contextlib.suppress(FileNotFoundError):
            if os.path.samestat(opened, self.answers.stat()):  # no other process has renamed the file
                self.folder.joinpath("answers.sqlite-journal").unlink(missing_ok=True)
                self.answers.replace(self._damaged)
        return self._run(work, is_retry=True)

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

    def keep(self, tokens: NDArray[np.int32], n_prompt: int) -> None:
        """Stores an answer as a record, and deletes the oldest records while there are more than MAX_BYTES
        bytes or MAX_ANSWERS records. Ignores answers of fewer than MIN_ANSWER tokens.

        Never raises an exception, so that no answer fails because of a full disk. Logs each kind of error
        once.

        tokens: i32 [S], the prompt and the answer; n_prompt: number of prompt tokens
        """
        if len(tokens) - n_prompt < MIN_ANSWER:
            return
        data = tokens.astype("<i4").tobytes()
        digest = hashlib.sha256(data).digest()[:16]

        def write(database: sqlite3.Connection) -> list[Any]:
            database.execute(_INSERT, (time.time_ns(), digest, n_prompt, data))
            while database.execute(_IS_OVER, (MAX_ANSWERS, MAX_BYTES)).fetchone()[0]:
                database.execute(_DROP_OLDEST)
            return []

        try:
            self._run(write)
            self._reported.clear()
        except (DataError, OSError, ImportError) as error:
            if str(error) not in self._reported:
                _log.warning("answers cannot be recorded for learning: %s", error)
            self._reported.add(str(error))

    def has_news(self, failed: int = 0) -> bool:
        """Returns True if there are enough new records for a training, or if a training is unfinished.

        failed: time of the last failed training, in nanoseconds since 1970; 0 = never
        """
        if not failed and (self.work / "texts.json").exists():
            return True
        tried = self.folder / "tried"
        since = max(failed, tried.stat().st_mtime_ns if tried.exists() else 0)
        new = self._query("SELECT at FROM answers WHERE at > ? LIMIT ?", since, LEAST_TEXTS)
        return len(new) == LEAST_TEXTS

    def note_tried(self) -> None:
        """Records that a training finished, whatever its result."""
        if self.folder.is_dir():
            replace_bytes(self.folder / "tried", b"", mode=0o600)

    def forget(self) -> int:
        """Deletes all records and unfinished trainings, but no drafters. Returns the number of records."""
        n = self._n_records()
        for statement in ("DELETE FROM answers", "VACUUM"):
            self._query(statement)
        self._damaged.unlink(missing_ok=True)
        # Earlier versions kept the answers as files of a folder.
        for folder in (self.work, self.folder / "answers"):
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
        return {
            "records": self._n_records(),
            "bytes": self.answers.stat().st_size if self.answers.exists() else 0,
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

    def _n_records(self) -> int:
        return sum(n for (n,) in self._query("SELECT count(*) FROM answers"))

    @property
    def _damaged(self) -> Path:
        return self.folder / "answers.damaged"

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
