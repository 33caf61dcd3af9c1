# SPDX-License-Identifier: MIT
"""Tests that native log lines arrive in `logging`, and that nothing is printed without a handler."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from eaglecpp import Engine
from helpers.models import Models
from helpers.script import run_script


def test_loading_a_model_logs_to_the_native_logger(models: Models, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG, "eaglecpp.native"):
        Engine.open(models.target).close()
    assert any(record.name == "eaglecpp.native" for record in caplog.records)
    assert all(record.message == record.message.rstrip("\n") for record in caplog.records)


def test_the_library_prints_nothing(models: Models, tmp_path: Path) -> None:
    code = (
        "import eaglecpp, logging, sys\n"
        "with eaglecpp.Engine.open(sys.argv[1], sys.argv[2], n_ctx=128) as engine:\n"
        "    engine.generate('ab', max_tokens=4)\n"
        "logging.getLogger('eaglecpp.native').error('unheard')\n"
        "try:\n    eaglecpp.Engine.open(sys.argv[3])\nexcept eaglecpp.EagleError:\n    pass\n"
    )
    broken = tmp_path / "broken.gguf"
    broken.write_bytes(b"GGUF\x03\x00\x00\x00")
    done = run_script(code, models.target, models.draft, broken)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
