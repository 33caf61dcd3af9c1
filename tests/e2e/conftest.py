# SPDX-License-Identifier: MIT
"""The installed command, run as users run it: as a process, from an empty directory."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

SAYS_WHEN_BEGUN = """
import os, sys
from eaglecpp.cli import main
from eaglecpp.engine.stream import Stream
first = Stream.__next__
def tell(stream):
    chunk = first(stream)
    Stream.__next__ = first
    os.write(2, b"begun\\n")
    return chunk
Stream.__next__ = tell
sys.exit(main())
"""
COMMAND = str(Path(sys.executable).with_name("eaglecpp"))


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the command keeps what belongs to its user: nothing of the real user's is read or written, and
    nothing is fetched.
    """
    monkeypatch.setenv("EAGLECPP_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("EAGLECPP_MODELS", str(tmp_path / "home" / "models"))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    return tmp_path / "home"


@pytest.fixture
def cli(tmp_path: Path) -> Callable[..., subprocess.CompletedProcess[str]]:
    """`cli("generate", ...)`: runs the command to its end; stdin is empty unless `input` is given."""

    def run(*args: Any, **options: Any) -> subprocess.CompletedProcess[str]:
        if "input" not in options:
            options["stdin"] = subprocess.DEVNULL
        command = [COMMAND, *(str(arg) for arg in args)]
        return subprocess.run(
            command, cwd=tmp_path, capture_output=True, encoding="utf-8", timeout=600, check=False, **options
        )

    return run


@pytest.fixture
def start(tmp_path: Path) -> Callable[..., subprocess.Popen[bytes]]:
    """`start("generate", ...)`: starts the command with pipes for stdout and stderr. says_when_begun: a line
    on stderr tells that the first tokens are there.
    """

    def run(*args: Any, says_when_begun: bool = False, **options: Any) -> subprocess.Popen[bytes]:
        program = [sys.executable, "-P", "-c", SAYS_WHEN_BEGUN] if says_when_begun else [COMMAND]
        command = [*program, *(str(arg) for arg in args)]
        pipe = subprocess.PIPE
        environment = {**os.environ, "PYTHONUNBUFFERED": "1"}
        # bufsize 0: what a `read` leaves over must still be there for `communicate`
        options |= {"stdin": subprocess.DEVNULL, "stdout": pipe, "stderr": pipe, "bufsize": 0}
        return subprocess.Popen(command, cwd=tmp_path, env=environment, **options)

    return run
