# SPDX-License-Identifier: MIT
"""Tests properties of every Modelfile. A printed Modelfile reads back as the same value, unless printing is
refused. Reading a text either succeeds, or raises an error that names the position of the mistake.
"""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from eaglecpp.modelfile import Command, Modelfile, ModelfileError, decode, format, parse, read

SIGNS = ['"', '"""', "#", "\n", "\r\n", "\r", " ", "\t", "\\", ":", "'", "\u00a0", "\u200d", "é", "FROM "]
values = st.text() | st.lists(st.sampled_from(SIGNS)).map("".join)
PRAGMAS = ("strategy", "chat_template", "wibble")
instructions = st.sampled_from(
    ["model", "license", "template", "system", "adapter", "draft", "renderer", "parser", "requires", "stop"]
)
roles = st.sampled_from(["system", "user", "assistant"])
commands = st.builds(Command, instructions, values) | st.builds(
    Command, st.just("message"), st.builds("{}: {}".format, roles, values)
)
pragmas = st.builds(Command, st.sampled_from(PRAGMAS), values)
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
words = ["FROM a\n", "FROM", "PARAMETER ", "top_k ", "MESSAGE ", "user ", "SYSTEM ", "#eaglecpp: ", *SIGNS]
sources = st.lists(st.sampled_from([*words, *LINES])).map("".join) | st.text()
files = st.lists(st.sampled_from(LINES)).map("".join).map("FROM a\n{}".format)


@settings(max_examples=500)
@given(commands | pragmas)
def test_reading_undoes_printing_or_it_is_refused(made: Command) -> None:
    """Tests that reading undoes printing. The test uses one message at a time, because printing is refused as
    soon as a single message cannot be written.
    """
    is_pragma = made.name in PRAGMAS
    written = [Command("model", "a")] if is_pragma else [Command("model", "a"), made]
    said = [made] if is_pragma else []
    try:
        text = format(written, said)
    except ModelfileError:
        return
    document = read(text)
    assert (list(document.commands), list(document.pragmas)) == (written, said)
    assert document.notices == ()


@given(
    st.text(
        st.characters(exclude_categories=["Cc", "Cf", "Cs", "Co", "Cn", "Zs", "Zl", "Zp"])
        | st.sampled_from(' "\n\t#')
    )
)
def test_only_unprintable_modelfiles_are_refused(value: str) -> None:
    """Only a line that ends in triple quotes cannot be written, unless it is the last line."""
    closes = any(line.rstrip(" \t").endswith('"""') for line in value.split("\n")[:-1])
    try:
        text = format([Command("model", "a"), Command("system", value)])
    except ModelfileError:
        assert closes
    else:
        assert not closes
        assert parse(text)[1].args == value


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
