# SPDX-License-Identifier: MIT
"""Jinja chat templates, as GGUF files carry them: sandboxed, and bounded in rounds, calls and output.

Settings and globals are those that Hugging Face and llama-cpp-python render such templates with (trimmed
blocks, loop controls, `raise_exception`, `strftime_now`, `tojson` without ASCII escapes, ignored `generation`
tags). Their renderer runs a template to its end whatever it does; this one ends a template that loops or
calls without end in a TemplateError. Jinja is imported on first use, because it is slow to load.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from datetime import datetime
from functools import cache
from typing import TYPE_CHECKING, Any

from eaglecpp.chat.gotemplate import TemplateError

if TYPE_CHECKING:
    import jinja2

__all__ = ["MAX_CHARS", "MAX_STEPS", "JinjaTemplate", "rendered_at"]

MAX_STEPS = 500_000
"""Loop rounds and calls in one rendering."""
MAX_CHARS = 16 << 20
"""Characters of output, and of any string that a template multiplies into being."""

_RUNTIME_ERRORS = (TypeError, ValueError, LookupError, AttributeError, ArithmeticError)
_steps: ContextVar[list[int]] = ContextVar("steps")
_now: ContextVar[datetime | None] = ContextVar("now", default=None)


@contextmanager
def rendered_at(now: datetime) -> Iterator[None]:
    """Templates that write today's date write this one: what is rendered inside is the same on every day."""
    token = _now.set(now)
    try:
        yield
    finally:
        _now.reset(token)


class JinjaTemplate:
    """One compiled template. Raises TemplateError, with the line, for a text that is no Jinja."""

    def __init__(self, text: str) -> None:
        import jinja2

        try:
            self._template = _environment().from_string(text)
        except jinja2.TemplateSyntaxError as error:
            raise TemplateError(error.message or "syntax error", error.lineno, name="chat_template") from None
        except RecursionError:
            raise TemplateError("nested too deeply", 0, name="chat_template") from None

    def render(self, variables: Mapping[str, Any]) -> str:
        """The text. Raises TemplateError for an error of the template and beyond the limits."""
        import jinja2

        token = _steps.set([0])
        try:
            return "".join(_bounded_parts(self._template.generate(**variables, **_GLOBALS)))
        except TemplateError as error:  # from a bound, or from raise_exception
            error.line = error.line or _line(error)
            raise
        except _RUNTIME_ERRORS as error:
            raise TemplateError(str(error), _line(error), name="chat_template") from None
        except jinja2.TemplateError as error:
            raise TemplateError(str(error), _line(error), name="chat_template") from None
        except RecursionError:
            raise TemplateError("nested too deeply", 0, name="chat_template") from None
        finally:
            _steps.reset(token)


def _bounded_parts(parts: Iterable[str]) -> Iterator[str]:
    n_chars = 0
    for part in parts:
        n_chars += len(part)
        if n_chars > MAX_CHARS:
            raise TemplateError(f"stopped after {MAX_CHARS} characters of output", 0, name="chat_template")
        yield part


def _step(n_steps: int = 1) -> None:
    count = _steps.get()
    count[0] += n_steps
    if count[0] > MAX_STEPS:
        raise TemplateError(f"stopped after {MAX_STEPS} loop rounds and calls", 0, name="chat_template")


def _counted(values: Any) -> Iterator[Any]:
    for value in values:
        _step()
        yield value


def _line(error: BaseException) -> int:
    """The template's line in which an error was raised; Jinja puts it in the traceback."""
    line, traceback = 0, error.__traceback__
    while traceback is not None:
        if traceback.tb_frame.f_code.co_filename == "<template>":
            line = traceback.tb_lineno
        traceback = traceback.tb_next
    return line


def _raise_exception(message: str) -> None:
    raise TemplateError(str(message), 0, name="chat_template")


def _strftime_now(form: str) -> str:
    return (_now.get() or datetime.now()).strftime(form)


def _tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: Any = None,
    sort_keys: bool = False,
) -> str:
    return json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )


_GLOBALS: dict[str, Callable[..., Any]] = {
    "raise_exception": _raise_exception,
    "strftime_now": _strftime_now,
}


@cache
def _environment() -> jinja2.Environment:
    """The one environment; classes are made here because their bases load with Jinja."""
    from jinja2 import nodes
    from jinja2.ext import Extension, loopcontrols
    from jinja2.parser import Parser
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    class IgnoreGeneration(Extension):
        """`{% generation %}` marks what a trainer learns from; a prompt has its content only."""

        tags = frozenset(("generation",))  # type: ignore[assignment] # jinja2 declares a set

        def parse(self, parser: Parser) -> list[nodes.Node]:
            next(parser.stream)
            return parser.parse_statements(("name:endgeneration",), drop_needle=True)

    class Environment(ImmutableSandboxedEnvironment):
        intercepted_binops = frozenset(("*", "**"))

        def _generate(self, source: nodes.Template, *args: Any, **kwargs: Any) -> str:
            for loop in source.find_all(nodes.For):
                loop.iter = nodes.Filter(loop.iter, "_counted", [], [], None, None, lineno=loop.lineno)
            return super()._generate(source, *args, **kwargs)

        def call(self, context: Any, function: Any, /, *args: Any, **kwargs: Any) -> Any:
            _step()
            return super().call(context, function, *args, **kwargs)

        def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
            sizes = [len(side) if isinstance(side, str | list | tuple) else side for side in (left, right)]
            too_large = operator == "*" and any(not isinstance(side, int | float) for side in (left, right))
            if (too_large and sizes[0] * sizes[1] > MAX_CHARS) or (operator == "**" and abs(right) > 64):
                raise ValueError(f"{operator} makes too large a value")
            return super().call_binop(context, operator, left, right)

    environment = Environment(
        trim_blocks=True, lstrip_blocks=True, extensions=[IgnoreGeneration, loopcontrols]
    )
    environment.filters["tojson"] = _tojson
    environment.filters["_counted"] = _counted
    return environment
