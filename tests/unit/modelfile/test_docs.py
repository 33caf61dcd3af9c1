# SPDX-License-Identifier: MIT
"""Tests docs/modelfile.md: its examples run, and its tables are complete."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from eaglecpp.modelfile import Modelfile
from eaglecpp.modelfile.parameters import DEPRECATED, PARAMETERS
from eaglecpp.modelfile.pragmas import OWN_PRAGMAS
from eaglecpp.options import Option

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
