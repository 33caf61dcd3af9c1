# SPDX-License-Identifier: MIT
"""Jinja chat templates from GGUF files: sandboxed, and limited in every resource they could use.

Settings and globals are those that Hugging Face and llama-cpp-python render such templates with (trimmed
blocks, loop controls, `raise_exception`, `strftime_now`, `tojson` without ASCII escapes, ignored `generation`
tags). Their renderer runs a template to its end, whatever it does; here one that goes beyond a limit is a
TemplateError.

Only methods and filters that are listed here exist, so a new one does not open a hole. What may be larger
than what it is made of (`*`, formats, `replace`, `join`, `indent`, JSON, lists of characters) asks first, by
one rule (`_ask`); everything else is measured after. To leave nothing out, a template is rewritten before it
is compiled: loops, literals, slices, comparisons, `~` and text become filters; operators, calls and outputs
go through the environment. Jinja is imported on first use, because it is slow to load.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from datetime import datetime
from functools import cache, wraps
from typing import TYPE_CHECKING, Any, cast

from eaglecpp.chat import bounds
from eaglecpp.chat.bounds import NODE, as_text, budget, chars, counted, failed, made, measure, stopped
from eaglecpp.errors import TemplateError

if TYPE_CHECKING:
    import jinja2

_now: ContextVar[datetime | None] = ContextVar("now", default=None)


def rendered_at(now: datetime) -> AbstractContextManager[None]:
    """Templates that write today's date write this one: what is rendered inside is the same on every day."""
    return bounds.held(_now, now)


class JinjaTemplate:
    """One compiled template. Raises TemplateError, with the line, for a text that is not Jinja."""

    def __init__(self, text: str) -> None:
        bounds.check_size(text)
        with own_errors():
            self._template = environment().from_string(text)

    def render(self, variables: Mapping[str, Any]) -> str:
        """The text. Raises TemplateError for an error of the template and beyond the limits."""
        with bounds.budgeted(), own_errors():
            return self._template.render(variables)


@contextmanager
def own_errors() -> Iterator[None]:
    """An untrusted program is compiled or runs: whatever it raises is the template's error."""
    try:
        yield
    except TemplateError as error:  # from a bound, or from raise_exception
        error.line = error.line or _line(error)
        raise
    except (RecursionError, MemoryError, SyntaxError, OverflowError):  # Python has its own limits
        raise failed("nested too deeply") from None
    except Exception as error:
        line = getattr(error, "lineno", 0) or _line(error)
        message = getattr(error, "message", None) or str(error) or type(error).__name__
        raise failed(message[:500], line) from None


def _line(error: BaseException) -> int:
    """The template's line in which an error was raised; Jinja puts it in the traceback."""
    line, traceback = 0, error.__traceback__
    while traceback is not None:
        if traceback.tb_frame.f_code.co_filename == "<template>":
            line = traceback.tb_lineno
        traceback = traceback.tb_next
    return line


_METHODS = """bit_length capitalize casefold copy count endswith find format get index is_integer isalnum
    isalpha isascii isdecimal isdigit isidentifier islower isnumeric isprintable isspace istitle isupper
    items join keys lower lstrip partition removeprefix removesuffix replace rfind rindex rpartition
    rsplit rstrip split splitlines startswith strip swapcase title upper values"""
_FILTERS = """abs capitalize count d default dictsort e escape first float forceescape format groupby indent
    int items join last length list lower map max min reject rejectattr replace reverse safe select selectattr
    sort string sum title tojson trim truncate unique upper wordcount"""
"""Methods and filters that templates may use."""
_OWNERS = (str, dict, list, tuple, float, int)  # of the methods
_GROWING = "format indent join lstrip replace rfind rindex rpartition rsplit rstrip split strip tojson trim"
_TAKING_APART = "dictsort groupby list map reverse rsplit select sort split splitlines title unique wordcount"
_WIDE = re.compile(r"[0-9]{4}|%[^a-zA-Z%]*\*|\{[^{}]*\{")


def _ask(name: str, value: Any, *others: Any, **named: Any) -> None:
    """Before a method, filter or operator makes something. What it makes, or the steps it takes, are at most
    the product of the first value's size and that of the others together, but for the columns that a format
    names; a text that is taken apart becomes a list with an entry for each character.
    """
    given = (*others, *named.values())
    if name == "format" and _WIDE.search(as_text(value).replace("{{", "")):
        raise stopped("a format of more than 999 columns, or of so many as a value says")
    if name in _GROWING.split():
        n = _size(value, name) * max(1, sum(_size(one, name) for one in given))
        if n > bounds.MAX_PRODUCT:
            raise stopped(f"{name} may take {n} steps, more than {bounds.MAX_PRODUCT}")
    if name in _TAKING_APART.split() and isinstance(value, str):
        separator = given[0] if given and name.endswith("split") else ""
        budget.get().spend((value.count(separator or "") + 1) * 2 * NODE)
    if name == "sum" and not all(isinstance(one, int | float | str) for one in given):
        raise TypeError("sum: expected numbers")


def _size(value: Any, name: str) -> int:
    """Characters of a text, at least those of another value; of a number, which may be a width, itself; of a
    list to be joined, whose texts exist, the places between them.
    """
    if isinstance(value, str):
        return max(1, len(value))
    if isinstance(value, int) and name != "format":
        return max(1, value)
    n_chars = measure(value)[0]
    return len(value) + 1 if name == "join" and isinstance(value, list | tuple) else n_chars


def _operator(sign: str, left: Any, right: Any) -> None:
    if sign == "**":
        raise stopped("** is not for templates")
    if sign == "%" and isinstance(left, str):
        _ask("format", left, right)
    for one, other in ((left, right), (right, left)):
        if sign == "*" and isinstance(one, str | list | tuple) and isinstance(other, int):
            chars(len(one) * max(other, 0))


def _bounded(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """A filter or test of Jinja's, asked for before, measured after. What Jinja passes first, such as the
    context, is no value.
    """
    n_first = int(hasattr(function, "jinja_pass_arg"))

    @wraps(function)
    def run(*args: Any, **named: Any) -> Any:
        args = _whole(args)
        _ask(name, *args[n_first:], **named)
        return made(function(*args, **named))

    return run


def _whole(args: Iterable[Any]) -> tuple[Any, ...]:
    """Arguments with lists in place of what is made bit by bit."""
    budget.get().check_time()
    return tuple(list(counted(value)) if isinstance(value, Iterator) else value for value in args)


def _raise_exception(message: Any) -> None:
    raise failed(as_text(message)[:2000])


def _strftime_now(form: str) -> str:
    if len(form) > 500 or re.search(r"%[^a-zA-Z%]*[0-9]{3}", form):
        raise stopped("a date of more than 99 columns")
    return (_now.get() or datetime.now()).strftime(form)


def _tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: Any = None,
    separators: Any = None,
    sort_keys: bool = False,
) -> str:
    """Only what Hugging Face's has: of the others, `default` and `cls` call whatever they are given."""
    return json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )


@cache
def environment() -> jinja2.Environment:
    """The one environment; classes are made here because their bases load with Jinja."""
    from jinja2 import nodes
    from jinja2.exceptions import SecurityError
    from jinja2.ext import Extension, loopcontrols
    from jinja2.filters import FILTERS
    from jinja2.lexer import Token
    from jinja2.parser import Parser
    from jinja2.runtime import BlockReference, LoopContext, Macro, Undefined
    from jinja2.sandbox import ImmutableSandboxedEnvironment, safe_range
    from jinja2.utils import Namespace, pass_eval_context
    from jinja2.visitor import NodeTransformer

    class IgnoreGeneration(Extension):
        """`{% generation %}` marks what a trainer learns from; a prompt has its content only."""

        tags = frozenset(("generation",))  # type: ignore[assignment] # jinja2 declares a set

        def filter_stream(self, stream: Iterable[Token]) -> Iterator[Token]:
            """Passes the tokens on, as many as a template may have."""
            for n_tokens, token in enumerate(stream):
                if n_tokens >= bounds.MAX_TOKENS:
                    raise failed(
                        f"more than {bounds.MAX_TOKENS} words and signs of the language", token.lineno
                    )
                yield token

        def parse(self, parser: Parser) -> list[nodes.Node]:
            next(parser.stream)
            return parser.parse_statements(("name:endgeneration",), drop_needle=True)

    class Space(Namespace):
        """`namespace()`. Its text does not show what is in it, which changes after it was measured."""

        def __repr__(self) -> str:
            return "<Namespace>"

    class Bounding(NodeTransformer):
        """Puts a filter of ours around everything that makes a value, or may take long, without a call or an
        operator. Text becomes a constant, because Jinja does not show text to `finalize`.
        """

        level = 0

        def generic_visit(self, node: nodes.Node, *args: Any, **kwargs: Any) -> nodes.Node:
            self.level += 1
            if self.level > bounds.MAX_NESTING:
                raise failed("nested too deeply", node.lineno)
            if isinstance(node, nodes.Compare) and len(node.ops) > 8:
                raise failed(f"{len(node.ops)} comparisons in a row", node.lineno)
            super().generic_visit(node)
            self.level -= 1
            if isinstance(node, nodes.TemplateData):
                return nodes.Const(node.data, lineno=node.lineno)
            if isinstance(node, nodes.Concat):
                return _filter("_concat", *node.nodes)
            if isinstance(node, nodes.For):
                node.iter = _filter("_counted", node.iter)
            is_slice = isinstance(node, nodes.Getitem) and isinstance(node.arg, nodes.Slice)
            if is_slice or isinstance(node, nodes.List | nodes.Dict | nodes.Tuple | nodes.Compare):
                return _filter("_made", node) if getattr(node, "ctx", "load") == "load" else node
            return node

    def _filter(name: str, node: nodes.Node, *others: nodes.Node) -> nodes.Filter:
        return nodes.Filter(node, name, list(others), [], None, None, lineno=node.lineno)

    class Environment(ImmutableSandboxedEnvironment):
        intercepted_binops = frozenset(ImmutableSandboxedEnvironment.default_binop_table)
        concat = staticmethod(bounds.joined)

        def _generate(self, source: nodes.Template, *args: Any, **kwargs: Any) -> str:
            return super()._generate(Bounding().visit(source), *args, **kwargs)

        def call(self, context: Any, function: Any, /, *args: Any, **kwargs: Any) -> Any:
            method = getattr(function, "__wrapped__", function)
            owner, name = getattr(method, "__self__", None), getattr(method, "__name__", "")
            args = _whole(args)
            budget.get().spend(NODE * (4 + len(args) + len(kwargs)))  # a namespace keeps them
            is_own = isinstance(function, Macro | BlockReference | LoopContext | Undefined)
            if not is_own and not isinstance(owner, LoopContext) and function not in known:
                if not isinstance(owner, _OWNERS) or name not in _METHODS.split():
                    raise SecurityError(f"{type(owner).__name__}.{name} is not for templates")
                given = {key: kwargs[key] for key in kwargs if not key.startswith("_")}  # Jinja adds its own
                _ask(name, owner, *args, **given)
            return made(super().call(context, function, *args, **kwargs))

        def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
            _operator(operator, left, right)
            return made(super().call_binop(context, operator, left, right))

    @pass_eval_context
    def finalize(context: Any, value: Any) -> str:
        """Takes a context so that Jinja never works an output out while compiling, when nobody counts."""
        return as_text(value)

    environment = Environment(
        trim_blocks=True,
        lstrip_blocks=True,
        extensions=[IgnoreGeneration, loopcontrols],
        finalize=finalize,
        optimized=False,
    )
    functions = FILTERS | {"tojson": _tojson}
    environment.filters = {name: _bounded(name, functions[name]) for name in _FILTERS.split()} | {
        "_counted": counted,
        "_concat": lambda *parts: bounds.joined(map(as_text, parts)),
        "_made": made,
    }
    environment.tests = {name: _bounded("", cast(Any, test)) for name, test in environment.tests.items()}
    environment.globals = {
        "raise_exception": _raise_exception,
        "strftime_now": _strftime_now,
        "range": safe_range,
        "dict": dict,
        "namespace": Space,
    }
    known = tuple(environment.globals.values())
    return environment
