# SPDX-License-Identifier: MIT
"""How `run` puts its question together."""

from __future__ import annotations

import io
import sys
from typing import Any

import click
import pytest

from eaglecpp.cli.run import _question


@pytest.mark.parametrize(
    ("stdin", "words", "is_shown", "question"),
    [
        (b"", ("hello", "there"), False, b"hello there"),
        (b"a file\nof two lines\n", ("sum", "up"), False, b"a file\nof two lines\n\nsum up"),
        (b"only this\n", (), False, b"only this"),
        (b"\n", ("hello",), False, b"hello"),
        (b"", ("\udcff",), False, b"\xff"),
        (b"", (), False, click.UsageError),
        (None, ("hello",), True, b"hello"),
        (None, (), True, None),
        (None, (), False, click.UsageError),
    ],
)
def test_piped_input_goes_before_the_words_and_two_terminals_without_any_mean_a_chat(
    stdin: bytes | None,
    words: tuple[str, ...],
    is_shown: bool,
    question: Any,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """stdin: None = a terminal; is_shown: whether stdout is one"""
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin or b"")))
    monkeypatch.setattr(sys.stdin, "isatty", lambda: stdin is None)
    monkeypatch.setattr(sys.stdout, "isatty", lambda: is_shown)
    if question is click.UsageError:
        with pytest.raises(click.UsageError, match="no prompt"):
            _question(words)
    else:
        assert _question(words) == question
