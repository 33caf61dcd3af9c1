# SPDX-License-Identifier: MIT
"""Tests the engine after a fork, and when memory runs out."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from helpers.models import Models
from helpers.script import run_script

FORK = """
import os, signal, sys, threading
from eaglecpp import Engine
from eaglecpp.errors import UnsupportedError

target, draft = sys.argv[1:]
options = {"n_ctx": 128, "n_threads": 2, "exact": "off", "planner_cache": False}

def said(engine):
    return engine.generate("xy zz", max_tokens=4, temperature=0.0).tokens

def opened():
    with Engine.open(target, **options) as other:
        said(other)

def outcome(call):
    try:
        call()
    except UnsupportedError as error:
        return "refused" if "forked" in str(error) and "spawn" in str(error) else str(error)
    return "done"

def in_child(*calls):
    pid = os.fork()
    if pid == 0:
        signal.alarm(500)
        found = {outcome(call) for call in calls}
        os._exit({"done": 0, "refused": 1}[found.pop()] if len(found) == 1 else 2)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])

plain = Engine.open(target, **options)
# nothing has been computed, so the child creates its own threads, as servers need that load before they fork
assert in_child(lambda: said(plain), opened) == 0
# worker threads belong to the computing thread, but the child only has the forking one
thread = threading.Thread(target=said, args=(plain,))
thread.start()
thread.join()
assert in_child(lambda: said(plain)) == 0

engine = Engine.open(target, draft, **options)
before = said(engine)
calls = (lambda: said(engine), lambda: next(engine.stream("xy", max_tokens=4)), engine.clear, opened)
assert in_child(*calls) == 1
engine.clear()
assert said(engine) == before
"""

# This program forks while other threads run native code. The child process does not have these threads.
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

# The address space of this program runs out while a context is opened. Memory may run out in the same way on
# a small machine.
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
def test_a_forked_child_gets_an_error_instead_of_a_hang(models: Models) -> None:
    assert run(FORK, models.target, models.draft) == ""


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no fork")
def test_a_child_forked_from_busy_threads_ends(models: Models) -> None:
    assert run(FORK_BESIDE, models.target) == ""


@pytest.mark.skipif(sys.platform != "linux", reason="other systems do not limit address space")
def test_a_context_too_large_for_the_process_is_a_lack_of_memory(models: Models) -> None:
    assert "no room for a context of 400" in run(MEMORY, models.target)
