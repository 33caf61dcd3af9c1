# SPDX-License-Identifier: MIT
"""Commands whose help has examples and headings, and which complete the names of models."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, TypeVar

import click
from click.shell_completion import CompletionItem

from eaglecpp.options import DraftOptions, ModelOptions, SamplingOptions, describe

_DEVICES = (
    "n_threads n_threads_batch n_gpu_layers main_gpu split_mode tensor_split n_cpu_moe override_tensor rpc "
    "offload_kqv repack kernels draft_device device dtype threads"
)
HEADINGS = {
    "Model": "model_named models_file on_hub target finetune insecure keepalive no_server",
    "Data": "data generate conversations sequences temp predict held_out cache cache_type",
    "Prompt": "prompt_named prompt file system form think resume grammar_file json_schema_file",
    "Server": "host port api_key n_parallel keys origins hosts n_queue n_body request_s place_s unread_s "
    "keep_alive_s n_bytes n_park_bytes n_models n_responses no_key registries",
    "Measuring": "measure strategies files n_tokens seconds",
    "Training": "steps epochs minutes ttt_steps later_every loss loss_vocab lr batch_tokens "
    "micro_tokens eval_steps patience",
    "The drafter": "family block_size causal_block start_from draft_vocab draft_layers share_head "
    "aux_layers type qat",
    "Drafting": "draft drafts strategy no_draft spec_type "
    + " ".join(option.name for option in describe(DraftOptions)),
    "Sampling": " ".join(option.name for option in describe(SamplingOptions)),
    "Context and memory": " ".join(option.name for option in describe(ModelOptions)),
    "Devices": _DEVICES,
    "Output": "out as_json action verbose quiet color nowordwrap hidethinking part",
}
"""Heading of a help text: the options under it, by the names of their parameters. Devices go first, as some
of them are among the model's; otherwise the first heading that has the name counts.
"""
_OF_OPTION = {name: heading for heading in reversed(HEADINGS) for name in HEADINGS[heading].split()}
_OF_OPTION |= dict.fromkeys(_DEVICES.split(), "Devices")


def heading_of(parameter: click.Parameter) -> str:
    """The heading that an option stands under."""
    asked = parameter.heading if isinstance(parameter, _Option) else ""
    return asked or _OF_OPTION.get(parameter.name or "", "Options")


class _Option(click.Option):
    """Its help has one short and one long spelling, N for any number, and no range: an error names that.

    heading: where its name means something else in another command
    """

    def __init__(self, *args: Any, heading: str = "", **settings: Any) -> None:
        super().__init__(*args, **settings)
        self.heading = heading
        if isinstance(self.type, click.IntRange | click.FloatRange):  # as errors call it
            self.type.name = "whole number" if isinstance(self.type, click.IntRange) else "number"

    def get_help_record(self, ctx: click.Context) -> tuple[str, str] | None:
        every = self.opts
        short, long = ([o for o in every if o.startswith("--") is is_long][:1] for is_long in (False, True))
        self.opts = [*short, *long]
        try:
            return super().get_help_record(ctx)
        finally:
            self.opts = every

    def get_help_extra(self, ctx: click.Context) -> Any:
        extra = super().get_help_extra(ctx)
        extra.pop("range", None)
        return extra

    def make_metavar(self, ctx: click.Context) -> str:
        is_number = self.metavar is None and isinstance(
            self.type, (click.types.IntParamType, click.types.FloatParamType)
        )
        return "N" if is_number else super().make_metavar(ctx)


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
            record = parameter.get_help_record(ctx) if isinstance(parameter, click.Option) else None
            if record is not None:
                found.setdefault(heading_of(parameter), []).append(record)
        for heading in (*HEADINGS, "Options"):
            if heading in found:
                with formatter.section(heading):
                    formatter.write_dl(found[heading])


def command(
    *examples: tuple[str, str], cls: type[Command] = Command, name: str | None = None
) -> Callable[[Callable[..., Any]], click.Command]:
    """The decorator of a command; examples: as for `Command`."""
    return click.command(name, cls=cls, examples=examples)


def complete_model(ctx: click.Context, parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Stored models, and files where none has a name like that."""
    return _complete(stored_names(), incomplete)


def complete_draft(ctx: click.Context, parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """auto, text, stored drafters; otherwise files."""
    return _complete(["auto", "text", *stored_names(drafters=True)], incomplete)


def _complete(words: Sequence[str], incomplete: str) -> list[CompletionItem]:
    found = [word for word in words if word.startswith(incomplete)]
    return [CompletionItem(word) for word in found] or [CompletionItem(incomplete, type="file")]


def stored_names(*, drafters: bool = False) -> list[str]:
    """The stored models, or those that are drafters, as a user would call them."""
    from eaglecpp.errors import EagleError
    from eaglecpp.store import Stores

    with contextlib.suppress(EagleError, OSError):
        models = [model for model in Stores.open().models() if model.is_drafter is drafters]
        return [str(model.name).removesuffix(":latest") for model in models]
    return []
