# SPDX-License-Identifier: MIT
"""`Modelfile`: the checked and typed contents of one Modelfile, as a frozen value.

A `Modelfile` is built from the commands that `syntax` reads. Repeated instructions count as in Ollama: the
last scalar counts; `stop`, LICENSE and MESSAGE accumulate. `resolve` checks the paths.
"""

from __future__ import annotations

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
from .parameters import ParameterValue
from .pragmas import Pragmas, settings
from .syntax import MAX_TEXT, Command, Document, Notice, format, read

_VERSION = re.compile(r"v?[0-9]+(?:\.[0-9]+){0,2}(?:[-+][0-9A-Za-z.+-]+)?")
_TEXTS = ("template", "system", "renderer", "parser")
_INSTRUCTIONS = ("model", "draft", "adapter", "license", "message", "requires", *_TEXTS)


@dataclass(frozen=True)
class Modelfile:
    """One Modelfile. If the file does not set a field, the field is None, and the engine or the base model
    decides.

    from_, draft, adapters: the FROM, DRAFT and ADAPTER commands with their lines, in order; `resolve` picks
        the command that counts
    parameters: typed values of the parameters that the file sets, without deprecated ones
    requires:   the Ollama version that the file requires; it is shown, but has no effect
    settings:   the checked `#eaglecpp:` pragmas; ModelfileError for an invalid value
    template_at: the TEMPLATE command, for the line number in messages
    notices:    warnings for the author
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
    settings: Pragmas = field(init=False)
    template_at: Command | None = field(default=None, compare=False, repr=False)
    notices: tuple[Notice, ...] = field(default=(), compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "settings", settings(self.pragmas))

    @property
    def drafts_head(self) -> bool:
        """True if a pragma, as in stored models, selects the model's own multi-token prediction head as the
        drafter.
        """
        return self.settings.draft is not None and self.settings.draft.args.strip() == HEAD

    @classmethod
    def load(cls, path: str | Path) -> Modelfile:
        """Reads a file or a pipe. Raises OSError, or ModelfileError with the file's name and line."""
        with Path(path).open("rb") as stream:
            text = stream.read(MAX_TEXT + 1)
        return cls.from_text(text, file=str(path))

    @classmethod
    def from_text(cls, text: str | bytes, *, file: str | None = None) -> Modelfile:
        """Parses a text. file: name of the file in messages. Raises ModelfileError."""
        return cls.from_document(read(text, file=file))

    @classmethod
    def from_document(cls, document: Document) -> Modelfile:
        """Builds a `Modelfile` from the result of `syntax.read`. Raises ModelfileError for an invalid
        value.
        """
        named: dict[str, list[Command]] = {}
        parameters: dict[str, ParameterValue] = {}
        notices = [*document.notices]
        for command in document.commands:
            if command.name in _INSTRUCTIONS:
                named.setdefault(command.name, []).append(command)
            else:
                notices += _set_parameter(parameters, command)
        for command in named.get("requires", ()):
            if _VERSION.fullmatch(command.args) is None:
                raise command.error(
                    "requires must be a valid semver (e.g. 0.14.0)", f"found '{command.args}'"
                )
        last = {name: commands[-1] for name, commands in named.items()}
        notices += [last[n].notice(built_in(n, last[n].args)) for n in ("renderer", "parser") if n in last]
        texts: dict[str, Any] = {name: last[name].args for name in _TEXTS if name in last}
        turns = (command.args.partition(": ") for command in named.get("message", ()))
        return cls(
            from_=tuple(named.get("model", ())),
            draft=tuple(named.get("draft", ())),
            adapters=tuple(named.get("adapter", ())),
            messages=tuple(Message(role, content) for role, _, content in turns),
            parameters=parameters,
            license=tuple(command.args for command in named.get("license", ())),
            pragmas=document.pragmas,
            notices=tuple(notices),
            template_at=last.get("template"),
            requires=last["requires"].args.removeprefix("v") if "requires" in last else None,
            **texts,
        )

    def over(self, base: Modelfile) -> Modelfile:
        """Returns this Modelfile merged with the Modelfile of its FROM model, by Ollama's rules of
        inheritance.

        Parameters are merged by name, and a new `stop` replaces the base's list. A TEMPLATE or SYSTEM of the
        base cannot be cleared. LICENSEs accumulate. MESSAGEs replace all MESSAGEs of the base. The base's
        FROM, DRAFT and ADAPTER commands come first.
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
        )

    def to_commands(self) -> list[Command]:
        """Returns equivalent commands, in the order in which Ollama prints them."""
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
        """Returns the text of a Modelfile that parses to this value. Raises ModelfileError if no text can
        express the value.
        """
        return format(self.to_commands(), self.pragmas)


def built_in(instruction: str, name: str) -> str:
    """Returns the notice for a RENDERER or PARSER instruction. These instructions name code inside Ollama, so
    prompts may differ from Ollama's.
    """
    return f"{instruction.upper()} {name} exists only in Ollama; eaglecpp uses the model's chat template"


def _set_parameter(parameters: dict[str, ParameterValue], command: Command) -> list[Notice]:
    """Adds the value of a `PARAMETER` to the parameters so far. Returns notices for the author."""
    name = command.name
    if name in params.DEPRECATED:
        return [command.notice(f"parameter {name} is deprecated and ignored")]
    try:
        value = params.parse_value(name, command.args)
        if isinstance(value, tuple):
            old = parameters.get(name)
            value = (*(old if isinstance(old, tuple) else ()), *value)
            check_texts(name, value)
    except InvalidValueError as error:
        hint = "" if name in params.PARAMETERS else f"known: {', '.join(params.PARAMETERS)}"
        raise command.error(str(error), hint) from None
    parameters[name] = value
    parameter = params.PARAMETERS[name]
    fitted = parameter.fitted(value)
    message = f"parameter {name} is {value}, outside the range {parameter.range}; using {fitted}"
    return [] if fitted == value else [command.notice(message)]
