# SPDX-License-Identifier: MIT
"""A server whose threads read long prompts gives their memory back."""

from __future__ import annotations

import platform
import subprocess
import sys

import pytest

PROGRAM = """
import sys, threading
from pathlib import Path
from eaglecpp.server.run import give_back_large_blocks

def resident():
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096

if sys.argv[1] == "on":
    assert give_back_large_blocks()
n_threads = 6
barrier = threading.Barrier(n_threads)

def read_prompts():
    for n in (20 << 20, 24 << 20, 28 << 20):
        barrier.wait()
        prompt = bytearray(n)
        prompt[:: 4096] = b"x" * len(prompt[:: 4096])
        del prompt
    barrier.wait()

before = resident()
threads = [threading.Thread(target=read_prompts) for _ in range(n_threads)]
for thread in threads: thread.start()
for thread in threads: thread.join()
print(resident() - before)
"""


def grown(how: str) -> int:
    done = subprocess.run(
        [sys.executable, "-P", "-c", PROGRAM, how], capture_output=True, text=True, check=True, timeout=120
    )
    return int(done.stdout)


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="glibc's allocator only")
def test_memory_of_long_prompts_goes_back_to_the_system() -> None:
    assert grown("on") < 20 << 20
    assert grown("off") > 60 << 20, "glibc gives it back by itself: the setting is not needed"
