# SPDX-License-Identifier: MIT
"""Tests the progress bars of downloads: one bar per file, with size, rate and remaining time. Output to
anything but a terminal has no bars.
"""

from __future__ import annotations

import sys
from types import ModuleType

import pytest

from eaglecpp.store import Status
from eaglecpp.store.progress import Bars, new_bar

MIB = 1 << 20


def download(bars: Bars, file: str, start: int = 0) -> None:
    for done in range(start, 101, 20):
        bars(Status("pulling", "sha256:0", 100 * MIB, done * MIB, file))


@pytest.mark.parametrize(
    ("where", "disabled"), [("terminal", ""), ("notebook", ""), ("terminal", "1"), ("pipe", "")]
)
def test_a_bar_has_size_rate_and_time_left_on_a_terminal(
    where: str, disabled: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_HUB_DISABLE_PROGRESS_BARS", disabled)
    monkeypatch.setattr("eaglecpp.store.progress.new_bar", lambda *a, **k: new_bar(*a, mininterval=0, **k))
    monkeypatch.setattr("sys.stderr.isatty", lambda: where == "terminal")
    if where == "notebook":
        monkeypatch.setitem(sys.modules, "ipykernel", ModuleType("ipykernel"))
    with Bars() as bars:
        bars(Status("pulling manifest"))
        bars(Status("pulling manifest"))
        download(bars, "target.gguf")
        download(bars, "draft.gguf", start=60)
    out, err = capsys.readouterr()
    assert out == "" and bool(err) == (where != "pipe" and not disabled)
    if err:
        lines = err.replace("\r", "\n").splitlines()
        assert lines.count("pulling manifest") == 1
        first = [line for line in lines if line.startswith("pulling target.gguf")][-1]
        assert "100%" in first and "105 MB of 105 MB, " in first and "B/s" in first and " left" in first
        resumed = next(line for line in lines if line.startswith("pulling draft.gguf"))
        assert " 60%" in resumed, "a resumed download must start at 60 %"
