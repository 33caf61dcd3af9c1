# SPDX-License-Identifier: MIT
"""Command-line options shared by several commands, generated from the declarations in `eaglecpp.options`.

This module repeats no name, range or default. It does not pass on options that are not on the command line,
so the engine's defaults are the only defaults.
"""

from __future__ import annotations

import contextlib
import math
import os
import re
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import wraps
from itertools import chain
from pathlib import Path
from types import MappingProxyType
from typing import Any

import click
from click.core import ParameterSource

from eaglecpp.cli.command import F, added, complete_model, option
from eaglecpp.cli.terminal import note
from eaglecpp.engine.grammar import resolve_grammar
from eaglecpp.errors import InvalidValueError
from eaglecpp.files import exists
from eaglecpp.human import human_bytes, n_bytes_of, n_seconds_of
from eaglecpp.options import DraftOptions, ModelOptions, Option, SamplingOptions, Strategy, declare, describe
from eaglecpp.references import ModelName, ModelNameError, hub_text, is_path_text, read_name

AUTOMATIC_CONTEXT = {
    "n_ctx": "context length in tokens; 0 = as long as model and memory allow; -1 = the trained length"
}
"""Help of -c for commands in which `eaglecpp.opening.context` chooses the length."""
MAX_INPUT = 64_000_000  # Maximum bytes of an input file. No context is long enough for a longer text.


_FLAGS = {"draft": "--draft", "strategy": "--strategy"} | {
    one.name: one.flags[0]
    for cls in (ModelOptions, DraftOptions, SamplingOptions)
    for one in describe(cls)
    if one.flags
}
# A field name with an underscore is replaced anywhere in a message. Other field names are ordinary words, so
# they are replaced only at the beginning of a message.
_LONG, _ANY = "|".join(name for name in _FLAGS if "_" in name), "|".join(_FLAGS)
_FIELD = re.compile(rf"(?<![\w/.-])(?:{_LONG})(?![\w/.-])|^(?:{_ANY})(?=:| ['0-9])")


class Parsed(click.ParamType):  # type: ignore[type-arg]  # no generic type before click 8.4
    """A parameter type whose values a function parses. The function's ValueErrors become usage errors."""

    def __init__(self, name: str, parse: Callable[[str], Any]) -> None:
        self.name = name
        self._parse = parse

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        try:
            return self._parse(value) if isinstance(value, str) else value
        except ValueError as error:
            self.fail(str(error), param, ctx)


def _server(context: click.Context, parameter: click.Parameter, value: str | None) -> str | None:
    """Parses the URL of a server."""
    from eaglecpp.conversations.served import address_of, elsewhere

    is_flag = context.get_parameter_source(str(parameter.name)) == ParameterSource.COMMANDLINE
    return None if value is None else address_of(value) if is_flag else elsewhere(value)


@dataclass(frozen=True)
class Served:
    """Options that name a server. The value is the server's URL, or None for the server on this machine."""

    host: str | None = declare(
        None,
        "Use the `eaglecpp serve` at this address, with its models.  [default: EAGLECPP_HOST or OLLAMA_HOST "
        "if it names another machine; otherwise a server that runs on this machine]",
        envvar=["EAGLECPP_HOST", "OLLAMA_HOST"],
        callback=_server,
        metavar="HOST[:PORT]",
    )

    @property
    def key(self) -> str:
        """The API key for the server: the first key in EAGLECPP_API_KEY, but "" for a remote server that only
        OLLAMA_HOST names.
        """
        key, source = first_key(), click.get_current_context().get_parameter_source
        is_ours = source("host") == ParameterSource.COMMANDLINE or os.environ.get("EAGLECPP_HOST")
        if not key or self.host is None or is_ours:
            return key
        note("note: EAGLECPP_API_KEY is not sent to the server in OLLAMA_HOST; use EAGLECPP_HOST instead")
        return ""


def first_key() -> str:
    """Returns the first key in EAGLECPP_API_KEY. The variable contains a list separated by blanks, and
    `serve` accepts every key of the list.
    """
    return next(iter(os.environ.get("EAGLECPP_API_KEY", "").split()), "")


def answer_format(text: str) -> dict[str, Any]:
    """Returns the arguments of `Session.chat` for an output format: "json", a JSON schema, or a file with a
    schema. Raises InvalidValueError, and the errors of `read_input`.
    """
    if text == "json":
        return {"json_schema": '{"type": "object"}'}
    if not text.lstrip().startswith("{"):
        if not exists(Path(text)):
            raise InvalidValueError(f"{text!r}: expected json, a JSON schema, or a schema file")
        text = decoded_text(text, read_input(text))
    resolve_grammar(json_schema=text)
    return {"json_schema": text}


def _adapter(text: str) -> tuple[str, float]:
    """Parses FILE[:SCALE] of a LoRA adapter into its path and scale."""
    path, colon, scale = text.rpartition(":")
    if exists(Path(text)) or not colon or "/" in scale:
        return text, 1.0
    try:
        return path, float(scale)
    except ValueError:
        raise InvalidValueError(f"{text!r}: expected FILE, or FILE:SCALE with a number") from None


def _layers(text: str) -> tuple[int, ...]:
    try:
        return tuple(map(int, text.split(",")))
    except ValueError:
        raise InvalidValueError(
            f"expected numbers separated by commas, such as 2,16,29, found {text!r}"
        ) from None


LAYERS = Parsed("layers", _layers)
STRATEGY = Parsed("strategy", Strategy.parse)
FORMAT = Parsed("format", answer_format)
FILE_TEXT = Parsed("file", lambda path: decoded_text(path, read_input(path)))
SECONDS = Parsed("duration", n_seconds_of)
"""30, 5m, 1h30m; negative = forever."""


def options_of(**classes: type) -> Callable[[F], F]:
    """Adds the declared options of dataclasses to a command. The command gets an object of each class as an
    argument. Options that are not given keep the dataclass's defaults.
    """
    described = {name: describe(cls) for name, cls in classes.items()}

    def decorate(function: F) -> F:
        @wraps(function)
        def call(*args: Any, **values: Any) -> Any:
            for name, cls in classes.items():
                own = {one.name: values.pop(one.name) for one in described[name] if one.flags}
                values[name] = cls(**given(own))
            return function(*args, **values)

        options = [one for declared in described.values() for one in declared if one.flags]
        return added(*map(click_option, options))(call)  # type: ignore[return-value]

    return decorate


_HEADINGS = {SamplingOptions: "Sampling", ModelOptions: "Model, memory and devices", DraftOptions: "Drafting"}


def engine_options(
    *classes: type,
    taken: tuple[str, ...] = (),
    defaults: Mapping[str, Any] = MappingProxyType({}),
    helps: Mapping[str, str] = MappingProxyType({}),
) -> Callable[[F], F]:
    """Adds every option of these classes that has a flag. By default these are the sampling, model and draft
    options.

    taken:    flags that have another meaning in this command
    defaults: defaults of this command, by "group.field"
    helps:    help texts by name that replace the declared help texts
    """
    decorators = []
    for cls in classes or _HEADINGS:
        for one in describe(cls):
            flags = tuple(flag for flag in one.flags if flag not in taken)
            if one.kind is bool and flags:
                flags = (f"{flags[0]}/--no-{flags[0].removeprefix('--')}",)
            if flags:
                default, text = defaults.get(one.key, one.default), helps.get(one.name, one.help)
                one = replace(one, flags=flags, default=default, help=text)
                decorators.append(click_option(one, _HEADINGS[cls]))
    return added(*decorators)


def _drafter(context: click.Context, parameter: click.Parameter, value: str | None) -> str | None:
    if value is not None and value.isdecimal():
        raise click.BadParameter(
            f"--draft takes a drafter; llama.cpp's --draft {value} is --strategy chain:{value}"
        )
    return value


def _spec_type(context: click.Context, parameter: click.Parameter, value: str | None) -> None:
    for word in value.split(",") if value is not None else []:
        if word in ("draft-simple", "draft-eagle3", "draft-dflash", "draft-dspark"):
            note(f"--spec-type {word} is not needed: the file given by --draft defines the kind of drafter")
            continue
        ours = {"none": "--no-draft", "draft-mtp": "--draft mtp, or --draft with the head's file alone"}
        if word not in ours and not word.startswith("ngram-"):
            raise click.BadParameter(f"{word!r}: expected a value of llama.cpp's, such as draft-dflash")
        raise click.BadParameter(f"llama.cpp's {word} is not supported; use {ours.get(word, '--draft text')}")


DRAFT_FLAGS = ("--draft", "-md", "--model-draft", "--spec-draft-model")
spec_type_option = option(
    "--spec-type", metavar="KIND", hidden=True, expose_value=False, callback=_spec_type,
    help="llama.cpp's kind of drafter; not needed, because the drafter's file defines it.",
)  # fmt: skip
OF_LLAMA_CPP = {
    "--spec-draft-hf": "use --draft hf.co/user/repo",
    "--draft-max": "use --strategy chain:N, or let the planner choose the number of drafts",
    "--draft-min": "the planner chooses the number of drafts",
    "--spec-draft-n-max": "use --strategy chain:N, or let the planner choose the number of drafts",
    "--spec-draft-n-min": "the planner chooses the number of drafts",
    "--spec-draft-p-min": "the planner chooses the number of drafts",
    "--spec-draft-conf-min": "the planner chooses the number of drafts",
    "--spec-draft-ngl": "use --draft-device with cpu or a device",
    "--spec-draft-type-k": "use --draft-cache-type",
    "--spec-draft-type-v": "use --draft-cache-type",
    "--jinja": "Jinja templates need no option",
    "--hf-file": "use -hf USER/REPO:QUANT to choose the file",
    "--reasoning": "use --think=true, --think=false or --think=LEVEL",
}
"""llama.cpp's options that do not exist here, and what to use instead."""


@dataclass(frozen=True)
class Drafting:
    """Options for drafting. The options that turn drafting off set `strategy` to "off"."""

    draft: str | None = declare(
        None,
        "The drafter: a GGUF made by `eaglecpp convert`, a small model of the same family, a stored name or "
        "hf.co/user/repo; auto = a known drafter; mtp = the model's own head; text = drafts from the text "
        "itself; off = no drafter.",
        flags=" ".join(DRAFT_FLAGS),
        metavar="D",
        callback=_drafter,
    )
    strategy: Strategy | None = declare(
        None, f"{Strategy.HELP}.  [default: the model's, or auto]", type=STRATEGY, metavar="S"
    )
    no_draft: bool = declare(False, "Decode without drafts; the same as --strategy off.")

    def __post_init__(self) -> None:
        """Raises click.UsageError for options that contradict each other."""
        if not (self.no_draft or Strategy.is_off(self.draft)):
            return
        if self.strategy is not None and self.strategy.kind != "off":
            off = "--no-draft" if self.no_draft else f"--draft {self.draft}"
            raise click.UsageError(f"{off} and --strategy {self.strategy} contradict each other")
        object.__setattr__(self, "strategy", Strategy("off"))
        object.__setattr__(self, "draft", None if Strategy.is_off(self.draft) else self.draft)


@dataclass(frozen=True)
class Answering(Drafting):
    """Options of commands that give an answer: drafting, and the form that the answer must have."""

    grammar: str | None = declare(None, "Grammar that the answer must follow.", metavar="GBNF")
    grammar_file: str | None = declare(None, "File with a grammar.", type=FILE_TEXT, metavar="FILE")
    json_schema: str | None = declare(
        None, "JSON schema that the answer must follow.", flags="-j --json-schema", metavar="SCHEMA"
    )
    json_schema_file: str | None = declare(
        None, "File with a schema.", flags="-jf --json-schema-file", type=FILE_TEXT, metavar="FILE"
    )

    def form(self, **more: Any) -> dict[str, Any]:
        """Returns the form that the answer must have, as arguments of `Session.chat`. more: form that a
        further option requires. Raises click.UsageError if two options set the form, GrammarError for an
        invalid form.
        """
        grammars = {"grammar": [self.grammar, self.grammar_file]}
        grammars["json_schema"] = [self.json_schema, self.json_schema_file]
        forms: list[dict[str, Any]]
        forms = [{name: text} for name, texts in grammars.items() for text in texts if text is not None]
        forms += [more] if more else []
        if len(forms) > 1:
            raise click.UsageError(
                "an answer follows one grammar or schema: give only one of --grammar, --grammar-file, "
                "--json-schema, --json-schema-file and --format"
            )
        for one in forms:
            resolve_grammar(**one)
        return forms[0] if forms else {}


model_option = option(
    "-m", "--model", "model_named", metavar="MODEL", shell_complete=complete_model,
    help="The model, instead of MODEL.",
)  # fmt: skip
"""-m, as in llama.cpp; `only_model` checks that MODEL is not given as well."""
hub_option = option(
    "-hf", "--hf-repo", "on_hub", is_flag=True, help="MODEL is a repository on the Hub: user/repo[:quant]."
)
"""-hf, as in llama.cpp."""


def model_argument(*, is_needed: bool = True, on_hub: bool = False) -> Callable[[F], F]:
    """Adds the argument MODEL or -m MODEL to a command, as `model`. on_hub: also add -hf, for a repository on
    the Hub.
    """

    def decorate(function: F) -> F:
        @wraps(function)
        def call(model: str | None, model_named: str | None, on_hub: bool = False, **rest: Any) -> Any:
            if is_needed or model_named is not None:
                model = only_model(model, model_named)
            return function(model=hub_text(model) if model and on_hub else model, **rest)

        argument = click.argument("model", required=False, shell_complete=complete_model)
        return added(argument, model_option, *([hub_option] if on_hub else []))(call)  # type: ignore[return-value]

    return decorate


def given(options: dict[str, Any]) -> dict[str, Any]:
    """Returns the options of a command that the user gave on the command line."""
    return {name: value for name, value in options.items() if value is not None and value != ()}


def only_model(model: str | None, named: str | None) -> str:
    """Returns the model given as MODEL or -m MODEL. Raises click.UsageError unless exactly one of the two is
    given.
    """
    if model is not None and named is not None:
        raise click.UsageError(f"found two models, {model!r} and -m {named!r}; remove one of them")
    chosen = model if named is None else named
    if chosen is None:
        raise click.UsageError("name a model; `eaglecpp list` shows the models on this machine")
    return chosen


def stored_name(text: str) -> ModelName:
    """Parses the name of a stored model. Raises click.UsageError for an invalid name."""
    if is_path_text(text):
        how = "To run a file, use `eaglecpp run`; to store it under a name, use `eaglecpp create`"
        raise click.UsageError(f"expected the name of a model, found a path: {text!r}. {how}")
    try:
        return read_name(text)
    except ModelNameError as error:
        raise click.UsageError(str(error)) from None


def read_input(path: str) -> bytes:
    """Reads a file's bytes without changes. The name "-" means standard input. Raises OSError for an
    unreadable file, and click.ClickException for a file larger than `MAX_INPUT`.
    """
    with contextlib.nullcontext(sys.stdin.buffer) if path == "-" else Path(path).open("rb") as stream:
        data = stream.read(MAX_INPUT + 1)
    if len(data) > MAX_INPUT:
        raise click.ClickException(f"cannot read {path!r}: the file is larger than {human_bytes(MAX_INPUT)}")
    return data


def decoded_text(path: str | Path, data: bytes) -> str:
    """Decodes the bytes of a text file. Raises InvalidValueError with the file's name if the bytes are not
    text.
    """
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise InvalidValueError(f"{path}: not UTF-8 text ({error.reason} at byte {error.start})") from None


def in_flags(text: str) -> str:
    """Replaces the Python names of options in a message by their command-line flags."""
    return _FIELD.sub(lambda found: _FLAGS[found[0]], text)


def argument_bytes(text: str) -> bytes:
    """Returns the bytes that the user typed, even if they are not valid in the encoding of the locale."""
    return os.fsencode(text) if any("\udc80" <= char <= "\udcff" for char in text) else text.encode("utf-8")


_KINDS: dict[Any, dict[str, Any]] = {
    "strings": {"multiple": True, "metavar": "TEXT"},
    "numbers": {"metavar": "N,N,..."},
    "pairs": {
        "multiple": True,
        "type": Parsed("adapters", lambda text: tuple(map(_adapter, text.split(",")))),
        "metavar": "FILE[:SCALE],...",
        "callback": lambda context, parameter, value: tuple(chain.from_iterable(value)),
    },
    "bytes": {"type": Parsed("size", n_bytes_of)},
    "seconds": {"type": SECONDS},
    "ids": {"type": LAYERS},
    "path": {"type": click.Path(path_type=Path)},
    "paths": {"multiple": True, "type": click.Path(exists=True, path_type=Path)},
}
"""Arguments of `click.option` for declared options that are not plain scalars."""


def click_option(one: Option, heading: str = "Options") -> Callable[[F], F]:
    """Creates the command-line option for a declared option. If the user does not give the option, its value
    is None or ().
    """
    settings = _KINDS.get(one.kind) or ({"is_flag": True} if one.kind is bool else {"type": _value_type(one)})
    settings = {**settings, "default": None, "help": help_text(one), "heading": heading, **one.shown}
    return option(*one.flags, one.name, **settings)


def help_text(one: Option) -> str:
    """Returns the help of an option, with its default."""
    text, default = f"{one.help[0].upper()}{one.help[1:]}", _default_text(one)
    text += "" if text.endswith((".", "]")) else "."
    return text + (f"  [default: {default}]" if default and "[default" not in text else "")


def _value_type(one: Option) -> click.ParamType[Any]:
    if one.choices:
        return click.Choice(one.choices)
    if one.kind is int:
        bounds = (one.minimum, one.maximum)
        low, high = (None if bound is None or math.isinf(bound) else int(bound) for bound in bounds)
        return click.IntRange(low, high)
    return Number(one.minimum, one.maximum) if one.kind is float else click.STRING


class Number(click.FloatRange):
    """A number of the command line. NaN, which is in every range, is invalid."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        number: float = super().convert(value, param, ctx)
        return self.fail(f"{value!r} is not a number", param, ctx) if math.isnan(number) else number


def _default_text(one: Option) -> str:
    """Returns an option's default as a user would type it, or "" if the option has no default to show."""
    value = one.default
    if isinstance(value, bool):
        return "" if "/" not in one.flags[0] else "on" if value else "off"
    if one.kind in ("bytes", "seconds") and value:
        units = ((10**9, "G"), (10**6, "M")) if one.kind == "bytes" else ((60, "m"), (1, "s"))
        size, unit = next((pair for pair in units if value % pair[0] == 0), (1, ""))
        return f"{value / size:g}{unit}"
    if value in (None, (), ""):
        return ""
    return f"{value:g}" if isinstance(value, float) else str(value)
