# SPDX-License-Identifier: MIT
"""tests/newest.py: the pin is found and moved wherever it stands, and the report names what broke."""

from __future__ import annotations

import shutil
import sys
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def newest() -> ModuleType:
    spec = spec_from_file_location("newest", ROOT / "tests" / "newest.py")
    assert spec is not None and spec.loader is not None
    module = sys.modules["newest"] = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def checkout(newest: ModuleType, tmp_path: Path) -> Path:
    for name in newest.PINS:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, tmp_path / name)
    return tmp_path


def test_the_pin_is_moved_everywhere(newest: ModuleType, checkout: Path) -> None:
    old = newest.pinned(checkout)
    newest.move_pin(checkout, "9.8.7")
    assert newest.pinned(checkout) == "9.8.7"
    for name in newest.PINS:
        assert old not in (checkout / name).read_text(encoding="utf-8")


def test_a_pin_that_is_elsewhere_is_noticed(newest: ModuleType, checkout: Path) -> None:
    path = checkout / "native/cmake/llama.cmake"
    path.write_text(
        path.read_text(encoding="utf-8").replace(newest.pinned(checkout), "1.0"), encoding="utf-8"
    )
    with pytest.raises(ValueError, match=r"llama\.cmake: expected the version .* 1 times"):
        newest.move_pin(checkout, "9.8.7")


def test_the_report_names_what_failed(newest: ModuleType) -> None:
    shown = (
        "....F\nFAILED tests/unit/test_taps.py::test_one - AssertionError: 1\n"
        "ERROR tests/e2e/test_run.py::test_two\n\t 27 - draft_graph (Failed)\n1 failed\n"
    )
    parts = [newest.Outcome("build", True, 61.2, "noise"), newest.Outcome("python", False, 7.0, shown)]
    text = newest.report("1.0", "2.0", parts)
    assert "| build | ok | 61 |" in text and "| python | BROKEN | 7 |" in text
    assert "- `FAILED tests/unit/test_taps.py::test_one - AssertionError: 1`" in text
    assert "- `ERROR tests/e2e/test_run.py::test_two`" in text
    assert "- `27 - draft_graph (Failed)`" in text
    assert "noise" not in text


def test_a_part_goes_on_until_a_command_fails(newest: ModuleType, tmp_path: Path) -> None:
    def python(program: str) -> list[str]:
        return [sys.executable, "-c", program]

    told = newest.run_part("x", [python("print('one')"), python("exit(3)"), python("print('two')")], tmp_path)
    assert not told.ok and "one" in told.output and "two" not in told.output.split("exit status 3")[0]


def test_the_commit_of_the_library_moves_with_it(newest: ModuleType, tmp_path: Path) -> None:
    for name in newest.COMMITS:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text((ROOT / name).read_text(encoding="utf-8"), encoding="utf-8")
    newest.move_commit(tmp_path, "abcdef1-dirty")
    assert '_LLAMA_COMMIT = "abcdef1"' in (tmp_path / newest.COMMITS[0]).read_text(encoding="utf-8")
    assert 'known_commit = "abcdef1"' in (tmp_path / newest.COMMITS[1]).read_text(encoding="utf-8")
    assert "expected abcdef1" in (tmp_path / newest.COMMITS[2]).read_text(encoding="utf-8")
    (tmp_path / newest.COMMITS[1]).write_text("nothing", encoding="utf-8")
    with pytest.raises(ValueError, match=r"hook\.cpp: expected the commit abcdef1"):
        newest.move_commit(tmp_path, "1234567")
