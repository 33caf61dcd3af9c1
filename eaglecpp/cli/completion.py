# SPDX-License-Identifier: MIT
"""`eaglecpp completion`: click's own completion of commands, options and models, for three shells."""

from __future__ import annotations

import os

import click
from click.shell_completion import (
    BashComplete,
    CompletionItem,
    add_completion_class,
    get_completion_class,
    split_arg_string,
)

from eaglecpp.cli.command import command
from eaglecpp.cli.terminal import write


@command(
    ('eval "$(eaglecpp completion bash)"', "in ~/.bashrc; zsh likewise, after compinit, in ~/.zshrc"),
    ("eaglecpp completion fish | source", "in ~/.config/fish/config.fish"),
)
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@click.pass_context
def completion(ctx: click.Context, shell: str) -> None:
    """Print a script with which SHELL completes commands, options and the names of models."""
    made = get_completion_class(shell)
    assert made is not None
    write(made(ctx.find_root().command, {}, "eaglecpp", "_EAGLECPP_COMPLETE").source() + "\n")


@add_completion_class
class ColonBash(BashComplete):
    """Bash takes `llama3.1:8b` for three words, and replaces only the last of them."""

    def get_completion_args(self) -> tuple[list[str], str]:
        words = split_arg_string(os.environ["COMP_WORDS"])[: int(os.environ["COMP_CWORD"]) + 1]
        words += [""] * (int(os.environ["COMP_CWORD"]) + 1 - len(words))
        joined: list[str] = []
        for i, word in enumerate(words):
            if i > 1 and (word == ":" or words[i - 1] == ":"):
                joined[-1] += word
            else:
                joined.append(word)
        self._typed = joined[-1]
        return joined[1:-1], joined[-1]

    def format_completion(self, item: CompletionItem[str]) -> str:
        begin, colon, _ = self._typed.rpartition(":")
        item.value = item.value.removeprefix(begin + colon)
        return super().format_completion(item)
