# SPDX-License-Identifier: MIT
"""Fills the option tables of docs/cli.md from the commands themselves: python docs/generate_cli.py

Between `<!-- options NAME -->` or `<!-- shared NAME -->` and `<!-- end -->` is what this script wrote; the
rest of the page is written by hand. tests/unit/cli/test_docs.py fails when the page is stale.
"""

from __future__ import annotations

import re
from pathlib import Path

import click

from eaglecpp.cli import group

PAGE = Path(__file__).with_name("cli.md")
BLOCK = re.compile(r"(<!-- options (\w+) -->\n).*?(<!-- end -->)", re.DOTALL)
SHARED_BLOCK = re.compile(r"(<!-- shared (\w+) -->\n).*?(<!-- end -->)", re.DOTALL)
SHARED = {
    "models": {"generate", "run", "serve", "bench", "doctor"},
    "sampling": {"generate", "run"},
}
"""Tables of the options that exactly these commands have, with the same defaults."""
HEAD = "| option | meaning |\n| --- | --- |\n"


def filled(page: str) -> str:
    """The page with every option table made anew."""
    page = BLOCK.sub(lambda match: match[1] + table(match[2]) + match[3], page)
    return SHARED_BLOCK.sub(lambda match: match[1] + shared_table(match[2]) + match[3], page)


def table(name: str) -> str:
    """Returns a Markdown table of a command's own options, and links to the options that it shares."""
    groups = [shared for shared, commands in SHARED.items() if name in commands]
    elsewhere = {one for shared in groups for one in rows_of(shared)}
    own = [one for one in rows(name) if one not in elsewhere]
    as_run = [one for one in own if name != "run" and one in rows("run")]
    also = ""
    if as_run:
        flags = ", ".join(re.findall(r"`[^`]+`", one)[0] for one in as_run)
        also += f"\nAs in [run](#run): {flags}.\n"
    if groups:
        links = " and ".join(f"[{shared}](#options-for-{shared})" for shared in groups)
        also += f"\nAlso the options for {links}.\n"
    return HEAD + "".join(one for one in own if one not in as_run) + also


def shared_table(shared: str) -> str:
    """A Markdown table of the options that several commands share."""
    return HEAD + "".join(rows_of(shared))


def rows_of(shared: str) -> list[str]:
    every = {name: rows(name) for name in group.list_commands(click.Context(group))}
    first = every[min(SHARED[shared])]
    return [one for one in first if {name for name in every if one in every[name]} == SHARED[shared]]


def rows(name: str) -> list[str]:
    command = group.get_command(click.Context(group), name)
    assert command is not None, f"docs/cli.md names a command {name!r} that does not exist"
    options = [param for param in command.params if isinstance(param, click.Option)]
    return [row(option) for option in options if option.name != "help_all"]


def row(option: click.Option) -> str:
    flags = ", ".join(f"`{flag}`" for flag in option.opts)
    if option.secondary_opts:
        flags += ", " + ", ".join(f"`{flag}`" for flag in option.secondary_opts)
    text = (option.help or "").replace("|", "\\|").replace("  ", " ")
    if isinstance(option.type, click.Choice) and option.metavar is None:
        text += " Values: " + ", ".join(map(str, option.type.choices)) + "."
    if option.show_default and option.default not in (None, ""):
        text += f" [default: {option.default}]"
    return f"| {flags} | {text} |\n"


if __name__ == "__main__":
    PAGE.write_text(filled(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
