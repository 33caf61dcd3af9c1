# SPDX-License-Identifier: MIT
"""The installed command, and types for the fixtures of tests/e2e that run and start the command."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

COMMAND = str(Path(sys.executable).with_name("eaglecpp"))
Cli = Callable[..., subprocess.CompletedProcess[str]]
Start = Callable[..., subprocess.Popen[bytes]]
