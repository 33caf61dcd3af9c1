# SPDX-License-Identifier: MIT
"""Reading and printing Modelfiles: places of errors, dropped characters, pragmas, what can be written."""

from __future__ import annotations

import codecs

import pytest

from eaglecpp.modelfile import Command, ModelfileError, decode, format, parse, read

VALUES = {
    "quoted": '"q"',
    "open quote": '"open',
    "triple quotes": '"""',
    "quotes inside": 'He said "no" twice',
    "tab first": "\tx",
    "CR LF": "a\r\nb",
    "comment sign": "#x",
    "single quotes": "'s'",
    "empty": "",
    "blank": "   ",
    "newline last": "x\n",
    "newline first": "\n\nx",
    "inner line ends in a quote": 'a "b"\nc',
    "inner line ends in two quotes": 'a ""\nc',
    "last line ends in triple quotes": 'a\nb"""',
    "backslashes": "a\\\nb\\n",
    "emoji newer than this Python's tables": "\U0001fae8",
}


@pytest.mark.parametrize("instruction", ["system", "template", "license", "stop", "model", "draft", "parser"])
@pytest.mark.parametrize("value", VALUES.values(), ids=VALUES.keys())
def test_every_expressible_value_survives_printing(value: str, instruction: str) -> None:
    commands = [Command("model", "a"), Command(instruction, value)]
    assert parse(format(commands)) == commands


@pytest.mark.parametrize("value", VALUES.values(), ids=VALUES.keys())
def test_messages_survive_printing(value: str) -> None:
    commands = [Command("model", "a"), Command("message", f"user: {value}")]
    assert parse(format(commands), strict=True) == commands


@pytest.mark.parametrize(
    ("value", "problem"),
    [
        ('a"""\nb', "a line before the last"),
        ('a"""  \r\nb', "a line before the last"),
        ("caf\u00e9\u00a0noir", r"U\+00A0"),
        ("family \U0001f468\u200d\U0001f469", r"U\+200D"),
        ("bell\x07", r"U\+0007"),
        ("\ud800", r"U\+D800"),
    ],
)
def test_inexpressible_values_are_refused(value: str, problem: str) -> None:
    with pytest.raises(ModelfileError, match=problem):
        format([Command("system", value)])


def test_printed_form_is_the_common_one() -> None:
    commands = parse('from ./a.gguf\nparameter stop "<|im_end|>"\nparameter stop "a b"\nsystem Be brief.\n')
    assert format(commands) == (
        'FROM ./a.gguf\nPARAMETER stop <|im_end|>\nPARAMETER stop """a b"""\nSYSTEM """Be brief."""\n'
    )


@pytest.mark.parametrize("command", [Command("message", "Robot: x"), Command("top-k", "5")])
def test_impossible_commands_are_refused(command: Command) -> None:
    with pytest.raises(ModelfileError):
        format([command])


@pytest.mark.parametrize(
    ("text", "line", "column", "shown"),
    [
        ("FROM a\n\n  RUN b\n", 3, 3, "Modelfile:3:3: command must be one of"),
        ("FROM a\r\n\r\nRUN b\r\n", 3, 1, "Modelfile:3:1: command must be one of"),
        ("FROM a\nSYSTEM\n", 2, 1, "Modelfile:2:1: command must be one of"),
        ("FROM a\nMESSAGE robot x\n", 2, 9, "Modelfile:2:9: message role must be one of"),
        ("FROM a\nPARAMETER top-k 5\n", 2, 11, "Modelfile:2:11: unexpected EOF: top"),
        ('FROM a\nSYSTEM "x" y\nLICENSE l\n', 2, 8, "Modelfile:2:8: unexpected EOF"),
        ('FROM a\nSYSTEM   """x\ny\nz', 2, 10, "Modelfile:2:10: unexpected EOF"),
    ],
)
def test_errors_point_at_the_word_or_the_open_quote(text: str, line: int, column: int, shown: str) -> None:
    with pytest.raises(ModelfileError) as caught:
        parse(text, file="Modelfile")
    assert (caught.value.start_line, caught.value.column) == (line, column)
    assert str(caught.value).startswith(shown)


def test_commands_know_their_lines() -> None:
    commands = parse('# c\r\nFROM a\r\nSYSTEM """x\r\ny"""\r\nLICENSE z')
    assert [(command.name, command.line) for command in commands] == [
        ("model", 2),
        ("system", 3),
        ("license", 5),
    ]


def test_blanks_behind_a_closing_quote_do_not_count() -> None:
    commands = parse('FROM a\nSYSTEM """x\ny"""  \t\nLICENSE "z\nz" \n')
    assert [command.args for command in commands] == ["a", "x\ny", "z\nz"]


def test_dropped_characters_are_reported() -> None:
    document = read("FROM a\nSYSTEM caf\u00e9\u00a0noir\u200b\n")
    assert document.commands[1].args == "caf\u00e9noir"
    assert [notice.line for notice in document.notices] == [2]
    assert "U+00A0, U+200B" in document.notices[0].message


@pytest.mark.parametrize(
    "data",
    [
        "FROM é\n".encode(),
        codecs.BOM_UTF8 + "FROM é\n".encode(),
        codecs.BOM_UTF16_LE + "FROM é\n".encode("utf-16-le"),
        codecs.BOM_UTF16_BE + "FROM é\n".encode("utf-16-be"),
    ],
)
def test_encodings(data: bytes) -> None:
    assert decode(data) == "FROM é\n"
    assert parse(data) == [Command("model", "é")]


def test_invalid_bytes_become_the_replacement_character() -> None:
    assert parse(b"FROM a\xffb\n") == [Command("model", "a\ufffdb")]


def test_pragmas_are_no_commands() -> None:
    text = "#eaglecpp: strategy chain:4\nFROM a\n  # eaglecpp: PARAMETER type_k q8_0\n# plain\n"
    document = read(text)
    assert document.commands == (Command("model", "a"),)
    assert document.pragmas == (Command("strategy", "chain:4"), Command("type_k", "q8_0"))
    assert [pragma.line for pragma in document.pragmas] == [1, 3]
    assert parse(text) == [Command("model", "a")]


def test_strict_reading_sees_no_pragmas() -> None:
    assert read("#eaglecpp: wibble\n#eaglecpp:\nFROM a\n", strict=True).pragmas == ()


def test_a_pragma_inside_a_value_is_text() -> None:
    document = read('FROM a\nSYSTEM """\n#eaglecpp: strategy off\n"""\n')
    assert document.pragmas == ()


def test_a_malformed_pragma_is_reported_and_ignored() -> None:
    document = read("#eaglecpp: 5\nFROM a\n")
    assert document.pragmas == ()
    assert "expected '#eaglecpp: NAME VALUE'" in document.notices[0].message


def test_pragmas_survive_printing() -> None:
    pragmas = (Command("draft", "./my head.gguf"), Command("stop", '"x" '), Command("strategy", "auto"))
    text = format([Command("model", "a")], pragmas)
    assert read(text).pragmas == pragmas


@pytest.mark.parametrize(
    "pragma", [Command("parameter", "x"), Command("Draft", "x"), Command("draft", "a\nb")]
)
def test_impossible_pragmas_are_refused(pragma: Command) -> None:
    with pytest.raises(ModelfileError):
        format([], [pragma])


def test_a_long_open_quote_is_read_in_linear_time() -> None:
    text = "FROM a\nLICENSE " + '"""' + "line of a license\n" * 200_000 + '"""\n'
    assert len(parse(text)[1].args) == 18 * 200_000
