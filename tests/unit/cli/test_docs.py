# SPDX-License-Identifier: MIT
"""Tests the documentation pages: their options and drafters match the program, and the commands on every page
exist.
"""

from __future__ import annotations

import re
import runpy
import shlex
from pathlib import Path
from types import SimpleNamespace

import click
import pytest

from eaglecpp.cli import COMMANDS, group

DOCS = Path(__file__).parents[3] / "docs"


PAGES = [DOCS.parent / "README.md", *sorted(DOCS.rglob("*.md"))]
BLOCKS = re.compile(r"^```(?:\w*)\n(.*?)^```", re.DOTALL | re.MULTILINE)


def commands(page: Path) -> list[list[str]]:
    """Returns the `eaglecpp ...` commands that a reader would copy from a page."""
    found = []
    for block in BLOCKS.findall(page.read_text(encoding="utf-8")):
        for line in block.replace("\\\n", " ").splitlines():
            # such a line is a synopsis and not a command
            if "eaglecpp " not in line or "[" in line.split("#")[0]:
                continue
            words = shlex.split(line, comments=True) if line.count('"') % 2 == 0 else []
            while words and words[0] in ("$", "torchrun"):
                words = words[1:]
            if words and words[0] in ("eaglecpp", ".venv/bin/eaglecpp"):
                found.append(words[1:])
    return found


def examples() -> list[list[str]]:
    """Returns the commands in the help texts."""
    found = []
    for name in group.list_commands(click.Context(group)):
        lines = [line for line, _ in getattr(group.get_command(click.Context(group), name), "examples", ())]
        assert all(f"eaglecpp {name}" in line for line in lines)
        found += [shlex.split(line)[1:] for line in lines if line.startswith("eaglecpp")]
    return found


def load(name: str) -> SimpleNamespace:
    return SimpleNamespace(**runpy.run_path(str(DOCS / f"{name}.py")))


@pytest.mark.parametrize(
    ("script", "page"),
    [
        ("drafters", "which-drafter.md"),
        ("cli", "cli.md"),
        ("limits", "../SECURITY.md"),
        ("hardware", "benchmarks.md"),
    ],
)
def test_generated_parts_of_a_page_are_fresh(script: str, page: str) -> None:
    text = (DOCS / page).read_text(encoding="utf-8")
    assert load(f"generate_{script}").filled(text) == text, f"run: python docs/generate_{script}.py"


def test_charts_match_the_tables() -> None:
    charts = load("generate_charts")
    for name, chart in charts.CHARTS.items():
        assert (DOCS / name).read_text(encoding="utf-8") == charts.drawn(chart), f"{name} is out of date"


def test_every_command_has_a_section() -> None:
    page = (DOCS / "cli.md").read_text(encoding="utf-8")
    assert {name for _, name, _ in load("generate_cli").BLOCK.findall(page)} == set(COMMANDS)


@pytest.mark.parametrize("page", [*PAGES, None], ids=lambda p: p and str(p.relative_to(DOCS.parent)))
def test_commands_on_pages_and_in_help_exist_with_their_options(page: Path | None) -> None:
    for name, *rest in filter(None, commands(page) if page else examples()):
        if name.startswith("-"):
            continue
        command = group.get_command(click.Context(group), name)
        assert command is not None, f"{page} names the unknown command eaglecpp {name}"
        known = {name for one in command.params for name in (*one.opts, *one.secondary_opts, "--help", "-h")}
        for word in rest:
            option = word.split("=")[0]
            if re.fullmatch(r"--?[a-zA-Z][\w-]*", option):
                assert option in known, f"{page}: eaglecpp {name} has no option {option}"
