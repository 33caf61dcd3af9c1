# SPDX-License-Identifier: MIT
"""Tests that eaglecpp reads Modelfiles as Ollama does. Ollama's own parser produced every case.

Each line of `modelfile.jsonl` is a case: `src` (or `src_hex`) is the file, `cmds` are its commands, and `err`
is the reason if the file is refused.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from eaglecpp.modelfile import ModelfileError, parse

CASES = [
    json.loads(line) for line in Path(__file__).with_name("modelfile.jsonl").read_text("utf-8").splitlines()
]
REFUSALS = {
    "NOFROM": "no FROM line",
    "COMMAND": "command must be",
    "ROLE": "message role must be",
    "EOF": "unexpected EOF",
}


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["id"])
def test_commands_or_refusal(case: dict[str, Any]) -> None:
    source = bytes.fromhex(case["src_hex"]) if "src_hex" in case else case["src"]
    if "err" in case:
        with pytest.raises(ModelfileError, match=REFUSALS[case["err"]]):
            parse(source)
    else:
        commands = parse(source)
        assert [[command.name, command.args] for command in commands] == case["cmds"]
