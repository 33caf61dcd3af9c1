# SPDX-License-Identifier: MIT
"""Tests the validation of a Modelfile's content: repeats, types, pragmas, inheritance, printing. Also tests
the table of PARAMETER names (Go's number syntax, ranges, defaults), and the examples and tables of
docs/modelfile.md.
"""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import Any

import pytest

from eaglecpp.chat.message import Message
from eaglecpp.modelfile import Modelfile, ModelfileError
from eaglecpp.modelfile.parameters import (
    DEPRECATED,
    PARAMETERS,
    ParameterError,
    from_json,
    parameter_options,
    parse_number,
)
from eaglecpp.modelfile.pragmas import OWN_PRAGMAS
from eaglecpp.options import ModelOptions, Option, SamplingOptions, Strategy
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


# Parameters

GROUPS = {"model": ModelOptions, "sampling": SamplingOptions}


NUMBERS: dict[str, dict[str, Any]] = {
    "int": {"+5": 5, "007": 7, "-9223372036854775808": -(2**63)},
    "float": {".5": 0.5, "5.": 5.0, "9e-1": 0.9, "1e-50": 1e-50, "0x1p-2": 0.25, "-0X.8P1": -1.0},
    "bool": {"t": True, "FALSE": False},
}
OTHER_TEXTS = {
    "int": ("", "1_000", "0x10", "5.0", "٣", "9223372036854775808", "9" * 5000),
    "float": ("1_0", "0x1", "0x1p128", "0x1p99999", "1e39", "+nan", "nan", "inf", "-Infinity"),
    "bool": ("no", "tRUE"),
}


@pytest.mark.parametrize("kind", NUMBERS)
def test_number_syntax_equals_gos(kind: str) -> None:
    assert {text: parse_number(kind, text) for text in NUMBERS[kind]} == NUMBERS[kind]
    for text in OTHER_TEXTS[kind]:
        with pytest.raises(ParameterError, match=rf"invalid {kind} value \["):
            parse_number(kind, text)


@pytest.mark.parametrize("parameter", PARAMETERS.values(), ids=lambda p: p.name)
@pytest.mark.parametrize("wild", [-(10**6), 0, 10**6])
def test_fitted_values_are_accepted_by_the_engine(parameter: Any, wild: int) -> None:
    value = {"int": wild, "float": float(wild), "bool": True, "strings": ("x",)}[parameter.kind_name]
    options = parameter_options({parameter.name: value})
    for group, cls in GROUPS.items():
        cls(**{key.partition(".")[2]: value for key, value in options.items() if key.startswith(f"{group}.")})
    Strategy.parse(str(options.get("strategy", "auto")))


@pytest.mark.parametrize(
    ("name", "given", "value"),
    [
        ("top_k", 5, 5),
        ("top_k", 5.9, 5),
        ("temperature", 1, 1.0),
        ("use_mmap", False, False),
        ("stop", "x", ("x",)),
    ],
)
def test_json_values(name: str, given: Any, value: Any) -> None:
    result = from_json(name, given)
    assert result == value and type(result) is type(value)


@pytest.mark.parametrize(
    ("name", "given", "problem"),
    [
        ("top_k", True, 'option "top_k" must be of type integer'),
        ("top_k", math.nan, 'option "top_k" must be of type integer'),
        ("temperature", math.inf, 'option "temperature" must be of type float32'),
        ("temperature", 1e39, 'option "temperature" must be of type float32'),
        ("temperature", None, 'option "temperature" must be of type float32'),
        ("use_mmap", 1, 'option "use_mmap" must be of type boolean'),
        ("stop", [1], 'option "stop" must be of type array of strings'),
        ("nope", 1, "unknown parameter 'nope'"),
    ],
)
def test_json_of_the_wrong_type_is_refused(name: str, given: Any, problem: str) -> None:
    with pytest.raises(ParameterError) as caught:
        from_json(name, given)
    assert str(caught.value) == problem


# docs/modelfile.md

PAGE = (Path(__file__).parents[3] / "docs" / "modelfile.md").read_text(encoding="utf-8")
EXAMPLES = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)


def row(parameter: Option) -> str:
    default = "automatic" if parameter.default is None else str(parameter.default)
    default = "none" if parameter.default == () else default
    return (
        f"| `{parameter.name}` | {parameter.kind_name} | {default} | {parameter.range} | {parameter.help} |"
    )


@pytest.mark.parametrize("example", EXAMPLES)
def test_examples_run(example: str) -> None:
    exec(compile(example, "docs/modelfile.md", "exec"), {})


def test_the_modelfile_at_the_top_is_valid() -> None:
    (text,) = re.findall(r"```modelfile\n(.*?)```", PAGE, re.DOTALL)
    assert Modelfile.from_text(text).notices == ()


def test_the_parameter_table_matches_the_code() -> None:
    rows = [line for line in PAGE.splitlines() if re.match(r"\| `\w+` \| (int|float|bool|strings) \|", line)]
    assert rows == [row(parameter) for parameter in PARAMETERS.values()]


@pytest.mark.parametrize("name", sorted({*DEPRECATED, *OWN_PRAGMAS}))
def test_every_other_name_is_mentioned(name: str) -> None:
    assert re.search(rf"\b{name}\b", PAGE)
