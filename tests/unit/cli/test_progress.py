# SPDX-License-Identifier: MIT
"""Bars of downloads: one per file, with size, rate and time left; nothing where nobody watches."""

from __future__ import annotations

import pytest

from eaglecpp.cli.progress import Bars
from eaglecpp.store import Status

MIB = 1 << 20
Capture = pytest.CaptureFixture[str]


def download(bars: Bars, file: str = "target.gguf", start: int = 0) -> None:
    for done in range(start, 101, 20):
        bars(Status("pulling", "sha256:0", 100 * MIB, done * MIB, file))


@pytest.fixture
def watched(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HF_HUB_DISABLE_PROGRESS_BARS", raising=False)
    monkeypatch.setattr("eaglecpp.cli.progress.stderr_is_terminal", lambda: True)
    monkeypatch.setenv("TQDM_MININTERVAL", "0")


def test_a_bar_has_size_rate_and_time_left(watched: None, capsys: Capture) -> None:
    with Bars() as bars:
        bars(Status("pulling manifest"))
        bars(Status("pulling manifest"))
        download(bars)
        download(bars, "draft.gguf", start=60)
    out, err = capsys.readouterr()
    assert out == ""
    lines = err.replace("\r", "\n").splitlines()
    assert lines.count("pulling manifest") == 1
    first = [line for line in lines if line.startswith("pulling target.gguf")][-1]
    assert "100%" in first and "105M/105M" in first and "B/s]" in first and "<" in first
    resumed = next(line for line in lines if line.startswith("pulling draft.gguf"))
    assert "62.9M/105M" in resumed, "what was there already is not counted as fetched now"


def test_nothing_is_drawn_where_nobody_watches(
    watched: None, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_HUB_DISABLE_PROGRESS_BARS", "1")
    with Bars() as bars:
        download(bars)
    monkeypatch.delenv("HF_HUB_DISABLE_PROGRESS_BARS")
    monkeypatch.setattr("eaglecpp.cli.progress.stderr_is_terminal", lambda: False)
    with Bars() as bars:
        bars(Status("pulling manifest"))
        download(bars)
    assert capsys.readouterr().err == ""
