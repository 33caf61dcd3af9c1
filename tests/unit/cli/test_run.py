# SPDX-License-Identifier: MIT
"""How `run` puts its question together."""

from __future__ import annotations

import io
import sys

import click
import pytest

from eaglecpp.cli.run import _question


@pytest.fixture
def piped(monkeypatch: pytest.MonkeyPatch) -> io.BytesIO:
    """Standard input that is not a terminal."""
    data = io.BytesIO()
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(data))
    return data


@pytest.mark.parametrize(
    ("stdin", "words", "question"),
    [
        (b"", ("hello", "there"), b"hello there"),
        (b"a file\nof two lines\n", ("sum", "up"), b"a file\nof two lines\n\nsum up"),
        (b"only this\n", (), b"only this"),
        (b"\n", ("hello",), b"hello"),
        (b"", ("\udcff",), b"\xff"),
    ],
)
def test_piped_input_overrides_the_words(
    piped: io.BytesIO, stdin: bytes, words: tuple[str, ...], question: bytes
) -> None:
    piped.write(stdin)
    piped.seek(0)
    assert _question(words) == question


def test_nothing_to_ask_is_wrong_usage(piped: io.BytesIO) -> None:
    with pytest.raises(click.UsageError, match="no prompt"):
        _question(())


@pytest.mark.parametrize(("stdout", "question"), [(True, None), (False, click.UsageError)])
def test_a_terminal_without_a_prompt_means_a_chat(
    monkeypatch: pytest.MonkeyPatch, stdout: bool, question: object
) -> None:
    monkeypatch.setattr(sys.stdin, "isatty", lambda: True)
    monkeypatch.setattr(sys.stdout, "isatty", lambda: stdout)
    assert _question(("hello",)) == b"hello"
    if question is None:
        assert _question(()) is None
    else:
        with pytest.raises(click.UsageError, match="no prompt"):
            _question(())
