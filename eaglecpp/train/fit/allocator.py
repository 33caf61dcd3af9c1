# SPDX-License-Identifier: MIT
"""Memory allocator settings that make training fast, set for the user.

glibc's allocator returns large blocks to the kernel at every free, and the pages of each new block then
fault in again; with the tensors of a training step that costs up to half of the time. Its settings are read
once, when a process starts, so the process re-executes itself with them set. Imports nothing heavy, because
it runs first.
"""

from __future__ import annotations

import os
import platform
import sys
from collections.abc import Sequence

__all__ = ["with_allocator"]

_SETTINGS = {
    "MALLOC_MMAP_MAX_": "0",
    "MALLOC_TRIM_THRESHOLD_": str(1 << 40),
    "MALLOC_TOP_PAD_": str(256 << 20),
}
_PRELOADED = ("jemalloc", "tcmalloc", "mimalloc")
_MARK = "EAGLECPP_TRAIN_ALLOCATOR"
"""Set in the replaced process, so that it happens once whatever becomes of the other variables."""


def with_allocator(command: Sequence[str]) -> None:
    """Replaces this process by `command` with the allocator set, where that helps and was not done: glibc,
    no other allocator preloaded, none of the settings given by the user. Returns otherwise.
    """
    done = _MARK in os.environ or any(name in os.environ for name in _SETTINGS)
    other = any(name in os.environ.get("LD_PRELOAD", "") for name in _PRELOADED)
    if done or other or platform.libc_ver()[0] != "glibc":
        return
    sys.stdout.flush()
    sys.stderr.flush()
    os.execve(command[0], list(command), {**os.environ, **_SETTINGS, _MARK: "1"})
