# SPDX-License-Identifier: MIT
"""Tests that text from a model, a file or a server reaches a terminal without control characters."""

from __future__ import annotations

import ast
import logging
from pathlib import Path

import pytest

import eaglecpp.cli
from eaglecpp.cli.chat.screen import Screen
from eaglecpp.cli.terminal import LogFormatter, note, write, write_json
from eaglecpp.human import visible
from eaglecpp.store.errors import Status
from eaglecpp.store.progress import Bars

EVIL = "a\x1b]0;owned\x07\x1b[2J\x9b31m\r\x7f\u202eb\n"
SHOWN = "a␛]0;owned␇␛[2J\ufffd31m␍␡\ufffdb\n"


@pytest.fixture(params=[True, False], ids=["terminal", "pipe"])
def is_terminal(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> bool:
    for name in (
        "eaglecpp.cli.terminal.stdout_is",
        "eaglecpp.cli.terminal.stderr_is",
        "eaglecpp.cli.chat.screen.stderr_is",
    ):
        monkeypatch.setattr(f"{name}_terminal", lambda: bool(request.param))
    return bool(request.param)


def test_every_output_is_clean(is_terminal: bool, capsys: pytest.CaptureFixture[str]) -> None:
    expected = SHOWN if is_terminal else EVIL
    assert visible(EVIL) == SHOWN
    write(EVIL)
    note(EVIL)
    output = capsys.readouterr()
    assert output.out == expected
    assert ("\x9b" in output.err) != is_terminal
    write_json({"a": "\x1b\x9b"})
    assert capsys.readouterr().out == (
        '{"a": "\\u001b\ufffd"}\n' if is_terminal else '{"a": "\\u001b\x9b"}\n'
    )
    record = logging.LogRecord("eaglecpp", logging.WARNING, "", 0, "%s", (EVIL,), None)
    assert LogFormatter("%(message)s").format(record) == expected
    Screen(is_terminal=is_terminal).note("\x9bx")
    assert ("\x9b" in capsys.readouterr().err) != is_terminal
    eaglecpp.cli.main(["show", "\x9bx"])
    assert ("\x9b" in capsys.readouterr().err) != is_terminal
    Bars()(Status(EVIL))
    assert "\x1b" not in capsys.readouterr().err


def test_only_one_module_writes_to_the_terminal() -> None:
    """Tests that only the module `terminal` writes to the terminal. It removes control characters from all
    output; another module's output would keep them.
    """
    writes = {"print", "click.echo", "click.secho", "sys.stdout.write", "sys.stderr.write"}
    found = {
        path.name
        for path in Path(eaglecpp.cli.__file__).parent.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Call) and ast.unparse(node.func) in writes
    }
    assert found == {"terminal.py"}
