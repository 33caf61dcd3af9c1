# SPDX-License-Identifier: MIT
"""Passes the log lines of llama.cpp, ggml and the extension to `logging`, under the name `eaglecpp.native`.

Native code may log from any thread and without the GIL. So native code writes to a queue, and Python drains
the queue after each native call. The library installs only one handler, a NullHandler on `eaglecpp`. Without
this handler, Python would print warnings in a program that configures no logging.
"""

from __future__ import annotations

import logging

from eaglecpp._extension import core

_logger = logging.getLogger("eaglecpp.native")
logging.getLogger("eaglecpp").addHandler(logging.NullHandler())


def drain() -> list[str]:
    """Moves all queued native log lines to the logger `eaglecpp.native`, in order and with their levels.
    Returns the lines with errors.
    """
    lines = core.drain_log()
    for level, text in lines:
        _logger.log(level, "%s", text)
    return [text for level, text in lines if level >= logging.ERROR]
