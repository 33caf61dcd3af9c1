# SPDX-License-Identifier: MIT
"""`run_script`: a program in a process of its own, with the installed package."""

from __future__ import annotations

import os
import subprocess
import sys


def run_script(script: str, *arguments: object, **environment: str) -> subprocess.CompletedProcess[str]:
    """Runs it to its end. environment: variables over those that there are."""
    return subprocess.run(
        [sys.executable, "-P", "-c", script, *map(str, arguments)],
        env=os.environ | environment, capture_output=True, text=True, timeout=600, check=False,
    )  # fmt: skip
