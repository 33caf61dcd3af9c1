# SPDX-License-Identifier: MIT
"""Tests the validation of a Modelfile's content: repeats, types, pragmas, inheritance, printing."""

from __future__ import annotations

import pytest

from eaglecpp.chat.message import Message
from eaglecpp.modelfile import Modelfile, ModelfileError
from helpers.opening import options_in

FULL = '''#eaglecpp: strategy tree:k=4,depth=5,nodes=16
#eaglecpp: cache_type_k q8_0
FROM ./target.gguf
ADAPTER ./lora.gguf
DRAFT ./head.gguf
TEMPLATE """{{ .System }}
{{ .Prompt }}"""
SYSTEM """Be "brief"."""
PARSER p
RENDERER r
REQUIRES v0.14.0
PARAMETER temperature 0.25
PARAMETER use_mmap F
PARAMETER stop <|im_end|>
PARAMETER stop """a b"""
LICENSE """one"""
LICENSE """two"""
MESSAGE user """k: v"""
MESSAGE assistant """ y """
'''


def test_every_instruction_is_read() -> None:
    modelfile = Modelfile.from_text(FULL)
    assert [command.args for command in modelfile.from_] == ["./target.gguf"]
    assert [command.args for command in modelfile.draft] == ["./head.gguf"]
    assert [command.args for command in modelfile.adapters] == ["./lora.gguf"]
    assert modelfile.template == "{{ .System }}\n{{ .Prompt }}"
    assert modelfile.system == 'Be "brief".'
    assert (modelfile.parser, modelfile.renderer, modelfile.requires) == ("p", "r", "0.14.0")
    assert modelfile.parameters == {"temperature": 0.25, "use_mmap": False, "stop": ("<|im_end|>", "a b")}
    assert modelfile.license == ("one", "two")
    assert modelfile.messages == (Message("user", "k: v"), Message("assistant", " y "))
    assert [(notice.line, notice.message.split()[0]) for notice in modelfile.notices] == [
        (10, "RENDERER"),
        (9, "PARSER"),
    ]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("PARAMETER wibble 1", "unknown parameter 'wibble'"),
        ("PARAMETER temperature nan", "invalid float value [nan]"),
        ("REQUIRES new", "requires must be a valid semver (e.g. 0.14.0)"),
        ("#eaglecpp: strategy chain:0", "pragma strategy: "),
        ("#eaglecpp: type_k q9_9", "pragma type_k: "),
        ("#eaglecpp: repeat_last_n x", "pragma repeat_last_n: invalid int value [x]"),
        ("#eaglecpp: draft", "pragma draft: expected a value"),
        ("#eaglecpp: wibble 3", "pragma wibble: unknown name"),
        ("#eaglecpp: chat_template zephyr", "pragma chat_template: expected one of"),
    ],
)
def test_refusals_name_file_and_line(line: str, message: str) -> None:
    with pytest.raises(ModelfileError) as caught:
        Modelfile.from_text(f"FROM a\n\n{line}\n", file="dir/Modelfile")
    assert caught.value.message.startswith(message)
    assert str(caught.value).startswith("dir/Modelfile:3: ")


@pytest.mark.parametrize(
    ("line", "notice"),
    [
        ("PARAMETER mirostat 2", "M:2: parameter mirostat is deprecated and ignored"),
        ("PARAMETER top_k -1", "M:2: parameter top_k is -1, outside the range 0 and up; using 0"),
    ],
)
def test_ignored_and_changed_values_are_noted(line: str, notice: str) -> None:
    modelfile = Modelfile.from_text(f"FROM a\n{line}\n", file="M")
    assert [str(one) for one in modelfile.notices] == [notice]
    assert modelfile.parameters == ({"top_k": -1} if "top_k" in line else {})
    assert options_in(modelfile)["sampling.top_k"] == (0 if "top_k" in line else 40)


def test_pragmas_override_parameters() -> None:
    modelfile = Modelfile.from_text(
        "FROM a\nPARAMETER draft_num_predict 3\nPARAMETER temperature 1\n"
        "#eaglecpp: strategy off\n#eaglecpp: temperature 0.5\n#eaglecpp: PARAMETER cache_type_v q8_0\n"
    )
    options = options_in(modelfile)
    assert (options["strategy"], options["sampling.temperature"], options["model.type_v"]) == (
        "off",
        0.5,
        "q8_0",
    )
