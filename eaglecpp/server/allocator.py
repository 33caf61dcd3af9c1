# SPDX-License-Identifier: MIT
"""Tells glibc's allocator to return large blocks to the system.

Every freed block of up to 32 MB raises the size from which glibc asks the system for a block of its own
(`mallopt(3)`, M_MMAP_THRESHOLD). After the first long prompts it keeps what the next ones need, once for each
thread that read one, and a server's memory only grows. Setting the size stops that. It applies to the
whole process, so it is for the server's own process, not for programs that import eaglecpp.
"""

from __future__ import annotations

import ctypes
import platform

__all__ = ["give_back_large_blocks"]

LARGE = 1 << 20
"""Bytes. What a round allocates is smaller, or stays allocated."""

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3  # malloc.h
_TRIM = 16 << 20


def give_back_large_blocks() -> bool:
    """Returns whether it was done: on Linux with glibc only."""
    if platform.libc_ver()[0] != "glibc":
        return False
    mallopt = ctypes.CDLL(None).mallopt
    return bool(mallopt(_M_MMAP_THRESHOLD, LARGE)) and bool(mallopt(_M_TRIM_THRESHOLD, _TRIM))
