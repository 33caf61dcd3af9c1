# SPDX-License-Identifier: MIT
"""`run_script` runs a Python program in a separate process, with the installed package."""

from __future__ import annotations

import os
import subprocess
import sys


def run_script(script: str, *arguments: object, **environment: str) -> subprocess.CompletedProcess[str]:
    """Runs a Python program and waits for its end. environment: variables to add or replace."""
    return subprocess.run(
        [sys.executable, "-P", "-c", script, *map(str, arguments)],
        env=os.environ | environment, capture_output=True, text=True, timeout=600, check=False,
    )  # fmt: skip
