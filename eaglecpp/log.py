# SPDX-License-Identifier: MIT
"""Hands the log lines of llama.cpp, ggml and our native code to `logging`, under the name `eaglecpp.native`.

Native code may log from any thread and while the GIL is released, so it writes to a queue; Python empties it
after each native call. The one handler installed is a NullHandler on `eaglecpp`: without any, Python itself
would print the warnings of a program that configures no logging.
"""

from __future__ import annotations

import logging

from eaglecpp._extension import core

_logger = logging.getLogger("eaglecpp.native")
logging.getLogger("eaglecpp").addHandler(logging.NullHandler())


def drain() -> list[str]:
    """Moves all queued native log lines to the logger `eaglecpp.native`, in order, at their own levels;
    returns the errors among them.
    """
    lines = core.drain_log()
    for level, text in lines:
        _logger.log(level, "%s", text)
    return [text for level, text in lines if level >= logging.ERROR]
