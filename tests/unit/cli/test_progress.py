# SPDX-License-Identifier: MIT
"""Bars of downloads: one per file, with size, rate and time left; nothing where nobody watches."""

from __future__ import annotations

import pytest

from eaglecpp.cli.progress import Bars
from eaglecpp.store import Status

MIB = 1 << 20


def download(bars: Bars, file: str, start: int = 0) -> None:
    for done in range(start, 101, 20):
        bars(Status("pulling", "sha256:0", 100 * MIB, done * MIB, file))


@pytest.mark.parametrize(("is_terminal", "disabled"), [(True, ""), (True, "1"), (False, "")])
def test_a_bar_has_size_rate_and_time_left_where_somebody_watches(
    is_terminal: bool, disabled: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_HUB_DISABLE_PROGRESS_BARS", disabled)
    monkeypatch.setenv("TQDM_MININTERVAL", "0")
    monkeypatch.setattr("eaglecpp.cli.progress.stderr_is_terminal", lambda: is_terminal)
    with Bars() as bars:
        bars(Status("pulling manifest"))
        bars(Status("pulling manifest"))
        download(bars, "target.gguf")
        download(bars, "draft.gguf", start=60)
    out, err = capsys.readouterr()
    assert out == "" and bool(err) == (is_terminal and not disabled)
    if err:
        lines = err.replace("\r", "\n").splitlines()
        assert lines.count("pulling manifest") == 1
        first = [line for line in lines if line.startswith("pulling target.gguf")][-1]
        assert "100%" in first and "105M/105M" in first and "B/s]" in first and "<" in first
        resumed = next(line for line in lines if line.startswith("pulling draft.gguf"))
        assert "62.9M/105M" in resumed, "what was there already is not counted as fetched now"
