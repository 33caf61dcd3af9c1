# SPDX-License-Identifier: MIT
"""Ctrl+C in the middle of a computation that Python cannot interrupt."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

if sys.platform == "win32":
    pytest.skip("signals of POSIX", allow_module_level=True)

PROGRAM = """
import hashlib, sys, threading
from eaglecpp.cli.interrupts import Interrupts
interrupts = Interrupts(lambda text: print(text, file=sys.stderr, flush=True))
with interrupts.heard():
    interrupts.waits = sys.argv[1] == "waits"
    # once the computation runs, which lets this thread go on beside it
    threading.Timer(0.3, print, ["ready"], {"file": sys.stderr, "flush": True}).start()
    hashlib.pbkdf2_hmac("sha256", b"a", b"b", 2**31 - 1)  # takes for ever
"""


@contextmanager
def computing(how: str) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-P", "-c", PROGRAM, how]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stderr is not None and process.stderr.readline() == "ready\n"
            yield process
        finally:
            process.kill()


@pytest.mark.parametrize(("how", "says"), [("waits", "saving what is trained"), ("not", "stopping")])
def test_the_first_is_answered_at_once_and_the_second_ends_at_once(how: str, says: str) -> None:
    with computing(how) as process:
        assert process.stderr is not None
        process.send_signal(signal.SIGINT)
        assert process.stderr.readline().startswith(f"Ctrl+C: {says}")
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 130
