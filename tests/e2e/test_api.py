# SPDX-License-Identifier: MIT
"""The Python API in a separate process, where Ctrl+C is a real signal."""

from __future__ import annotations

import signal
import subprocess
import sys
import time

from helpers.models import Models

SCRIPT = """
import signal
import sys
import eaglecpp

signal.signal(signal.SIGINT, signal.default_int_handler)  # a background job's children inherit "ignore"

with eaglecpp.Engine.open(sys.argv[1], draft=sys.argv[2], n_ctx=2048, n_threads=1, temperature=0.0) as engine:
    fresh = engine.generate("ab cd", max_tokens=16).tokens
    try:
        print("ready", flush=True)
        engine.generate("xy zz", ignore_eos=True)
        print("not interrupted")
    except KeyboardInterrupt:
        print("interrupted")
    print(engine.generate("ab cd", max_tokens=16).tokens == fresh)
"""


def test_ctrl_c_is_a_keyboard_interrupt_and_the_engine_continues(models: Models) -> None:
    command = [sys.executable, "-P", "-c", SCRIPT, str(models.target), str(models.draft)]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdout=pipe, stderr=pipe, encoding="utf-8") as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        time.sleep(0.1)  # Ctrl+C comes during the generation, which takes seconds
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=600)
    assert (out, err, process.returncode) == ("interrupted\nTrue\n", "", 0)
