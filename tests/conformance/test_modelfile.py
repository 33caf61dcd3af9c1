# SPDX-License-Identifier: MIT
"""Modelfiles as Ollama reads them: every case was produced by Ollama's own parser.

`modelfile.jsonl`, one case per line: `src` (or `src_hex`) the file; `cmds` its commands; `err` why it is
refused (`COMMAND@n` and `ROLE@n` with Ollama's line, `EOF` or `EOF:word`, `NOFROM`); `req` and `cerr` the
create request or its refusal, in a directory that holds target.gguf and head.gguf.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from eaglecpp.modelfile import Modelfile, ModelfileError, create_request, parse

CASES = [
    json.loads(line) for line in Path(__file__).with_name("modelfile.jsonl").read_text("utf-8").splitlines()
]
ids = [case["id"] for case in CASES]


def source(case: dict[str, Any]) -> str | bytes:
    return bytes.fromhex(case["src_hex"]) if "src_hex" in case else str(case["src"])


def refusal(error: ModelfileError) -> str:
    """The error in the notation of the cases."""
    if error.message == "no FROM line":
        return "NOFROM"
    if error.message.startswith("command must be one of"):
        return f"COMMAND@{error.line}"
    if error.message.startswith("message role must be one of"):
        return f"ROLE@{error.line}"
    return error.message.replace("unexpected EOF: ", "EOF:").replace("unexpected EOF", "EOF")


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    for seed, name in enumerate(("target.gguf", "head.gguf")):
        (tmp_path / name).write_bytes(b"GGUF" + bytes([seed]) * 600)
    return tmp_path


def test_all_cases_are_there() -> None:
    assert len(CASES) == 61


@pytest.mark.parametrize("strict", [True, False], ids=["strict", "default"])
@pytest.mark.parametrize("case", CASES, ids=ids)
def test_commands_or_refusal(case: dict[str, Any], strict: bool) -> None:
    if "err" in case:
        with pytest.raises(ModelfileError) as caught:
            parse(source(case), strict=strict)
        assert refusal(caught.value) == case["err"]
    else:
        commands = parse(source(case), strict=strict)
        assert [[command.name, command.args] for command in commands] == case["cmds"]


@pytest.mark.parametrize("case", [case for case in CASES if "req" in case], ids=lambda case: case["id"])
def test_create_request(case: dict[str, Any], directory: Path) -> None:
    request = create_request(Modelfile.from_text(source(case), strict=True), directory)
    for key in ("files", "draft_files"):
        if key in request:
            request[key] = [Path(file).name for file in request[key]]
    assert request == case["req"]


@pytest.mark.parametrize("case", [case for case in CASES if "cerr" in case], ids=lambda case: case["id"])
def test_create_refusal(case: dict[str, Any], directory: Path) -> None:
    with pytest.raises(ModelfileError) as caught:
        create_request(Modelfile.from_text(source(case), strict=True), directory)
    assert caught.value.message == case["cerr"].replace("$DIR", str(directory))
