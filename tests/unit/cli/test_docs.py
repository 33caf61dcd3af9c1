# SPDX-License-Identifier: MIT
"""docs/cli.md shows the options as they are."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

DOCS = Path(__file__).parents[3] / "docs"


@pytest.fixture
def generator() -> ModuleType:
    spec = importlib.util.spec_from_file_location("generate_cli", DOCS / "generate_cli.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


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
