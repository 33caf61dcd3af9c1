# SPDX-License-Identifier: MIT
"""`write_entries` writes a file with texts of the target. It continues the file of a killed run, and extends
the file of a finished run.

The file has the format JSON Lines: a header that identifies the target and the settings, and then a line per
entry, in order of completion. Each entry depends only on its number and the header. Unfinished entries of a
killed run are written again.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from eaglecpp.engine.engine import Engine
from eaglecpp.errors import DataError
from eaglecpp.files import make_folder
from eaglecpp.train.capture.batched import Task, run
from eaglecpp.train.capture.features import differences, identify

OnProgress = Callable[[int, int, int], None]
"""(entries done, entries in total, tokens sampled by this run)"""


@dataclass(frozen=True)
class Written:
    """Counts of a run of `write_entries`. n_good: entries in the file; n_before: entries in the file that
    earlier runs wrote; n_tokens: tokens sampled by this run; dropped: skipped entries by reason, over all
    runs.
    """

    n_good: int
    n_before: int
    n_tokens: int
    dropped: Counter[str]


def write_entries(
    engine: Engine,
    out: Path,
    facts: dict[str, Any],
    what: str,
    n_wanted: int,
    task: Callable[[int], Task[dict[str, Any]]],
    on_progress: OnProgress,
    check: Callable[[str, dict[str, Any]], None] = lambda place, entry: None,
) -> Written:
    """Runs `task(index)` for each index below `n_wanted` that is missing in `out`, and appends its result: an
    object with `index`, and `dropped` with a reason if it failed.

    facts: settings on which an entry depends, in addition to the target and its context; `format` identifies
           the kind of file
    what:  the kind of entries, in the plural, for messages
    check: called with the location and the entry of each existing line
    Raises DataError for a file of another kind or with another header, or while another process writes it;
    and the errors of generating.
    """
    header: dict[str, Any] = {"target": identify(engine.target_path), "n_ctx": engine.n_ctx}
    header = json.loads(json.dumps({"format": facts["format"], **header, **facts}))
    make_folder(out.parent)
    try:
        lock = FileLock(f"{out}.lock", mode=0o644).acquire(timeout=0)
    except Timeout:
        raise DataError(f"{out}: another process is writing this file; wait until it ends") from None
    with lock:
        done, n_whole = _read(out, header, what, check)
        n_before, n_tokens = sum(not reason for reason in done.values()), 0
        missing = [index for index in range(n_wanted) if index not in done]
        n_done = n_wanted - len(missing)

        def report(n: int = 0) -> None:
            nonlocal n_tokens
            n_tokens += n
            on_progress(n_done, n_wanted, n_tokens)

        out.touch(0o644)
        with out.open("r+b") as stream:
            stream.truncate(n_whole)
            stream.seek(n_whole)
            if not n_whole:
                stream.write(_line(header))
            report()
            for entry in run(engine, map(task, missing), report):
                stream.write(_line(entry))
                stream.flush()  # after flushing, killing this process loses only unfinished entries
                done[entry["index"]], n_done = entry.get("dropped", ""), n_done + 1
                report()
        dropped = Counter(reason for reason in done.values() if reason)
        return Written(len(done) - dropped.total(), n_before, n_tokens, dropped)


def _read(
    out: Path, header: dict[str, Any], what: str, check: Callable[[str, dict[str, Any]], None]
) -> tuple[dict[int, str], int]:
    """Reads an existing file of entries. Returns for each index the reason why the entry was skipped ("" for
    a good entry), and the number of bytes in complete lines (0 for a missing file). The incomplete line of a
    killed run is ignored.
    """
    done: dict[int, str] = {}
    if not out.exists():
        return done, 0
    is_other = f"{out}: this file has no {what} of an earlier run; name another file"
    n_bytes = 0
    with out.open("rb") as stream:
        for number, line in enumerate(stream, 1):
            place = f"{out}:{number}"
            if not line.endswith(b"\n"):
                if number == 1 and not _line(header).startswith(line):
                    raise DataError(is_other)
                break
            try:
                entry = json.loads(line)
            except ValueError:
                entry = None
            if number == 1:
                if not isinstance(entry, dict) or entry.get("format") != header["format"]:
                    raise DataError(is_other)
                if differing := differences(header, entry):
                    raise DataError(
                        f"{out}: these {what} were made with another target or other settings "
                        f"({differing}); name another file, or delete this one"
                    )
            elif not isinstance(entry, dict) or type(entry.get("index")) is not int:
                raise DataError(
                    f"{place}: expected one of the {what}, found {line[:60]!r}; name another file"
                )
            else:
                check(place, entry)
                done[entry["index"]] = str(entry.get("dropped", ""))
            n_bytes += len(line)
    return done, n_bytes


def _line(entry: dict[str, Any]) -> bytes:
    return json.dumps(entry, separators=(",", ":")).encode() + b"\n"
