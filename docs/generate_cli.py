# SPDX-License-Identifier: MIT
"""Fills the option tables of docs/cli.md from the commands themselves: python docs/generate_cli.py

Between `<!-- options NAME -->` and `<!-- end -->` stands what this script wrote; the rest of the page is
written by hand. tests/unit/cli/test_docs.py fails when the page is stale.
"""

from __future__ import annotations

import re
from pathlib import Path

import click

from eaglecpp.cli import group

PAGE = Path(__file__).with_name("cli.md")
BLOCK = re.compile(r"(<!-- options (\w+) -->\n).*?(<!-- end -->)", re.DOTALL)


def filled(page: str) -> str:
    """The page with every option table made anew."""
    return BLOCK.sub(lambda match: match[1] + table(match[2]) + match[3], page)


def table(name: str) -> str:
    """A Markdown table of one command's options."""
    command = group.get_command(click.Context(group), name)
    assert command is not None, f"docs/cli.md names a command {name!r} that does not exist"
    rows = [row(param) for param in command.params if isinstance(param, click.Option)]
    return "".join(["| option | meaning |\n", "| --- | --- |\n", *rows])


def row(option: click.Option) -> str:
    flags = ", ".join(f"`{flag}`" for flag in option.opts)
    if option.secondary_opts:
        flags += ", " + ", ".join(f"`{flag}`" for flag in option.secondary_opts)
    text = (option.help or "").replace("|", "\\|").replace("  ", " ")
    if isinstance(option.type, click.Choice) and option.metavar is None:
        text += " Values: " + ", ".join(map(str, option.type.choices)) + "."
    if option.show_default and option.default is not None:
        text += f" [default: {option.default}]"
    return f"| {flags} | {text} |\n"


if __name__ == "__main__":
    PAGE.write_text(filled(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
