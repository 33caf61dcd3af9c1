# SPDX-License-Identifier: MIT
"""Fills the lists of options of docs/cli.md from the commands: python docs/generate_cli.py

This script writes the text between `<!-- options NAME -->` or `<!-- shared NAME -->` and `<!-- end -->`. The
rest of the page is written by hand. tests/unit/cli/test_docs.py fails if the page is stale.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

import click

from eaglecpp.cli import group

PAGE = Path(__file__).with_name("cli.md")
BLOCK = re.compile(r"(<!-- options (\w+) -->\n).*?(<!-- end -->)", re.DOTALL)
DEFAULT = re.compile(r" \[default: ([^]]*)\]")
SHARED_BLOCK = re.compile(r"(<!-- shared (\w+) -->\n).*?(<!-- end -->)", re.DOTALL)
SHARED = {
    "models": {"generate", "run", "serve", "bench", "doctor"},
    "sampling": {"generate", "run"},
}
"""Commands of each shared list: it has the options of exactly these commands, with equal defaults."""


class Row(NamedTuple):
    """An option in a list: its flags, help text and default."""

    flags: str
    text: str
    default: str

    def __str__(self) -> str:
        default = f" [default: {self.default}]" if self.default else ""
        return f"- {self.flags}: {self.text}{default}\n"


def filled(page: str) -> str:
    """Returns the page with new lists of options."""
    page = BLOCK.sub(lambda match: match[1] + listed(match[2]) + match[3], page)
    return SHARED_BLOCK.sub(lambda match: match[1] + "".join(map(str, rows_of(match[2]))) + match[3], page)


def listed(name: str) -> str:
    """Returns the Markdown list of a command's own options, with links to its shared options."""
    groups = [shared for shared, commands in SHARED.items() if name in commands]
    elsewhere = {one for shared in groups for one in rows_of(shared)}
    own = [one for one in rows(name) if one not in elsewhere]
    of_run = {(one.flags, one.text): one.default for one in rows("run")} if name != "run" else {}
    as_run = [one for one in own if (one.flags, one.text) in of_run]
    paragraphs = ["".join(str(one) for one in own if one not in as_run)]
    if as_run:
        flags = ", ".join(short(one, of_run[one.flags, one.text]) for one in as_run)
        paragraphs.append(f"As in [run](#run): {flags}.\n")
    if groups:
        links = " and ".join(f"[{shared}](#options-for-{shared})" for shared in groups)
        paragraphs.append(f"Also the options for {links}.\n")
    return "\n".join(filter(None, paragraphs))


def short(one: Row, default_of_run: str) -> str:
    """Returns the first flag of an option, with its default if `run` has another one."""
    flag = one.flags.split(", ")[0]
    return flag if one.default == default_of_run else f"{flag} [default: {one.default or 'none'}]"


def rows_of(shared: str) -> list[Row]:
    """Returns the options of a shared list."""
    every = {name: rows(name) for name in group.list_commands(click.Context(group))}
    first = every[min(SHARED[shared])]
    return [one for one in first if {name for name in every if one in every[name]} == SHARED[shared]]


def rows(name: str) -> list[Row]:
    """Returns the options of a command."""
    command = group.get_command(click.Context(group), name)
    assert command is not None, f"docs/cli.md names a command {name!r} that does not exist"
    options = [param for param in command.params if isinstance(param, click.Option)]
    return [row(option) for option in options if option.name != "help_all"]


def row(option: click.Option) -> Row:
    """Returns a row of the page. The default is the one at the end of the help text, or else click's."""
    text = (option.help or "").replace("  ", " ")
    default_in_help = DEFAULT.search(text)
    text = DEFAULT.sub("", text)
    if isinstance(option.type, click.Choice) and option.metavar is None:
        choices = [str(choice) for choice in option.type.choices]
        if not set(choices) <= set(re.findall(r"[\w-]+", text)):
            text += " Values: " + ", ".join(choices) + "."
    default = "" if not option.show_default or option.default in (None, "") else str(option.default)
    flags = ", ".join(f"`{flag}`" for flag in (*option.opts, *option.secondary_opts))
    return Row(flags, text, default_in_help[1] if default_in_help else default)


if __name__ == "__main__":
    PAGE.write_text(filled(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
