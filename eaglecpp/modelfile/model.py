# SPDX-License-Identifier: MIT
"""`Modelfile`: what a file says, checked and typed, as one frozen value.

Takes the commands of `syntax` and gives what a model needs: where to start from, drafter, template, messages,
typed parameters, pragmas. Repeats follow Ollama (scalars: the last wins; `stop`, LICENSE and MESSAGE
accumulate). Paths are not looked at; that is `resolve`.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from eaglecpp.chat.message import Message
from eaglecpp.errors import InvalidValueError
from eaglecpp.limits import check_texts
from eaglecpp.options import HEAD

from . import parameters as params
from .errors import ModelfileError, Notice
from .parameters import ParameterValue
from .pragmas import Settings, settings
from .syntax import MAX_TEXT, Command, Document, format, read

__all__ = ["Modelfile", "built_in"]

_VERSION = re.compile(r"v?[0-9]+(?:\.[0-9]+){0,2}(?:[-+][0-9A-Za-z.+-]+)?")
_TEXTS = ("template", "system", "renderer", "parser")


@dataclass(frozen=True)
class Modelfile:
    """One Modelfile. None: the file does not say; the engine, or the model it starts from, decides.

    from_, draft, adapters: the commands with their lines, in order, because which of them counts depends on
                            the files that exist
    parameters: typed values, only those that the file sets and that still mean something
    requires:   the Ollama version the file asks for, shown only
    settings:   the `#eaglecpp:` pragmas
    notices:    what its author should know
    """

    from_: tuple[Command, ...]
    draft: tuple[Command, ...] = ()
    adapters: tuple[Command, ...] = ()
    template: str | None = None
    system: str | None = None
    messages: tuple[Message, ...] = ()
    parameters: Mapping[str, ParameterValue] = field(default_factory=dict)
    license: tuple[str, ...] = ()
    renderer: str | None = None
    parser: str | None = None
    requires: str | None = None
    pragmas: tuple[Command, ...] = ()
    settings: Settings = field(default_factory=Settings)
    notices: tuple[Notice, ...] = field(default=(), compare=False)
    file: str | None = field(default=None, compare=False)

    @property
    def drafts_head(self) -> bool:
        """Whether the pragma asks for the model's own head as its drafter, as stored models say it."""
        return self.settings.draft is not None and self.settings.draft.args.strip() == HEAD

    @classmethod
    def load(cls, path: str | Path, *, strict: bool = False) -> Modelfile:
        """Reads a file, or a pipe. Raises OSError, or ModelfileError with its name and line."""
        with Path(path).open("rb") as stream:
            text = stream.read(MAX_TEXT + 1)
        return cls.from_text(text, file=str(path), strict=strict)

    @classmethod
    def from_text(cls, text: str | bytes, *, file: str | None = None, strict: bool = False) -> Modelfile:
        """strict: refuse what Ollama refuses, and take pragmas for the comments they are."""
        return cls.from_document(read(text, file=file, strict=strict), file=file, strict=strict)

    @classmethod
    def from_document(cls, document: Document, *, file: str | None = None, strict: bool = False) -> Modelfile:
        """From what `syntax.read` gives. Raises ModelfileError for a value its instruction cannot have."""
        builder = _Builder(file, strict)
        for command in document.commands:
            builder.add(command)
        pragmas = settings(document.pragmas, file)
        for command in (*builder.all_of("renderer")[-1:], *builder.all_of("parser")[-1:]):
            if not strict:
                builder.note(command, built_in(command.name, command.args))
        return cls(
            from_=builder.all_of("model"),
            draft=builder.all_of("draft"),
            adapters=builder.all_of("adapter"),
            messages=tuple(builder.messages),
            parameters=builder.parameters,
            license=tuple(command.args for command in builder.all_of("license")),
            requires=builder.requires,
            pragmas=document.pragmas,
            settings=pragmas,
            notices=(*document.notices, *builder.notices, *pragmas.notices),
            template=builder.last_of("template"),
            system=builder.last_of("system"),
            renderer=builder.last_of("renderer"),
            parser=builder.last_of("parser"),
            file=file,
        )

    def engine_options(self) -> dict[str, Any]:
        """Engine options by "group.field", and "strategy": Ollama's defaults, parameters, then pragmas."""
        return params.engine_options(self.parameters) | self.settings.options

    def over(self, base: Modelfile) -> Modelfile:
        """This file on top of the model that its FROM names, by Ollama's rules of inheritance.

        Parameters merge by name, and a new `stop` replaces the old list. TEMPLATE and SYSTEM cannot be
        cleared. LICENSE adds up, MESSAGE replaces all. The base's weights and drafter come first.
        """
        return replace(
            self,
            from_=base.from_,
            draft=(*base.draft, *self.draft),
            adapters=self.adapters or base.adapters,
            template=self.template or base.template,
            system=self.system or base.system,
            messages=self.messages or base.messages,
            parameters={**base.parameters, **self.parameters},
            license=(*base.license, *self.license),
            renderer=self.renderer or base.renderer,
            parser=self.parser or base.parser,
            requires=self.requires or base.requires,
            pragmas=(*base.pragmas, *self.pragmas),
            settings=settings((*base.pragmas, *self.pragmas), self.file),
        )

    def to_commands(self) -> list[Command]:
        """The commands that say the same, in the order in which Ollama prints them."""
        commands = [*self.from_, *self.adapters, *self.draft]
        for name in _TEXTS:
            text = getattr(self, name)
            commands += [Command(name, text)] if text is not None else []
        commands += [Command("requires", self.requires)] if self.requires is not None else []
        for name, value in self.parameters.items():
            texts = value if isinstance(value, tuple) else (params.value_text(value),)
            commands += [Command(name, text) for text in texts]
        commands += [Command("license", text) for text in self.license]
        commands += [Command("message", f"{message.role}: {message.content}") for message in self.messages]
        return commands

    def to_text(self) -> str:
        """A Modelfile that reads back as this one. Raises ModelfileError for an inexpressible value."""
        return format(self.to_commands(), self.pragmas)


def built_in(instruction: str, name: str) -> str:
    """What explains a prompt that differs from Ollama's: RENDERER and PARSER name code of Ollama's."""
    return f"{instruction.upper()} {name} is built into Ollama; eaglecpp uses the model's chat template"


class _Builder:
    """Collects commands; holds what a repeat may still change."""

    def __init__(self, file: str | None, strict: bool) -> None:
        self.file = file
        self.strict = strict
        self.commands: dict[str, list[Command]] = {}
        self.messages: list[Message] = []
        self.parameters: dict[str, ParameterValue] = {}
        self.requires: str | None = None
        self.notices: list[Notice] = []

    def add(self, command: Command) -> None:
        if command.name in ("model", "draft", "adapter", "license", *_TEXTS):
            self.commands.setdefault(command.name, []).append(command)
        elif command.name == "message":
            role, _, content = command.args.partition(": ")
            self.messages.append(Message(role, content))
        elif command.name == "requires":
            if _VERSION.fullmatch(command.args) is None:
                message = "requires must be a valid semver (e.g. 0.14.0)"
                raise self._error(command, message, f"found '{command.args}'")
            self.requires = command.args.removeprefix("v")
        else:
            self._add_parameter(command)

    def all_of(self, name: str) -> tuple[Command, ...]:
        return tuple(self.commands.get(name, ()))

    def last_of(self, name: str) -> str | None:
        commands = self.commands.get(name)
        return commands[-1].args if commands else None

    def _add_parameter(self, command: Command) -> None:
        name = command.name
        if name in params.DEPRECATED or (name in params.RETIRED and not self.strict):
            self.note(command, f"parameter {name} is deprecated and ignored")
            return
        try:
            value = params.parse_value(name, command.args)
            if isinstance(value, tuple):
                old = self.parameters.get(name)
                value = (*(old if isinstance(old, tuple) else ()), *value)
                check_texts(name, value)
        except InvalidValueError as error:
            hint = "" if name in params.PARAMETERS else f"known: {', '.join(params.PARAMETERS)}"
            raise self._error(command, str(error), hint) from None
        if isinstance(value, float) and not math.isfinite(value) and not self.strict:
            raise self._error(command, f"invalid float value [{command.args}]", "expected a finite number")
        parameter = params.PARAMETERS[name]
        if (fitted := parameter.fitted(value)) != value:
            self.note(command, f"parameter {name} is {value}; the range is {parameter.range}, using {fitted}")
        self.parameters[name] = value

    def note(self, command: Command, message: str) -> None:
        self.notices.append(Notice(message, command.line or None, self.file))

    def _error(self, command: Command, message: str, hint: str) -> ModelfileError:
        return ModelfileError(message, line=command.line or None, file=self.file, hint=hint)
