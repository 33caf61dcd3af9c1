# SPDX-License-Identifier: MIT
"""Classes for commands: their help has examples and headings, and they complete model names."""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, TypeVar

import click
from click.shell_completion import CompletionItem

from eaglecpp.cli.terminal import write


class _CliOption(click.Option):
    """An option whose help shows N for a number. Errors name the number's range, but the help does not.

    heading: section of the help text
    """

    def __init__(self, *args: Any, heading: str = "Options", **settings: Any) -> None:
        super().__init__(*args, **settings)
        self.heading = heading
        if isinstance(self.type, click.IntRange | click.FloatRange):  # click's errors already show the range
            self.type.name = "whole number" if isinstance(self.type, click.IntRange) else "number"
            self.metavar = self.metavar or "N"

    def in_short(self) -> _CliOption:
        """Returns a copy of the option with one short and one long flag."""
        option = copy.copy(self)
        short = [flag for flag in self.opts if not flag.startswith("--")]
        option.opts = [*short[:1], *[flag for flag in self.opts if flag.startswith("--")][:1]]
        return option

    def get_help_extra(self, ctx: click.Context) -> Any:
        extra = super().get_help_extra(ctx)
        extra.pop("range", None)
        return extra


_ALL = "eaglecpp.help_all"
F = TypeVar("F", bound=Callable[..., Any])
option = partial(click.option, cls=_CliOption)


def added(*options: Callable[[F], F]) -> Callable[[F], F]:
    """Combines the decorators of several options. The help text shows the options in the given order."""

    def decorate(function: F) -> F:
        for add in reversed(options):
            function = add(function)
        return function

    return decorate


def json_option(what: str) -> Callable[[F], F]:
    """Returns the decorator that adds --json. what: a description of the data that --json prints."""
    return option("--json", "as_json", is_flag=True, help=f"Print {what}.")


class CliCommand(click.Command):
    """A click command. examples: pairs (command, explanation), which the help shows first. usual: the
    parameters that --help shows (--help-all shows all parameters)
    """

    def __init__(
        self, *args: Any, examples: Sequence[tuple[str, str]] = (), usual: str = "", **settings: Any
    ) -> None:
        super().__init__(*args, **settings)
        self.examples = tuple(examples)
        self.usual = usual.split()
        if usual:
            about: dict[str, Any] = {"is_flag": True, "is_eager": True, "expose_value": False}
            about |= {"callback": _help_all, "help": "Show all options and exit."}
            self.params.append(_CliOption(["--help-all"], **about))

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        if self.examples:
            with formatter.section("Examples"):
                formatter.write_dl(list(self.examples), col_max=min(52, formatter.width - 26))
        sections: dict[str, list[tuple[str, str]]] = {}
        is_short = bool(self.usual) and not ctx.meta.get(_ALL)
        for parameter in self.get_params(ctx):
            heading, shown = getattr(parameter, "heading", "Options"), parameter
            if is_short and isinstance(parameter, _CliOption):
                if parameter.name not in (*self.usual, "help_all"):
                    continue
                heading, shown = "Options", parameter.in_short()
            if isinstance(shown, click.Option) and (record := shown.get_help_record(ctx)):
                sections.setdefault(heading, []).append(record)
        for heading, records in sections.items():
            with formatter.section(heading):
                formatter.write_dl(records)


def _help_all(ctx: click.Context, parameter: click.Parameter, value: bool) -> None:
    if value:
        ctx.meta[_ALL] = True
        write(f"{ctx.get_help()}\n")
        ctx.exit()


def command(
    *examples: tuple[str, str], cls: type[CliCommand] = CliCommand, name: str | None = None, usual: str = ""
) -> Callable[[Callable[..., Any]], click.Command]:
    """Returns the decorator of a command. examples, usual: see `CliCommand`."""
    return click.command(name, cls=cls, examples=examples, usual=usual)


def complete_model(ctx: click.Context, parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Completes a word in the shell: with names of stored models, or with files if no model's name
    matches.
    """
    names = [name for name in stored_names() if name.startswith(incomplete)]
    return [*map(CompletionItem, names)] or [CompletionItem(incomplete, type="file")]


def stored_names() -> list[str]:
    """Returns the short names of the stored models, except drafters."""
    from eaglecpp.errors import EagleError
    from eaglecpp.store import Stores

    with contextlib.suppress(EagleError, OSError):
        models = [model for model in Stores.open().models() if not model.is_drafter]
        return [model.short_name for model in models]
    return []
