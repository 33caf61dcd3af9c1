# SPDX-License-Identifier: MIT
"""Fails if a commit sets five or more files back to older contents without "Revert" in its subject.

A commit of a stale working tree sets files back and silently undoes other work. For example, bfeb3f07 set 117
files back. The check covers the last hundred commits, or fewer in a shallow clone.
"""

from __future__ import annotations

import subprocess
import sys
from collections import defaultdict
from pathlib import Path

N_COMMITS, N_CHECKED, N_FILES = 1000, 100, 5


def stale(log: str) -> list[str]:
    """Returns the subjects of the commits that set files back. The input is the output of `git log --reverse
    --raw --no-abbrev --format=commit %s`.
    """
    seen: dict[str, set[str]] = defaultdict(set)
    n_back: list[tuple[str, int]] = []  # (subject, number of files set back) for each commit
    for line in log.splitlines():
        if line.startswith("commit "):
            n_back.append((line.removeprefix("commit "), 0))
        elif line.startswith(":"):
            fields, _, path = line.partition("\t")
            _, _, before, after, _ = fields.split(" ")
            seen[path].add(before)
            subject, n = n_back[-1]
            n_back[-1] = subject, n + (after in seen[path] and int(after, 16) != 0)
            seen[path].add(after)
    checked = n_back[-N_CHECKED:]
    return [f"{subject}: {n} files" for subject, n in checked if n >= N_FILES and "Revert" not in subject]


def main() -> int:
    command = ["git", "log", "--reverse", "--no-merges", "--raw", "--no-abbrev", "--no-renames"]
    root = Path(__file__).parents[1]
    done = subprocess.run(
        [*command, f"--max-count={N_COMMITS}", "--format=commit %s"],
        cwd=root,
        capture_output=True,
        text=True,
        check=False,
    )
    found = stale(done.stdout)
    for one in found:
        print(f"{one} set back to older contents; if this is intended, write Revert into the subject")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
