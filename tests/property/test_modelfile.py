# SPDX-License-Identifier: MIT
"""What holds for every Modelfile: printing is undone by reading, or refused; reading is total and honest."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from eaglecpp.modelfile import Command, Modelfile, ModelfileError, decode, format, parse, read

SIGNS = [
    '"',
    '"""',
    "#",
    "\n",
    "\r\n",
    "\r",
    " ",
    "\t",
    "\\",
    ":",
    "'",
    "\u00a0",
    "\u200d",
    "é",
    "FROM ",
    "a",
]
values = st.text() | st.lists(st.sampled_from(SIGNS)).map("".join)
instructions = st.sampled_from(
    [
        "model",
        "license",
        "template",
        "system",
        "adapter",
        "draft",
        "renderer",
        "parser",
        "requires",
        "stop",
        "top_k",
    ]
)
roles = st.sampled_from(["system", "user", "assistant"])
commands = st.builds(Command, instructions, values) | st.builds(
    Command, st.just("message"), st.builds("{}: {}".format, roles, values)
)
pragmas = st.builds(Command, st.sampled_from(["draft", "strategy", "chat_template", "wibble"]), values)
LINES = [
    "PARAMETER top_k -5\n",
    'PARAMETER stop "a b"\n',
    "PARAMETER temperature 5e-324\n",
    "PARAMETER use_mmap F\n",
    "MESSAGE user hi\n",
    'SYSTEM """x\r\n# y"""\n',
    "TEMPLATE {{ .Prompt }}\n",
    "REQUIRES v0.14\n",
    "#eaglecpp: strategy auto\n",
    "#eaglecpp: top_k 7\n",
]
words = [
    "FROM a\n",
    "FROM",
    "PARAMETER ",
    "top_k ",
    "MESSAGE ",
    "user ",
    "SYSTEM ",
    "#eaglecpp: ",
    "draft x",
    *SIGNS,
]
sources = st.lists(st.sampled_from([*words, *LINES])).map("".join) | st.text()
files = st.lists(st.sampled_from(LINES)).map("".join).map("FROM a\n{}".format)


@given(st.lists(commands, min_size=1), st.lists(pragmas))
def test_printing_is_undone_by_reading_or_refused(made: list[Command], said: list[Command]) -> None:
    made = [Command("model", "a"), *made]
    try:
        text = format(made, said)
    except ModelfileError:
        return
    document = read(text)
    assert list(document.commands) == made
    assert list(document.pragmas) == said
    assert document.notices == ()
    assert parse(text, strict=True) == made


@given(
    st.text(
        st.characters(exclude_categories=["Cc", "Cf", "Cs", "Co", "Cn", "Zs", "Zl", "Zp"])
        | st.sampled_from(' "\n\t#')
    )
)
def test_nothing_is_refused_without_need(value: str) -> None:
    """Only a line that ends in triple quotes, other than the last, cannot be written."""
    closes = any(line.rstrip(" \t").endswith('"""') for line in value.split("\n")[:-1])
    try:
        text = format([Command("model", "a"), Command("system", value)])
    except ModelfileError:
        assert closes
    else:
        assert not closes
        assert parse(text)[1].args == value


@given(sources)
def test_reading_printing_reading(source: str) -> None:
    try:
        document = read(source)
    except ModelfileError:
        return
    try:
        text = format(document.commands, document.pragmas)
    except ModelfileError:
        return
    again = read(text)
    assert (again.commands, again.pragmas) == (document.commands, document.pragmas)


@given(sources)
def test_strict_and_default_reading_agree_on_commands(source: str) -> None:
    try:
        strict = parse(source, strict=True)
    except ModelfileError as error:
        try:
            parse(source)
        except ModelfileError as other:
            assert other.message == error.message
        else:
            raise AssertionError("only strict reading refuses this") from error
    else:
        assert parse(source) == strict


@given(sources)
def test_errors_point_into_the_text(source: str) -> None:
    try:
        parse(source, file="M")
    except ModelfileError as error:
        if error.message == "no FROM line":
            return
        assert error.line is not None and error.column is not None
        assert 1 <= error.line <= source.count("\n") + source.count("\r") + 1
        assert str(error).startswith(f"M:{error.line}:{error.column}: ")


@given(st.binary())
def test_any_bytes_are_a_text(data: bytes) -> None:
    assert isinstance(decode(data), str)


@given(files)
def test_a_checked_modelfile_prints_as_itself(source: str) -> None:
    modelfile = Modelfile.from_text(source)
    assert Modelfile.from_text(modelfile.to_text()) == modelfile
