# SPDX-License-Identifier: MIT
"""`killed_everywhere` kills an operation before each of its file operations, and checks the remaining files.

The kills are not random: the first child dies at its first operation on a folder, the second child at its
second operation, and so on until a child finishes. `sys.addaudithook` reports every operation before it
happens.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

KILLED = 137


def killed_everywhere(root: Path, operation: Callable[[], object], check: Callable[[], None]) -> int:
    """Runs the operation in child processes. Each child dies one file operation later than the previous
    child, and then `check` runs. Returns the number of children that died. Without forks, skips the test.
    """
    if not hasattr(os, "fork"):
        pytest.skip("forks")
    for n_allowed in range(10_000):
        code = in_child(root, operation, n_allowed)
        if code == 0:
            return n_allowed
        assert code == KILLED, f"the child failed by itself with {code}"
        check()
    raise AssertionError("the operation never ended")


def in_child(root: Path, operation: Callable[[], object], n_allowed: int) -> int:
    """Runs the operation in a child that dies after `n_allowed` file operations below `root`. Returns the
    child's exit code.
    """
    with warnings.catch_warnings():
        # Python warns about forks in processes with threads. This child process has only one thread.
        warnings.simplefilter("ignore", DeprecationWarning)
        child = os.fork()
    if child:
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    try:
        left, prefix = n_allowed, str(root)

        def hook(event: str, args: tuple[Any, ...]) -> None:
            nonlocal left
            touches = event == "open" or event.startswith(("os.", "shutil."))
            if touches and any(
                isinstance(arg, str | os.PathLike) and str(arg).startswith(prefix) for arg in args
            ):
                left -= 1
                if left < 0:
                    os._exit(KILLED)

        sys.addaudithook(hook)
        operation()
    except BaseException:
        os._exit(1)
    os._exit(0)


def killed_after_lines(code: str, n_lines: int) -> None:
    """Runs a program with one thread, waits until the program has printed `n_lines` lines, and kills it."""
    child = subprocess.Popen(
        [sys.executable, "-P", "-c", code],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    assert child.stdout is not None
    for _ in range(n_lines):
        assert child.stdout.readline(), "the child ended before it was killed"
    child.kill()
    assert child.wait(60) == -signal.SIGKILL
    child.stdout.close()
