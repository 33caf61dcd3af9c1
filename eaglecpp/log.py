# SPDX-License-Identifier: MIT
"""Passes the log lines of llama.cpp, ggml and the extension to `logging`, under the name `eaglecpp.native`.

Native code may log from any thread and without the GIL, so it writes to a queue, which Python drains after
each native call. The only handler installed is a NullHandler on `eaglecpp`: without this handler, Python
would print warnings in a program that configures no logging.
"""

from __future__ import annotations

import logging

from eaglecpp._extension import core

_logger = logging.getLogger("eaglecpp.native")
logging.getLogger("eaglecpp").addHandler(logging.NullHandler())


def drain() -> list[str]:
    """Moves all queued native log lines to the logger `eaglecpp.native`, in order, each at its own level.
    Returns the error lines.
    """
    lines = core.drain_log()
    for level, text in lines:
        _logger.log(level, "%s", text)
    return [text for level, text in lines if level >= logging.ERROR]
