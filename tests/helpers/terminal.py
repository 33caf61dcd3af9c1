# SPDX-License-Identifier: MIT
"""Runs a command in a real pseudo-terminal and reads the screen, including lines that have scrolled off.

pexpect runs the command and passes keys. pyte is the terminal, which draws the screen and answers questions
about the cursor.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Self

import pexpect
import pyte

ENTER, TAB, CTRL_C, CTRL_D = "\r", "\t", "\x03", "\x04"
PATIENCE_S = 500.0
"""Long enough for the busiest machine, so that only a hang reaches it. A failure prints the screen."""
_PASTE_BEGIN, _PASTE_END = "\x1b[200~", "\x1b[201~"


class Terminal:
    """A terminal of `columns` x `rows`. It must be closed, or used as a context manager."""

    def __init__(
        self, command: Sequence[str], cwd: Path, *, columns: int = 100, rows: int = 30, **env: str
    ) -> None:
        environment = {**os.environ, "TERM": "xterm-256color", **env}
        self.process = pexpect.spawn(
            command[0],
            list(command[1:]),
            cwd=str(cwd),
            env=environment,
            dimensions=(rows, columns),
            timeout=PATIENCE_S,
        )
        self.raw = ""
        self._screen = pyte.HistoryScreen(columns, rows, history=100_000, ratio=0.1)
        self._screen.write_process_input = self.process.send
        self._stream = pyte.ByteStream(self._screen)

    @property
    def text(self) -> str:
        """Returns all lines, the oldest first, without trailing blanks."""
        width = self._screen.columns
        above = ["".join(row[x].data for x in range(width)) for row in self._screen.history.top]
        return "\n".join(line.rstrip() for line in [*above, *self._screen.display]).rstrip()

    @property
    def line(self) -> str:
        """Returns the line of the cursor."""
        return str(self._screen.display[self._screen.cursor.y]).rstrip()

    def type(self, keys: str) -> None:
        """Sends keys to the command. `ENTER` is the Enter key."""
        self.process.send(keys)

    def paste(self, text: str) -> None:
        """Pastes a block of up to 4 KB, the size of the terminal driver's buffer, because the screen is not
        read meanwhile. The terminal marks the block as pasted only if the program turned on bracketed paste.
        """
        text = text.replace("\n", "\r")
        is_marked = self.raw.rfind("\x1b[?2004h") > self.raw.rfind("\x1b[?2004l")
        self.process.send(_PASTE_BEGIN + text + _PASTE_END if is_marked else text)

    def wait(self, text: str, *, count: int = 1, seconds: float = PATIENCE_S) -> None:
        """Reads the screen until the text has appeared `count` times. A failure shows the screen."""
        self.wait_until(lambda: self.text.count(text) >= count, f"{count} times {text!r}", seconds)

    def wait_for_prompt(self) -> None:
        """Reads the screen until an empty prompt waits for input."""
        self.wait_until(lambda: self.line.startswith(">>> Send a message"), "a prompt")

    def say(self, line: str, answer: str, *, count: int = 1) -> None:
        """Types a line, and waits until `answer` has appeared `count` times and the next prompt waits for
        input.
        """
        self.type(line + ENTER)
        self.wait(answer, count=count)
        self.wait_for_prompt()

    def leave(self) -> int:
        """Ends a chat with Ctrl+D, and returns the exit status."""
        self.type(CTRL_D)
        return self.wait_for_end()

    def wait_until(self, holds: Callable[[], bool], what: str = "it", seconds: float = PATIENCE_S) -> None:
        """Reads the screen until a condition holds. Fails with the message `what` at the timeout, or when the
        command ends.
        """
        end = time.monotonic() + seconds
        while not holds():
            assert time.monotonic() < end, f"timeout while waiting for {what}:\n{self.text}"
            assert self._read() or holds(), f"the command ended without {what}:\n{self.text}"

    def wait_for_end(self) -> int:
        """Reads the screen until the command ends, and returns the command's exit status."""
        while self._read():
            pass
        self.process.close()
        return int(self.process.exitstatus if self.process.exitstatus is not None else -1)

    def _read(self) -> bool:
        """Reads the available output. Returns False if the command has ended."""
        try:
            data = self.process.read_nonblocking(65536, timeout=0.1)
        except pexpect.TIMEOUT:
            return True
        except pexpect.EOF:
            return False
        self.raw += data.decode("utf-8", "replace")
        self._stream.feed(data)
        return True

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.process.close(force=True)
