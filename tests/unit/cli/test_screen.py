# SPDX-License-Identifier: MIT
"""An answer on the screen: styles, wrapping, thinking; and nothing of that in a pipe."""

from __future__ import annotations

import os
import shutil
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from eaglecpp.chat.reader import Piece
from eaglecpp.cli.chat.screen import Screen, WordWrap

GREY, GREEN, RESET = "\x1b[90m", "\x1b[32m", "\x1b[0m"


@pytest.fixture(autouse=True)
def columns(monkeypatch: pytest.MonkeyPatch) -> None:
    """The terminal, where there is one, has 30 columns and shows colours."""
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
    parts = [part for text in texts for part in wrap.feed(text)] + wrap.flush()
    return "".join(text for text, _ in parts)


def test_lines_break_between_words() -> None:
    text = "the quick brown fox jumps over the lazy dog and sleeps"
    assert wrapped([text]) == "the quick brown fox jumps over\nthe lazy dog and sleeps"
    assert wrapped(list(text)) == wrapped([text])


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("    indented code stays as it is", "    indented code stays as it\nis"),
        ("a\n\nb", "a\n\nb"),
        ("x" * 70, "x" * 70),
        ("ab " + "x" * 70 + " cd", "ab " + "x" * 70 + " cd"),
        ("trailing   ", "trailing   "),
        ("\u4f60\u597d" * 10, "\u4f60\u597d" * 7 + "\u4f60\n" + "\u597d" + "\u4f60\u597d" * 2),
    ],
)
def test_what_wrapping_leaves_alone(text: str, expected: str) -> None:
    assert wrapped([text]) == expected


@given(st.text(st.sampled_from("ab \n\t\u4f60"), max_size=200), st.lists(st.integers(0, 200), max_size=5))
def test_wrapping_only_turns_blanks_into_line_ends(text: str, cuts: list[int]) -> None:
    places = [0, *sorted(min(cut, len(text)) for cut in cuts), len(text)]
    out = wrapped([text[a:b] for a, b in pairwise(places)])
    assert out == wrapped([text])
    assert "".join(out.split()) == "".join(text.split())
    assert out.count("\n") >= text.count("\n")


def test_all_that_a_chat_says_breaks_between_words(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("eaglecpp.cli.chat.screen.stderr_is_terminal", lambda: True)
    text = "model · drafter draft.gguf · context 2048 tokens\nstrategy:   auto, decided each round"
    broken = "model · drafter draft.gguf ·\ncontext 2048 tokens\nstrategy:   auto, decided each\nround"
    screen = Screen(is_terminal=True)
    screen.say(text)
    screen.note(text)
    assert capsys.readouterr() == (broken + "\n", broken + "\n")
    screen.say(text, verbatim=True)
    screen.note(text, verbatim=True)
    Screen(is_terminal=True, wrap=False).say(text)
    assert capsys.readouterr() == (2 * (text + "\n"), text + "\n")
    Screen(is_terminal=False).say(text)
    assert capsys.readouterr().out == text + "\n"


def test_width_zero_wraps_nothing() -> None:
    text = "word " * 40
    assert wrapped([text], width=0) == text


def test_accepted_tokens_are_green(capsys: pytest.CaptureFixture[str]) -> None:
    screen = Screen(is_terminal=True)
    screen.show([answer("one "), drafted("two "), drafted("three")])
    screen.end()
    assert capsys.readouterr().out == f"one {GREEN}two{RESET}{GREEN} three{RESET}\n"
    screen.color = False
    screen.show([answer("one "), drafted("two")])
    screen.end()
    assert capsys.readouterr().out == "one two\n"


@pytest.mark.parametrize(("name", "value"), [("NO_COLOR", "1"), ("CLICOLOR", "0"), ("TERM", "dumb")])
def test_colour_is_off_where_it_is_not_wanted_and_on_when_asked(
    name: str, value: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(name, value)
    monkeypatch.setattr("eaglecpp.cli.chat.screen.stderr_is_terminal", lambda: True)
    monkeypatch.setattr("eaglecpp.cli.terminal.stderr_is_terminal", lambda: True)
    for color in (None, True):
        screen = Screen(color=color, is_terminal=True)
        screen.show([thought("hm"), answer("yes"), drafted(" sir")])
        screen.end()
        screen.note("a note")
    none, asked = capsys.readouterr().out.split("yes")[1:]
    assert "\x1b" not in none
    assert asked == f"{GREEN} sir{RESET}\n"


def test_thinking_is_grey_between_ollamas_marks(capsys: pytest.CaptureFixture[str]) -> None:
    screen = Screen(is_terminal=True)
    screen.show([thought("hm"), answer("yes")])
    screen.end()
    out = capsys.readouterr().out
    plain = out.replace(GREY, "").replace(RESET, "")
    assert plain == "Thinking...\nhm\n...done thinking.\n\nyes\n"
    assert out.startswith(GREY) and out.endswith("yes\n")


def test_hidden_thinking_leaves_no_trace(capsys: pytest.CaptureFixture[str]) -> None:
    screen = Screen(hide_thinking=True, is_terminal=True)
    screen.show([thought("hm"), answer("yes")])
    screen.end()
    captured = capsys.readouterr()
    assert (captured.out, captured.err) == ("yes\n", "")


def test_an_answer_that_ends_in_thought_is_closed(capsys: pytest.CaptureFixture[str]) -> None:
    screen = Screen(is_terminal=True)
    screen.show([thought("hm")])
    screen.end()
    screen.show([answer("next")])
    screen.end()
    out = capsys.readouterr().out.replace(GREY, "").replace(RESET, "")
    assert out == "Thinking...\nhm\n...done thinking.\n\n\nnext\n"


def test_control_characters_cannot_rewrite_the_screen(capsys: pytest.CaptureFixture[str]) -> None:
    screen = Screen(is_terminal=True)
    screen.show([answer("a\x1b]0;title\x07b\rc\x9bd\te")])
    screen.end()
    assert capsys.readouterr().out == "a\u241b]0;title\u2407b\u240dc\ufffdd\te\n"
    screen.say("a template\nwith \x1b[2J")
    assert capsys.readouterr().out == "a template\nwith \u241b[2J\n"


def test_a_pipe_gets_the_answer_alone_and_as_it_is(capsys: pytest.CaptureFixture[str]) -> None:
    screen = Screen(is_terminal=False)
    text = "word " * 40 + "\x1b[1m"
    screen.show([thought("hm"), drafted(text)])
    screen.end()
    captured = capsys.readouterr()
    assert captured.out == text + "\n"
    assert captured.err == "Thinking...\nhm\n...done thinking.\n\n"


def test_without_echo_nothing_is_shown(capsys: pytest.CaptureFixture[str]) -> None:
    screen = Screen(echo=False)
    screen.show([thought("hm"), answer("yes")])
    screen.end()
    captured = capsys.readouterr()
    assert (captured.out, captured.err) == ("", "")
