# SPDX-License-Identifier: MIT
"""The tree of a parsed Go template: plain frozen values with the line they came from."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

__all__ = [
    "Action",
    "Branch",
    "Chain",
    "Command",
    "Field",
    "Jump",
    "Literal",
    "Name",
    "Node",
    "Operand",
    "Pipe",
    "TemplateCall",
    "Text",
    "Variable",
    "identifiers",
]


@dataclass(frozen=True, slots=True)
class Text:
    """Text between actions."""

    text: str
    line: int


@dataclass(frozen=True, slots=True)
class Literal:
    """A string, number or boolean constant; None is nil, which is legal as an argument only."""

    value: str | int | float | bool | None
    line: int


@dataclass(frozen=True, slots=True)
class Name:
    """A function by name."""

    name: str
    line: int


@dataclass(frozen=True, slots=True)
class Field:
    """`.A.B`: a chain of fields of dot; without names, dot itself."""

    names: tuple[str, ...]
    line: int


@dataclass(frozen=True, slots=True)
class Variable:
    """`$x.A`: a variable, its name with the dollar, and a chain of fields, mostly empty."""

    name: str
    names: tuple[str, ...]
    line: int


@dataclass(frozen=True, slots=True)
class Chain:
    """`(pipeline).A.B` or `function.A`."""

    base: Operand
    names: tuple[str, ...]
    line: int


@dataclass(frozen=True, slots=True)
class Command:
    """Operands with spaces between them; the first is a function, or the only one."""

    operands: tuple[Operand, ...]
    line: int


@dataclass(frozen=True, slots=True)
class Pipe:
    """Commands joined by `|`; the value goes into variables that it declares (`:=`) or assigns (`=`)."""

    commands: tuple[Command, ...]
    variables: tuple[str, ...]
    is_assignment: bool
    line: int


Operand = Literal | Name | Field | Variable | Chain | Pipe


@dataclass(frozen=True, slots=True)
class Action:
    """A pipeline whose value is printed."""

    pipe: Pipe
    line: int


@dataclass(frozen=True, slots=True)
class Branch:
    """`if`, `with` or `range`, told apart by `kind`. orelse: None without an else."""

    kind: str
    pipe: Pipe
    body: tuple[Node, ...]
    orelse: tuple[Node, ...] | None
    line: int


@dataclass(frozen=True, slots=True)
class TemplateCall:
    """`{{template "name" pipeline}}`; a `block` is one as well."""

    name: str
    pipe: Pipe | None
    line: int


@dataclass(frozen=True, slots=True)
class Jump:
    """`break` or `continue`."""

    kind: str
    line: int


Node = Text | Action | Branch | TemplateCall | Jump


def identifiers(nodes: tuple[Node, ...]) -> Iterator[str]:
    """Every field and variable name that Ollama looks at to tell what a template uses.

    Fields after a parenthesis are not among them, as in ollama/ollama: template/template.go.
    """
    for node in nodes:
        match node:
            case Action(pipe):
                yield from _pipe_identifiers(pipe)
            case Branch(_, pipe, body, orelse):
                yield from _pipe_identifiers(pipe)
                yield from identifiers(body)
                yield from identifiers(orelse or ())
            case TemplateCall(_, Pipe() as pipe):
                yield from _pipe_identifiers(pipe)
            case _:
                pass


def _pipe_identifiers(pipe: Pipe) -> Iterator[str]:
    for command in pipe.commands:
        for operand in command.operands:
            match operand:
                case Field(names):
                    yield from names
                case Variable(name, names):
                    yield from (name, *names)
                case Pipe():
                    yield from _pipe_identifiers(operand)
                case _:
                    pass
