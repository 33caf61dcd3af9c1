# SPDX-License-Identifier: MIT
"""Tests reading and printing of Modelfiles: positions of errors, dropped characters, pragmas, content that
cannot be printed.
"""

from __future__ import annotations

import codecs
import time
from pathlib import Path

import pytest

from eaglecpp.modelfile import Command, Modelfile, ModelfileError, decode, parse, read

pytestmark = pytest.mark.alone  # these tests measure time


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("FROM a\n\n  RUN b\n", "Modelfile:3:3: command must be one of"),
        ("FROM a\r\n\r\nRUN b\r\n", "Modelfile:3:1: command must be one of"),
        ("FROM a\nSYSTEM\n", "Modelfile:2:1: command must be one of"),
        ("FROM a\nMESSAGE robot x\n", "Modelfile:2:9: message role must be one of"),
        ("FROM a\nPARAMETER top-k 5\n", "Modelfile:2:11: unexpected EOF: top"),
        ('FROM a\nSYSTEM "x" y\nLICENSE l\n', "Modelfile:2:8: unexpected EOF"),
        ('FROM a\nSYSTEM   """x\ny\nz', "Modelfile:2:10: unexpected EOF"),
    ],
)
def test_errors_point_at_the_word_or_the_open_quote(text: str, shown: str) -> None:
    with pytest.raises(ModelfileError) as caught:
        parse(text, file="Modelfile")
    assert str(caught.value).startswith(shown)


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16"])
def test_encodings(encoding: str) -> None:
    data = "FROM é\n".encode(encoding)
    for written in (data, codecs.BOM_UTF16_BE + "FROM é\n".encode("utf-16-be")):
        assert decode(written) == "FROM é\n"
        assert parse(written) == [Command("model", "é")]


def test_pragmas_are_not_commands() -> None:
    text = "#eaglecpp: strategy chain:4\nFROM a\n  # eaglecpp: PARAMETER type_k q8_0\n# plain\n"
    document = read(text)
    assert document.commands == (Command("model", "a"),)
    assert document.pragmas == (Command("strategy", "chain:4"), Command("type_k", "q8_0"))
    assert [pragma.line for pragma in document.pragmas] == [1, 3]
    assert parse(text) == [Command("model", "a")]


def test_a_malformed_pragma_and_invalid_bytes_are_reported() -> None:
    document = read(b"#eaglecpp: 5\n#eaglecpp learn on\n# eaglecpp is fast\nFROM a\nSYSTEM caf\xe9\n")
    assert document.pragmas == ()
    assert ["#eaglecpp: NAME VALUE" in notice.message for notice in document.notices] == [True, True, False]
    assert "pragma 'learn on' ignored" in document.notices[1].message
    assert "not UTF-8" in document.notices[2].message


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("\n", r"more than 4194304 bytes \(is it a Modelfile\?\)"),
        ("\0", "more than 4194304 bytes"),
        ("PARAMETER stop x\n", "Modelfile:258: stop: expected at most 256 texts, found 257"),
        ("#eaglecpp: stop x\n", "found 1200 #eaglecpp: lines; the maximum is 1000"),
        ("#eaglecpp: rpc x\n", "found 1200 #eaglecpp: lines; the maximum is 1000"),
        ("#eaglecpp: 1\n", "more than 20000 instructions"),
        ("MESSAGE user x\n", "Modelfile:20002:1: more than 20000 instructions"),
        ("SYSTEM \x01\n", "more than 20000 instructions"),
    ],
)
def test_a_file_that_is_too_long_is_refused_at_once(line: str, message: str) -> None:
    n_lines = {"\n": 5 << 20, "\0": 5 << 20}.get(
        line, 1200 if "257" in message or "1200" in message else 25_000
    )
    started = time.thread_time()
    with pytest.raises(ModelfileError, match=message):
        Modelfile.from_text(b"FROM x\n" + n_lines * line.encode(), file="Modelfile")
    assert time.thread_time() - started < 3


def test_a_file_is_not_read_beyond_its_limit(tmp_path: Path) -> None:
    path = tmp_path / "Modelfile"
    with path.open("wb") as stream:
        stream.truncate(1 << 40)
    with pytest.raises(ModelfileError, match="more than 4194304 bytes"):
        Modelfile.load(path)
