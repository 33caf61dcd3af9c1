# SPDX-License-Identifier: MIT
"""Through how much of our Python an answer goes: frames on the stack at a native step of `eaglecpp run`,
and modules whose functions a chat over HTTP calls.

    python benchmarks/path_of_a_token.py [--verbose]

With the demo pair; both are counts and do not depend on the machine.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import sys
import threading
import urllib.request
from pathlib import Path
from types import FrameType
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

from eaglecpp._extension import core
from eaglecpp.cli import main as command
from helpers.http_server import DRAFT, MODEL, TARGET, TestServer


def ours(frame: FrameType) -> str:
    """The module of a frame in eaglecpp, else ""."""
    name = str(frame.f_globals.get("__name__", ""))
    return name if name.split(".")[0] == "eaglecpp" else ""


def frames_of_run() -> list[str]:
    """Module and function of each frame of ours below the first native step of an answer, outermost first."""
    native, found = core.Engine.step, []

    def step(*args: Any, **options: Any) -> Any:
        frame, stack = sys._getframe(1), []
        while frame:
            if name := ours(frame):
                stack.append(f"{name}.{frame.f_code.co_name}")
            frame = frame.f_back
        found.append(stack[::-1])
        return native(*args, **options)

    core.Engine.step = step
    try:
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
            arguments = ["run", str(TARGET), "What is len?", "--draft", str(DRAFT), "-n", "8", "--no-server"]
            assert command([*arguments, "--strategy", "chain:3"]) == 0
    finally:
        core.Engine.step = native
    return max(found, key=len)


def modules_of_a_chat() -> list[str]:
    """Modules of eaglecpp that a second chat over HTTP calls; the model is in memory."""
    called: set[str] = set()

    def note(frame: FrameType, event: str, _: Any) -> None:
        if event == "call" and (name := ours(frame)):
            called.add(name)

    body = {"model": MODEL, "messages": [{"role": "user", "content": "What is len?"}], "max_tokens": 8}
    threading.setprofile(note)  # of the threads that are started from here on
    with TestServer() as server:
        request = urllib.request.Request(
            f"{server.url}/v1/chat/completions",
            json.dumps(body).encode(),
            {"content-type": "application/json"},
        )
        for _ in range(2):
            called.clear()
            with urllib.request.urlopen(request, timeout=120) as answer:
                assert answer.status == 200
    threading.setprofile(None)
    return sorted(called)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--verbose", action="store_true", help="name them")
    verbose = parser.parse_args().verbose
    for title, names in (
        ("frames from `run` to a native step", frames_of_run()),
        ("modules that a chat over HTTP calls", modules_of_a_chat()),
    ):
        print(f"{title}: {len(names)}")
        if verbose:
            print("  " + "\n  ".join(names))


if __name__ == "__main__":
    main()
