# SPDX-License-Identifier: MIT
"""docs/cli.md shows the options, docs/which-drafter.md the known drafters as they are."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

DOCS = Path(__file__).parents[3] / "docs"


def load(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, DOCS / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def generator() -> ModuleType:
    return load("generate_cli")


def test_the_table_of_drafters_is_fresh() -> None:
    page = (DOCS / "which-drafter.md").read_text(encoding="utf-8")
    assert load("generate_drafters").filled(page) == page, "run: python docs/generate_drafters.py"
    assert "`RedHatAI/Qwen3-8B-speculator.eagle3`" in page


def test_the_option_tables_are_fresh(generator: ModuleType) -> None:
    page = (DOCS / "cli.md").read_text(encoding="utf-8")
    assert generator.filled(page) == page, "run: python docs/generate_cli.py"


def test_every_command_has_a_section(generator: ModuleType) -> None:
    from eaglecpp.cli import COMMANDS

    page = (DOCS / "cli.md").read_text(encoding="utf-8")
    assert {name for _, name, _ in generator.BLOCK.findall(page)} == set(COMMANDS)


def test_a_table_lists_every_flag(generator: ModuleType) -> None:
    table = generator.table("generate")
    for flag in (
        "`--draft`",
        "`--strategy`",
        "`--no-draft`",
        "`--temp`",
        "`-n`",
        "`--seed`",
        "`--json`",
        "`--no-mmap`",
    ):
        assert flag in table
