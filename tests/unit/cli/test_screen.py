# SPDX-License-Identifier: MIT
"""Tests an answer on the screen (styles, wrapping, thinking), and the same text without styles in a pipe."""

from __future__ import annotations

import os
import random
import shutil

import pytest

from eaglecpp.cli.chat.screen import Screen, WordWrap
from eaglecpp.results import Piece

GREY, GREEN, RESET = "\x1b[90m", "\x1b[32m", "\x1b[0m"


@pytest.fixture(autouse=True)
def columns(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sets a terminal of 30 columns with colours."""
    for name in ("NO_COLOR", "CLICOLOR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(shutil, "get_terminal_size", lambda: os.terminal_size((30, 10)))


def answer(text: str) -> Piece:
    return Piece(text, is_thinking=False, is_accepted=False)


def drafted(text: str) -> Piece:
    return Piece(text, is_thinking=False, is_accepted=True)


def thought(text: str) -> Piece:
    return Piece(text, is_thinking=True, is_accepted=False)


def wrapped(texts: list[str], width: int = 30) -> str:
    wrap = WordWrap(lambda: width)
    return "".join(text for text, _ in ([part for text in texts for part in wrap.feed(text)] + wrap.flush()))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("    indented code stays as it is", "    indented code stays as it\nis"),
        ("quick brown foxes jump on lazy dogs", "quick brown foxes jump on lazy\ndogs"),
        ("a\n\nb", "a\n\nb"),
        ("x" * 70, "x" * 70),
        ("ab " + "x" * 70 + " cd", "ab " + "x" * 70 + " cd"),
        ("trailing   ", "trailing   "),
        ("\u4f60\u597d" * 10, "\u4f60\u597d" * 7 + "\u4f60\n" + "\u597d" + "\u4f60\u597d" * 2),
    ],
)
def test_lines_break_between_words(text: str, expected: str) -> None:
    assert wrapped([text]) == wrapped(list(text)) == expected
    assert wrapped([text], width=0) == text


def test_code_between_fences_keeps_its_lines() -> None:
    code = "```python\nx = 1  # a comment that is longer than the line\n```\n"
    text = f"Some words before it, more than a line:\n{code}and again some words, more than a line"
    expected = f"Some words before it, more than\na line:\n{code}and again some words, more than\na line"
    assert wrapped([text], 31) == wrapped(list(text), 31) == expected


def test_wrapping_only_turns_blanks_into_line_ends() -> None:
    chance = random.Random(1)
    for _ in range(100):
        text = "".join(chance.choices("ab \n\t\u4f60", k=chance.randrange(200)))
        cut = chance.randrange(len(text) + 1)
        out = wrapped([text[:cut], text[cut:]])
        assert out == wrapped([text])
        assert "".join(out.split()) == "".join(text.split())
        assert out.count("\n") >= text.count("\n")


def test_accepted_tokens_are_green_and_thoughts_grey(capsys: pytest.CaptureFixture[str]) -> None:
    screen = Screen(is_terminal=True)
    screen.show([answer("one "), drafted("two "), drafted("three")])
    screen.end()
    assert capsys.readouterr().out == f"one {GREEN}two{RESET}{GREEN} three{RESET}\n"
    screen.show([thought("hm"), answer("yes")])
    screen.end()
    assert capsys.readouterr().out.startswith(GREY)


@pytest.mark.parametrize(("name", "value"), [("NO_COLOR", "1"), ("CLICOLOR", "0"), ("TERM", "dumb")])
def test_colour_is_off_where_it_is_not_wanted(
    name: str, value: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(name, value)
    monkeypatch.setattr("eaglecpp.cli.chat.screen.stderr_is_terminal", lambda: True)
    monkeypatch.setattr("eaglecpp.cli.terminal.stderr_is_terminal", lambda: True)
    screen = Screen(is_terminal=True)
    screen.show([thought("hm"), answer("yes"), drafted(" sir")])
    screen.end()
    screen.note("a note")
    assert "\x1b" not in "".join(capsys.readouterr())


LONG = "word " * 40 + "\x1b[1m"
MARKED = "Thinking...\nhm\n...done thinking.\n\n"


@pytest.mark.parametrize(
    ("options", "pieces", "out"),
    [
        ({}, [thought("hm"), answer("yes")], f"{MARKED}yes\n"),
        ({}, [thought("hm")], f"{MARKED}\n"),
        ({"hide_thinking": True}, [thought("hm"), answer("yes")], "yes\n"),
        ({"echo": False}, [thought("hm"), answer("yes")], ""),
        ({}, [answer("a\x1b]0;t\x07b\rc\x9bd\te")], "a\u241b]0;t\u2407b\u240dc\ufffdd\te\n"),
        ({"is_terminal": False}, [thought("hm"), drafted(LONG)], f"{LONG}\n"),
    ],
)
def test_thinking_and_control_characters_on_a_screen_and_in_a_pipe(
    options: dict[str, bool], pieces: list[Piece], out: str, capsys: pytest.CaptureFixture[str]
) -> None:
    screen = Screen(**{"is_terminal": True} | options)
    screen.show(pieces)
    screen.end()
    shown = capsys.readouterr()
    plain = shown.out.replace(GREY, "").replace(RESET, "") if screen.is_terminal else shown.out
    assert (plain, shown.err) == (out, "")
