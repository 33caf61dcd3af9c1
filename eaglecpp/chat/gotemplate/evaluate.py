# SPDX-License-Identifier: MIT
"""Runs a parsed template on data.

Everything a template can do is bounded (`Limits`): the steps it takes, the text it makes and how deep
templates call each other, so that a hostile or broken one ends in a TemplateError that names the line and
never hangs the process. Source of the rules: golang/go: src/text/template/exec.go, with Ollama's option
missingkey=zero.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from eaglecpp.errors import TemplateError

from .functions import FUNCTIONS, CallError, Function
from .lex import quoted
from .nodes import (
    Action,
    Branch,
    Chain,
    Command,
    Field,
    Jump,
    Literal,
    Name,
    Node,
    Operand,
    Pipe,
    TemplateCall,
    Text,
    Variable,
)
from .values import NO_VALUE, Struct, is_true, printed, sorted_keys, to_bytes, type_name

__all__ = ["Limits", "execute"]

_MISSING = object()  # no value comes in from the stage before; not the same as a nil that does
_TEXT_PER_STEP = 32


@dataclass(frozen=True)
class Limits:
    """How much one execution may do.

    n_steps: nodes visited, plus one for every 32 characters that functions read and make
    n_chars: characters of output
    n_calls: templates inside each other
    """

    n_steps: int = 1_000_000
    n_chars: int = 16 << 20
    n_calls: int = 50


def execute(
    templates: Mapping[str, Sequence[Node]],
    data: Mapping[str, Any],
    *,
    name: str = "",
    limits: Limits | None = None,
) -> str:
    """The text of template `name` with `data` as its dot. Raises TemplateError."""
    run = _Run(templates, limits or Limits(), name)
    try:
        run.walk(templates[name], data, [("$", data)])
    except RecursionError:
        raise run.error("nested too deeply", 0, "use fewer nested templates and blocks") from None
    return to_bytes("".join(run.parts)).decode("utf-8", "replace")


Scope = list[tuple[str, Any]]


class _Run:
    """One execution. Scopes are stacks of (variable, value); each construct cuts its scope at its end."""

    def __init__(self, templates: Mapping[str, Sequence[Node]], limits: Limits, name: str) -> None:
        self.templates = templates
        self.limits = limits
        self.name = name
        self.parts: list[str] = []
        self.n_chars = 0
        self.n_steps = 0
        self.n_calls = 0

    def error(self, message: str, line: int, hint: str = "") -> TemplateError:
        return TemplateError(message, line, name=self.name, hint=hint)

    def _spend(self, n_steps: int, line: int) -> None:
        self.n_steps += n_steps
        if self.n_steps > self.limits.n_steps:
            hint = "it loops too often or builds too much text for a chat template"
            raise self.error(f"stopped after {self.limits.n_steps} steps", line, hint)

    def _write(self, text: str, line: int) -> None:
        self.n_chars += len(text)
        if self.n_chars > self.limits.n_chars:
            raise self.error(
                f"stopped after {self.limits.n_chars} characters of output", line, "it repeats itself"
            )
        self.parts.append(text)

    def walk(self, nodes: Sequence[Node], dot: Any, scope: Scope) -> str:
        """Runs nodes in order. Gives "break" or "continue" when one of them ends the list early, else ""."""
        for node in nodes:
            self._spend(1, node.line)
            match node:
                case Text(text):
                    self._write(text, node.line)
                case Action(pipe):
                    value = self._pipe(pipe, dot, scope)
                    if not pipe.variables:
                        self._write(printed(value), node.line)
                case Branch("range"):
                    self._range(node, dot, scope)
                case Branch():
                    jump = self._branch(node, dot, scope)
                    if jump:
                        return jump
                case TemplateCall():
                    self._call_template(node, dot, scope)
                case Jump(kind):
                    return kind
        return ""

    def _branch(self, node: Branch, dot: Any, scope: Scope) -> str:
        mark = len(scope)
        value = self._pipe(node.pipe, dot, scope)
        jump = ""
        if is_true(value):
            jump = self.walk(node.body, value if node.kind == "with" else dot, scope)
        elif node.orelse is not None:
            jump = self.walk(node.orelse, dot, scope)
        del scope[mark:]
        return jump

    def _range(self, node: Branch, dot: Any, scope: Scope) -> None:
        mark = len(scope)
        value = self._pipe(node.pipe, dot, scope)
        body_mark = len(scope)
        n_rounds = 0
        for index, element in self._items(node, value):
            n_rounds += 1
            self._spend(1, node.line)
            self._set_range_variables(node.pipe, index, element, scope, body_mark)
            jump = self.walk(node.body, element, scope)
            del scope[body_mark:]
            if jump == "break":
                break
        if not n_rounds and node.orelse is not None:
            self.walk(node.orelse, dot, scope)
        del scope[mark:]

    def _items(self, node: Branch, value: Any) -> Iterable[tuple[Any, Any]]:
        if value is NO_VALUE:
            return ()
        if isinstance(value, list | tuple):
            return enumerate(value)
        if isinstance(value, dict):
            return [(key, value[key]) for key in sorted_keys(value)]
        if isinstance(value, int) and not isinstance(value, bool):
            if len(node.pipe.variables) > 1:
                raise self.error(f"can't use {value} to iterate over more than one variable", node.line)
            return ((NO_VALUE, number) for number in range(value))
        raise self.error(f"range can't iterate over {printed(value)}", node.line)

    def _set_range_variables(self, pipe: Pipe, index: Any, element: Any, scope: Scope, top: int) -> None:
        """One variable gets the element, two get index and element; `:=` made them the last of the scope."""
        values = [element] if len(pipe.variables) == 1 else [index, element]
        for offset, (name, value) in enumerate(zip(pipe.variables, values, strict=False)):
            if pipe.is_assignment:
                self._assign(name, value, scope, pipe.line)
            else:
                scope[top - len(pipe.variables) + offset] = (name, value)

    def _call_template(self, node: TemplateCall, dot: Any, scope: Scope) -> None:
        body = self.templates.get(node.name)
        if body is None:
            raise self.error(f"template {quoted(node.name)} not defined", node.line)
        if self.n_calls == self.limits.n_calls:
            raise self.error(f"exceeded maximum template depth ({self.limits.n_calls})", node.line)
        value = NO_VALUE if node.pipe is None else self._pipe(node.pipe, dot, scope)
        self.n_calls += 1
        self.walk(body, value, [("$", value)])
        self.n_calls -= 1

    def _pipe(self, pipe: Pipe, dot: Any, scope: Scope) -> Any:
        value: Any = _MISSING
        for command in pipe.commands:
            value = self._command(command, dot, scope, value)
            if value is None:
                value = NO_VALUE
        for name in pipe.variables:
            if pipe.is_assignment:
                self._assign(name, value, scope, pipe.line)
            else:
                scope.append((name, value))
        return value

    def _assign(self, name: str, value: Any, scope: Scope, line: int) -> None:
        for index in range(len(scope) - 1, -1, -1):
            if scope[index][0] == name:
                scope[index] = (name, value)
                return
        raise self.error(f"undefined variable: {name}", line, "declare it first, with :=")

    def _variable(self, name: str, scope: Scope, line: int) -> Any:
        for known, value in reversed(scope):
            if known == name:
                return value
        raise self.error(f"undefined variable: {name}", line)

    def _command(self, command: Command, dot: Any, scope: Scope, final: Any) -> Any:
        """One stage of a pipeline; `final` is the value of the stage before and becomes the last argument."""
        self._spend(1, command.line)
        first, *arguments = command.operands
        if isinstance(first, Name):
            return self._function(first, arguments, dot, scope, final)
        has_arguments = bool(arguments) or final is not _MISSING
        if isinstance(first, Chain) or (isinstance(first, Field | Variable) and first.names):
            return self._operand(first, dot, scope, has_arguments)
        if isinstance(first, Literal) and first.value is None:
            raise self.error("nil is not a command", first.line)
        if has_arguments:
            raise self.error("can't give argument to non-function", command.line)
        return self._operand(first, dot, scope)

    def _operand(self, operand: Operand, dot: Any, scope: Scope, has_arguments: bool = False) -> Any:
        match operand:
            case Literal(value):
                return value
            case Field(names):
                return self._fields(dot, names, operand.line, has_arguments)
            case Variable(name, names):
                value = self._variable(name, scope, operand.line)
                return self._fields(value, names, operand.line, has_arguments)
            case Pipe():
                return self._pipe(operand, dot, scope)
            case Name():
                return self._function(operand, (), dot, scope, _MISSING)
            case Chain(base, names):
                value = self._operand(base, dot, scope)
                return self._fields(value, names, operand.line, has_arguments)

    def _fields(self, value: Any, names: Sequence[str], line: int, has_arguments: bool) -> Any:
        for index, name in enumerate(names):
            value = self._field(value, name, line, has_arguments and index == len(names) - 1)
        return value

    def _field(self, receiver: Any, name: str, line: int, has_arguments: bool) -> Any:
        if receiver is NO_VALUE:
            return NO_VALUE
        if receiver is None:
            raise self.error(
                f"nil pointer evaluating interface {{}}.{name}", line, "guard it with if or with"
            )
        fields = receiver.fields if isinstance(receiver, Struct) else receiver
        if not isinstance(fields, Mapping) or (isinstance(receiver, Struct) and name not in fields):
            raise self.error(f"can't evaluate field {name} in type {type_name(receiver)}", line)
        if has_arguments:
            raise self.error(f"{name} is not a method but has arguments", line)
        return fields.get(name)

    def _function(self, node: Name, arguments: Sequence[Operand], dot: Any, scope: Scope, final: Any) -> Any:
        n_given = len(arguments) + (final is not _MISSING)
        if node.name in ("and", "or"):
            self._check_count(node, 1, True, n_given)
            return self._shortcut(node, arguments, dot, scope, final)
        function = FUNCTIONS[node.name]
        self._check_count(node, function.n_fixed, function.variadic, n_given)
        values = [self._operand(argument, dot, scope) for argument in arguments]
        if final is not _MISSING:
            values.append(final)
        return self._called(node, function, values)

    def _check_count(self, node: Name, n_fixed: int, variadic: bool, n_given: int) -> None:
        if n_given < n_fixed or (n_given > n_fixed and not variadic):
            want = f"at least {n_fixed}" if variadic else n_fixed
            raise self.error(f"wrong number of args for {node.name}: want {want} got {n_given}", node.line)

    def _shortcut(self, node: Name, arguments: Sequence[Operand], dot: Any, scope: Scope, final: Any) -> Any:
        """`and` and `or`: the first operand that decides, or the last one."""
        value: Any = NO_VALUE
        for argument in arguments:
            value = self._operand(argument, dot, scope)
            if is_true(value) == (node.name == "or"):
                return value
        return value if final is _MISSING else final

    def _called(self, node: Name, function: Function, values: Sequence[Any]) -> Any:
        self._spend_text(values, node.line)
        try:
            result = function.call(*values)
        except CallError as error:
            raise self.error(f"error calling {node.name}: {error}", node.line) from None
        self._spend_text((result,), node.line)
        return result

    def _spend_text(self, values: Sequence[Any], line: int) -> None:
        n_chars = sum(len(value) for value in values if isinstance(value, str))
        self._spend(n_chars // _TEXT_PER_STEP, line)
