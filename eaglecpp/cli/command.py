# SPDX-License-Identifier: MIT
"""Commands whose help has examples and headings, and which complete the names of models."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, TypeVar

import click
from click.shell_completion import CompletionItem


class _Option(click.Option):
    """Its help has N for any number, and no range: an error names that.

    heading: that it stands under
    """

    def __init__(self, *args: Any, heading: str = "Options", **settings: Any) -> None:
        super().__init__(*args, **settings)
        self.heading = heading
        if isinstance(self.type, click.IntRange | click.FloatRange):  # as errors call it
            self.type.name = "whole number" if isinstance(self.type, click.IntRange) else "number"
            self.metavar = self.metavar or "N"

    def get_help_extra(self, ctx: click.Context) -> Any:
        extra = super().get_help_extra(ctx)
        extra.pop("range", None)
        return extra


F = TypeVar("F", bound=Callable[..., Any])
option = partial(click.option, cls=_Option)


def json_option(what: str) -> Callable[[F], F]:
    """--json. what: is printed"""
    return option("--json", "as_json", is_flag=True, help=f"Print {what}.")


class Command(click.Command):
    """examples: (command, what it does); shown first."""

    def __init__(self, *args: Any, examples: Sequence[tuple[str, str]] = (), **settings: Any) -> None:
        super().__init__(*args, **settings)
        self.examples = tuple(examples)

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        if self.examples:
            with formatter.section("Examples"):
                formatter.write_dl(list(self.examples), col_max=52)
        found: dict[str, list[tuple[str, str]]] = {}
        for parameter in self.get_params(ctx):
            if isinstance(parameter, click.Option) and (record := parameter.get_help_record(ctx)):
                found.setdefault(getattr(parameter, "heading", "Options"), []).append(record)
        for heading, records in found.items():
            with formatter.section(heading):
                formatter.write_dl(records)


def command(
    *examples: tuple[str, str], cls: type[Command] = Command, name: str | None = None
) -> Callable[[Callable[..., Any]], click.Command]:
    """The decorator of a command; examples: as for `Command`."""
    return click.command(name, cls=cls, examples=examples)


def complete_model(ctx: click.Context, parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Stored models, and files where none has a name like that."""
    found = [name for name in stored_names() if name.startswith(incomplete)]
    return [*map(CompletionItem, found)] or [CompletionItem(incomplete, type="file")]


def stored_names() -> list[str]:
    """The stored models that are no drafters, as a user would call them."""
    from eaglecpp.errors import EagleError
    from eaglecpp.store import Stores

    with contextlib.suppress(EagleError, OSError):
        models = [model for model in Stores.open().models() if not model.is_drafter]
        return [str(model.name).removesuffix(":latest") for model in models]
    return []
