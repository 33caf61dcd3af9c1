# SPDX-License-Identifier: MIT
"""What the system does to a process: forks, and memory that is not there."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from conftest import Models

from helpers.script import run_script

FORK = """
import os, signal, sys
from eaglecpp import Engine
from eaglecpp.errors import UnsupportedError

target, draft = sys.argv[1:]
engine = Engine.open(target, draft, n_ctx=128, n_threads=2)
engine.generate("xy zz", max_tokens=4)
pid = os.fork()
if pid == 0:
    signal.alarm(500)
    refused = []
    for call in (
        lambda: engine.generate("xy", max_tokens=4),
        lambda: next(engine.stream("xy", max_tokens=4)),
        lambda: Engine.open(target, n_ctx=128, n_threads=2),
    ):
        try:
            call()
        except UnsupportedError as error:
            refused.append("forked" in str(error) and "spawn" in str(error))
    engine.close()
    os._exit(0 if refused == [True] * 3 else 1)
assert os.waitpid(pid, 0)[1] == 0
print(len(engine.generate("xy zz", max_tokens=4).tokens))
"""

# forked while other threads are in native code, of which the child has none
FORK_BESIDE = """
import os, signal, sys, threading, time
from eaglecpp import Engine

target, = sys.argv[1:]
engine = Engine.open(target, n_ctx=128, n_threads=1)

def tokenizes():
    while True:
        engine.tokenize("ab cd " * 100_000)

for _ in range(3):
    threading.Thread(target=tokenizes, daemon=True).start()
time.sleep(0.2)
pid = os.fork()
if pid == 0:
    signal.alarm(20)
    sys.exit(0)  # through atexit
assert os.waitpid(pid, 0)[1] == 0
"""

# address space runs out in the middle of opening a context, as memory does on a small machine
MEMORY = """
import resource, sys
from pathlib import Path
from eaglecpp import Engine
from eaglecpp.errors import OutOfMemoryError

target, = sys.argv[1:]
Engine.open(target, n_ctx=128, n_threads=1).close()
used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (used + (200 << 20),) * 2)
try:
    Engine.open(target, n_ctx=400_000, n_threads=1)
except OutOfMemoryError as error:
    print(error)
"""


def run(script: str, *arguments: Path) -> str:
    done = run_script(script, *arguments)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no fork")
def test_a_forked_child_is_told_instead_of_waiting_for_ever(models: Models) -> None:
    assert run(FORK, models.target, models.draft) == "4\n"


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no fork")
def test_a_child_forked_beside_busy_threads_ends(models: Models) -> None:
    assert run(FORK_BESIDE, models.target) == ""


@pytest.mark.skipif(sys.platform != "linux", reason="other systems do not limit address space")
def test_a_context_too_large_for_the_process_is_a_lack_of_memory(models: Models) -> None:
    assert "no room for a context of 400" in run(MEMORY, models.target)
