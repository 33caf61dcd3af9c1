# SPDX-License-Identifier: MIT
"""Tests that the examples run, and that they stay short enough to read."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from helpers.models import Models

EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.mark.parametrize("name", ["complete.py", "stream.py", "llama_dropin.py"])
def test_an_example_runs(name: str, models: Models, tmp_path: Path) -> None:
    script = EXAMPLES / name
    assert len(script.read_text(encoding="utf-8").splitlines()) < 60
    done = subprocess.run(
        [sys.executable, script, models.target, models.draft],
        cwd=tmp_path,
        capture_output=True,
        encoding="utf-8",
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout
    assert done.stderr.startswith(("plain", "\n")) or "tokens" in done.stderr
