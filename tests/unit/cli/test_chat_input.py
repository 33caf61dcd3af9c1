# SPDX-License-Identifier: MIT
"""Tests how typed lines become messages and commands."""

from __future__ import annotations

import pytest

from eaglecpp.cli.chat.input import is_command, is_open, read_block


def typed(*lines: str) -> str:
    """Types lines one after the other, and checks the prompt of each line. Returns the result of
    `read_block`.
    """
    rest = list(lines)

    def ask(prompt: str, default: str) -> str:
        assert prompt == (">>> " if len(rest) == len(lines) else "... ")
        return rest.pop(0)

    text = read_block(ask)
    assert not rest, "the block ended before its last line was read"
    return text


@pytest.mark.parametrize(
    ("lines", "text"),
    [
        (["hello"], "hello"),
        (['"""one', "two", 'three"""'], '"""one\ntwo\nthree"""'),
        (['"""', "a", "", "b", '"""  '], '"""\na\n\nb\n"""  '),
        (['"""all in one"""'], '"""all in one"""'),
        (['"""x"""y', '"""'], '"""x"""y\n"""'),
        (['/set system """You', 'are terse."""'], '/set system """You\nare terse."""'),
        (['say """hi'], 'say """hi'),
        (["pasted\nblock\n"], "pasted\nblock\n"),
    ],
)
def test_a_block_continues_until_its_quotes_are_closed(lines: list[str], text: str) -> None:
    assert typed(*lines) == text
    assert not is_open(text)


@pytest.mark.parametrize(
    ("text", "is_one"),
    [
        ("/bye\n", True),
        ('/set system """a\nb"""', True),
        (" /bye", False),
        ("// a comment\nint main() {}", False),
    ],
)
def test_a_slash_at_the_beginning_of_one_line_is_a_command(text: str, is_one: bool) -> None:
    assert is_command(text) is is_one
