# SPDX-License-Identifier: MIT
"""Jinja chat templates from GGUF files: sandboxed, and limited in every resource they could use.

Settings and globals are those that Hugging Face and llama-cpp-python render such templates with (trimmed
blocks, loop controls, `raise_exception`, `strftime_now`, `tojson` without ASCII escapes, ignored `generation`
tags). Their renderer runs a template to its end, whatever it does; here every construct that can make
something large asks `jinja_bounds` first, and a template that goes beyond is a TemplateError. To leave none
out, a template is rewritten before it is compiled: loops are counted, `~` and literals become filters, and
all operators, calls and outputs go through the environment. Jinja is imported on first use, because it is
slow to load.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from datetime import datetime
from functools import cache
from typing import TYPE_CHECKING, Any, cast

from eaglecpp.chat import jinja_bounds as bounds
from eaglecpp.chat.jinja_bounds import MAX_CHARS, MAX_STEPS, Budget
from eaglecpp.errors import TemplateError

if TYPE_CHECKING:
    import jinja2

__all__ = ["MAX_CHARS", "MAX_STEPS", "JinjaTemplate", "rendered_at"]

_OF_JINJA = ("_loop_vars", "_block_vars")  # what generated code adds to the arguments of a call
_MAX_TEMPLATE = 1 << 20  # characters; the longest known one has 30 thousand
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
    """One compiled template. Raises TemplateError, with the line, for a text that is not Jinja."""

    def __init__(self, text: str) -> None:
        import jinja2

        if len(text) > _MAX_TEMPLATE:
            raise TemplateError(f"{len(text)} characters, at most {_MAX_TEMPLATE}", 0, name="chat_template")
        left = Budget()
        token = bounds.budget.set(left)
        try:
            self._template = _environment().from_string(text)
        except jinja2.TemplateSyntaxError as error:
            raise TemplateError(error.message or "syntax error", error.lineno, name="chat_template") from None
        except (RecursionError, SyntaxError, MemoryError, OverflowError):  # Python has its own limits
            raise TemplateError("nested too deeply", 0, name="chat_template") from None
        finally:
            bounds.budget.reset(token)
        self._n_static = left.n_static

    def render(self, variables: Mapping[str, Any]) -> str:
        """The text. Raises TemplateError for an error of the template and beyond the limits."""
        token = bounds.budget.set(Budget(self._n_static))
        try:
            return "".join(_bounded_parts(self._template.generate(**variables)))
        except TemplateError as error:  # from a bound, or from raise_exception
            error.line = error.line or _line(error)
            raise
        except (RecursionError, MemoryError):
            raise TemplateError("nested too deeply", 0, name="chat_template") from None
        except Exception as error:  # a stranger's program ran: whatever it raised is the template's error
            message = str(error)[:500] or type(error).__name__
            raise TemplateError(message, _line(error), name="chat_template") from None
        finally:
            bounds.budget.reset(token)


def _bounded_parts(parts: Iterable[str]) -> Iterator[str]:
    n_chars = 0
    for part in parts:
        n_chars += len(part)
        if n_chars > bounds.MAX_CHARS:
            raise TemplateError(
                f"stopped after {bounds.MAX_CHARS} characters of output", 0, name="chat_template"
            )
        yield part


def _line(error: BaseException) -> int:
    """The template's line in which an error was raised; Jinja puts it in the traceback."""
    line, traceback = 0, error.__traceback__
    while traceback is not None:
        if traceback.tb_frame.f_code.co_filename == "<template>":
            line = traceback.tb_lineno
        traceback = traceback.tb_next
    return line


def _raise_exception(message: Any) -> None:
    raise TemplateError(bounds.as_text(message)[:2000], 0, name="chat_template")


def _strftime_now(form: str) -> str:
    if len(form) > 500 or re.search(r"%[^a-zA-Z%]*[0-9]{3}", form):
        raise bounds.stopped("a date of more than 99 columns")
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


@cache
def _environment() -> jinja2.Environment:
    """The one environment; classes are made here because their bases load with Jinja."""
    from jinja2 import nodes
    from jinja2.exceptions import SecurityError
    from jinja2.ext import Extension, loopcontrols
    from jinja2.filters import FILTERS
    from jinja2.parser import Parser
    from jinja2.runtime import BlockReference, LoopContext, Macro, Undefined
    from jinja2.sandbox import ImmutableSandboxedEnvironment, safe_range
    from jinja2.utils import Namespace, pass_eval_context
    from jinja2.visitor import NodeTransformer

    class IgnoreGeneration(Extension):
        """`{% generation %}` marks what a trainer learns from; a prompt has its content only."""

        tags = frozenset(("generation",))  # type: ignore[assignment] # jinja2 declares a set

        def parse(self, parser: Parser) -> list[nodes.Node]:
            next(parser.stream)
            return parser.parse_statements(("name:endgeneration",), drop_needle=True)

    class Space(Namespace):
        """`namespace()`. Its text does not show what is in it, which changes after it was measured."""

        def __repr__(self) -> str:
            return "<Namespace>"

    class Bounding(NodeTransformer):
        """Puts a filter of ours around everything that makes a value without a call or an operator."""

        def _asking(self, node: nodes.Node, name: str, *others: nodes.Expr) -> nodes.Expr:
            return nodes.Filter(
                cast(nodes.Expr, node), name, list(others), [], None, None, lineno=node.lineno
            )

        def visit_For(self, node: nodes.For) -> nodes.Node:
            n_static = _static(node)
            self.generic_visit(node)
            node.iter = self._asking(node.iter, "_counted", nodes.Const(n_static, lineno=node.lineno))
            return node

        def visit_Concat(self, node: nodes.Concat) -> nodes.Node:
            self.generic_visit(node)
            return self._asking(node.nodes[0], "_concat", *node.nodes[1:])

        def _literal(self, node: Any) -> nodes.Node:
            self.generic_visit(node)
            is_stored = getattr(node, "ctx", "load") != "load"
            is_slice = not isinstance(node, nodes.Getitem) or isinstance(node.arg, nodes.Slice)
            return self._asking(node, "_made") if is_slice and not is_stored else node

        visit_List = visit_Dict = visit_Tuple = visit_Getitem = _literal

    def _static(node: nodes.Node) -> int:
        """Characters that stand in a piece of the template itself."""
        texts = [part.data for part in node.find_all(nodes.TemplateData)]
        texts += [part.value for part in node.find_all(nodes.Const) if isinstance(part.value, str)]
        return sum(map(len, texts))

    class Environment(ImmutableSandboxedEnvironment):
        intercepted_binops = frozenset(ImmutableSandboxedEnvironment.default_binop_table)

        def _generate(self, source: nodes.Template, *args: Any, **kwargs: Any) -> str:
            again = source.find_all((nodes.Macro, nodes.CallBlock, nodes.Block, nodes.For))
            kinds = [node for node in again if not isinstance(node, nodes.For) or node.recursive]
            bounds.budget.get().n_static = sum(map(_static, kinds))
            return super()._generate(Bounding().visit(source), *args, **kwargs)

        def call(self, context: Any, function: Any, /, *args: Any, **kwargs: Any) -> Any:
            left = bounds.budget.get()
            left.step()
            given = {name: value for name, value in kwargs.items() if name not in _OF_JINJA}
            if isinstance(function, Macro | BlockReference | LoopContext):
                left.spend(left.n_static)
                if isinstance(function, LoopContext):
                    args = (bounds.counted(args[0]), *args[1:]) if args else args
            elif not isinstance(function, Undefined) and function not in known:
                method = getattr(function, "__wrapped__", function)
                owner, name = getattr(method, "__self__", None), getattr(method, "__name__", "")
                args = tuple(list(bounds.counted(a)) if isinstance(a, Iterator) else a for a in args)
                is_loop = isinstance(owner, LoopContext)
                if not is_loop and not bounds.check_method(owner, name, args, given):
                    raise SecurityError(f"{type(owner).__name__}.{name} is not for templates")
            return bounds.made(super().call(context, function, *args, **kwargs))

        def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
            bounds.check_operator(operator, left, right)
            return bounds.made(super().call_binop(context, operator, left, right))

    @pass_eval_context
    def finalize(context: Any, value: Any) -> str:
        """Takes a context so that Jinja never works an output out while compiling, when nobody counts."""
        return bounds.as_text(value)

    environment = Environment(
        trim_blocks=True,
        lstrip_blocks=True,
        extensions=[IgnoreGeneration, loopcontrols],
        finalize=finalize,
        optimized=False,
    )
    environment.filters = {
        name: bounds.bounded_filter(name, _tojson if name == "tojson" else FILTERS[name])
        for name in bounds.FILTERS
    } | {"_counted": bounds.counted, "_concat": bounds.concat, "_made": bounds.made}
    environment.globals = {
        "raise_exception": _raise_exception,
        "strftime_now": _strftime_now,
        "range": safe_range,
        "dict": dict,
        "namespace": Space,
    }
    known = tuple(environment.globals.values())
    return environment
