# SPDX-License-Identifier: MIT
"""What somebody sees who has just installed it, and mistypes."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from eaglecpp.cli import main


def test_the_command_alone_prints_its_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 0
    out = capsys.readouterr().out
    assert out.startswith("Usage: eaglecpp") and "Commands:" in out


@pytest.mark.parametrize(
    ("options", "level"), [([], logging.ERROR), (["--log-level", "debug"], logging.NOTSET)]
)
def test_the_http_library_does_not_speak_before_the_error(
    options: list[str], level: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """urllib3 warns of every retry; a mistyped name was buried under five of them."""
    monkeypatch.setenv("EAGLECPP_MODELS", str(tmp_path))
    logger = logging.getLogger("urllib3")
    before = logger.level
    logger.setLevel(logging.NOTSET)
    try:
        assert main([*options, "show", "nosuchname"]) == 1
        assert logger.level == level
    finally:
        logger.setLevel(before)
