# SPDX-License-Identifier: MIT
"""Renders Jinja chat templates from GGUF files in a sandbox that limits every resource.

Settings and globals match Hugging Face and llama-cpp-python: trimmed blocks, loop controls,
`raise_exception`, `strftime_now`, `tojson` without ASCII escapes, ignored `generation` tags. A template that
exceeds a limit raises TemplateError.

Templates can use only the methods and filters in this module's lists, so a method that a later Jinja adds
opens no hole. An operation whose result may be larger than its operands (`*`, formats, `replace`, `join`,
`indent`, JSON, lists of characters) is checked by `_ask` before it runs. The results of all other operations
are measured afterwards. A template is rewritten before it is compiled: loops, literals, slices, comparisons,
`~` and text become filters. Operators, calls and outputs go through the environment.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime
from functools import wraps
from typing import Any, cast

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

from eaglecpp.chat import bounds
from eaglecpp.chat.bounds import NODE, as_text, budget, chars, counted, failed, made, measure, stopped
from eaglecpp.errors import TemplateError


class JinjaTemplate:
    """A compiled Jinja template. Raises TemplateError, with the line, for invalid Jinja."""

    def __init__(self, text: str) -> None:
        bounds.check_size(text)
        with own_errors():
            self._template = ENVIRONMENT.from_string(text)

    def render(self, variables: Mapping[str, Any]) -> str:
        """Returns the rendered text. Raises TemplateError for an error of the template or an exceeded
        limit.
        """
        with bounds.budgeted(), own_errors():
            return self._template.render(variables)


@contextmanager
def own_errors() -> Iterator[None]:
    """Turns every exception inside the `with` block into a TemplateError, because a template is an untrusted
    program.
    """
    try:
        yield
    except TemplateError as error:  # raised by one of our limits, or by the template's raise_exception
        error.line = error.line or _line(error)
        raise
    except (RecursionError, MemoryError, SyntaxError, OverflowError):  # raised by Python's own limits
        raise failed("the template is nested too deeply") from None
    except Exception as error:
        line = getattr(error, "lineno", 0) or _line(error)
        message = getattr(error, "message", None) or str(error) or type(error).__name__
        raise failed(message[:500], line) from None


def _line(error: BaseException) -> int:
    """Returns the number of the template's line that raised an error, as found in the error's traceback."""
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
"""Filters that templates may use."""
_OWNERS = (str, dict, list, tuple, float, int)  # types whose methods templates may call
_GROWING = "format indent join lstrip replace rfind rindex rpartition rsplit rstrip split strip tojson trim"
_TAKING_APART = "dictsort groupby list map reverse rsplit select sort split splitlines title unique wordcount"
_WIDE = re.compile(r"[0-9]{4}|%[^a-zA-Z%]*\*|\{[^{}]*\{")


def _ask(name: str, value: Any, *others: Any, **named: Any) -> None:
    """Checks the possible size of a result before a method, filter or operator runs.

    The size of `value`, times the sum of the other sizes, is an upper bound of the number of steps and of the
    size of the result. The column widths in a format are an exception. Splitting a text may return a list
    with an entry for each character.
    """
    arguments = (*others, *named.values())
    if name == "format" and _WIDE.search(as_text(value).replace("{{", "")):
        raise stopped("a format has a width above 999, or takes its width from a value")
    if name in _GROWING.split():
        own = as_text(value) if isinstance(value, int) else value  # only an argument may be a width
        n = _size(own, name) * max(1, sum(_size(one, name) for one in arguments))
        if n > bounds.MAX_PRODUCT:
            raise stopped(f"{name} may take {n} steps; the maximum is {bounds.MAX_PRODUCT}")
    if name in _TAKING_APART.split() and isinstance(value, str):
        separator = arguments[0] if arguments and name.endswith("split") else ""
        budget.get().spend((value.count(separator or "") + 1) * 2 * NODE)
    if name == "sum" and not all(isinstance(one, int | float | str) for one in arguments):
        raise TypeError("sum: expected numbers")


def _size(value: Any, name: str) -> int:
    """Returns the size of an operand. The size of a text is its number of characters. The size of a number is
    its value, because it may be a width. The size of a list that is joined is its number of gaps. The size of
    any other value is an upper bound of its printed characters.
    """
    if isinstance(value, str):
        return max(1, len(value))
    if isinstance(value, int) and name != "format":
        return max(1, value)
    n_chars = measure(value)[0]
    return len(value) + 1 if name == "join" and isinstance(value, list | tuple) else n_chars


def _operator(sign: str, left: Any, right: Any) -> None:
    if sign == "**":
        raise stopped("** is not allowed in templates")
    if sign == "%" and isinstance(left, str):
        _ask("format", left, right)
    for one, other in ((left, right), (right, left)):
        if sign == "*" and isinstance(one, str | list | tuple) and isinstance(other, int):
            chars(len(one) * max(other, 0))


def _added(value: Any) -> Any:
    """Returns an operand that is appended to a text: a scalar as text, nothing for a missing value."""
    if value is None or isinstance(value, Undefined):
        return ""
    return as_text(value) if isinstance(value, int | float) else value


def _bounded(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """Wraps a filter or test of Jinja, so that its arguments are checked before it runs, and its result is
    measured. Jinja may pass the context as the first argument.
    """
    n_first = int(hasattr(function, "jinja_pass_arg"))

    @wraps(function)
    def run(*args: Any, **named: Any) -> Any:
        args = _whole(args)
        _ask(name, *args[n_first:], **named)
        return made(function(*args, **named))

    return run


def _whole(args: Iterable[Any]) -> tuple[Any, ...]:
    """Returns the arguments of a filter, with iterators turned into lists."""
    budget.get().check_time()
    return tuple(list(counted(value)) if isinstance(value, Iterator) else value for value in args)


def _raise_exception(message: Any) -> None:
    raise failed(as_text(message)[:2000])


def _strftime_now(form: str) -> str:
    if len(form) > 500 or re.search(r"%[^a-zA-Z%]*[0-9]{3}", form):
        raise stopped("a date format has a width above 99")
    return (bounds.now.get() or datetime.now()).strftime(form)


def _tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: Any = None,
    separators: Any = None,
    sort_keys: bool = False,
) -> str:
    """Implements the filter `tojson`. Takes only Hugging Face's arguments, because `default` and `cls` would
    allow calling any function.
    """
    return json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )


class _IgnoreGeneration(Extension):
    """Jinja extension that ignores the tag `{% generation %}`, which marks text for a trainer."""

    tags = frozenset(("generation",))  # type: ignore[assignment] # jinja2 declares a set

    def filter_stream(self, stream: Iterable[Token]) -> Iterator[Token]:
        """Yields the tokens of a template. Raises TemplateError after `MAX_TOKENS` tokens."""
        for n_tokens, token in enumerate(stream):
            if n_tokens >= bounds.MAX_TOKENS:
                raise failed(f"the template has more than {bounds.MAX_TOKENS} tokens", token.lineno)
            yield token

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


class _Space(Namespace):
    """A `namespace()` of Jinja. Printing a namespace hides its contents, because the contents may change
    after they were measured.
    """

    def __repr__(self) -> str:
        return "<Namespace>"


class _Bounding(NodeTransformer):
    """Rewrites the syntax tree. Every node that creates a value without a call or an operator gets a filter
    around it. Text becomes a constant, because Jinja does not pass text to `finalize`.
    """

    level = 0

    def generic_visit(self, node: nodes.Node, *args: Any, **kwargs: Any) -> nodes.Node:
        self.level += 1
        if self.level > bounds.MAX_NESTING:
            raise failed("the template is nested too deeply", node.lineno)
        if isinstance(node, nodes.Compare) and len(node.ops) > 8:
            raise failed(f"an expression has {len(node.ops)} comparisons; the maximum is 8", node.lineno)
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


class _Environment(ImmutableSandboxedEnvironment):
    intercepted_binops = frozenset(ImmutableSandboxedEnvironment.default_binop_table)
    concat = staticmethod(bounds.joined)

    def _generate(self, source: nodes.Template, *args: Any, **kwargs: Any) -> str:
        return super()._generate(_Bounding().visit(source), *args, **kwargs)

    def call(self, context: Any, function: Any, /, *args: Any, **kwargs: Any) -> Any:
        method = getattr(function, "__wrapped__", function)
        owner, name = getattr(method, "__self__", None), getattr(method, "__name__", "")
        args = _whole(args)
        # A namespace stores its arguments, so they are charged to the budget.
        budget.get().spend(NODE * (4 + len(args) + len(kwargs)))
        is_own = isinstance(function, Macro | BlockReference | LoopContext | Undefined)
        if not is_own and not isinstance(owner, LoopContext) and function not in _GLOBALS:
            if not isinstance(owner, _OWNERS) or name not in _METHODS.split():
                raise SecurityError(f"{type(owner).__name__}.{name} is not allowed in templates")
            # Jinja itself adds arguments with private names. These arguments are not checked.
            named = {key: kwargs[key] for key in kwargs if not key.startswith("_")}
            _ask(name, owner, *args, **named)
        return made(super().call(context, function, *args, **kwargs))

    def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
        _operator(operator, left, right)
        # Like llama.cpp. gpt-oss appends a number to a text, Command R+ a description that is undefined.
        if operator == "+" and isinstance(left, str) != isinstance(right, str):
            left, right = (_added(one) for one in (left, right))
        return made(super().call_binop(context, operator, left, right))


@pass_eval_context
def _finalize(context: Any, value: Any) -> str:
    """Measures the value of an output and returns its text. The parameter `context` keeps Jinja from
    evaluating outputs during compilation, when there is no budget.
    """
    return as_text(value)


ENVIRONMENT = _Environment(
    trim_blocks=True,
    lstrip_blocks=True,
    extensions=[_IgnoreGeneration, loopcontrols],
    finalize=_finalize,
    optimized=False,
)
_OWN = {
    "tojson": _bounded("tojson", _tojson),
    "_counted": counted,
    "_concat": lambda *parts: bounds.joined(map(as_text, parts)),
    "_made": made,
}
ENVIRONMENT.filters = {name: _bounded(name, FILTERS[name]) for name in _FILTERS.split()} | _OWN
ENVIRONMENT.tests = {name: _bounded("", cast(Any, test)) for name, test in ENVIRONMENT.tests.items()}
ENVIRONMENT.globals = {
    "raise_exception": _raise_exception,
    "strftime_now": _strftime_now,
    "range": safe_range,
    "dict": dict,
    "namespace": _Space,
}
_GLOBALS = tuple(ENVIRONMENT.globals.values())
