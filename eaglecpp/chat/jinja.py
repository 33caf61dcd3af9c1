# SPDX-License-Identifier: MIT
"""Jinja chat templates from GGUF files: sandboxed, and limited in every resource they could use.

Settings and globals are those that Hugging Face and llama-cpp-python render such templates with (trimmed
blocks, loop controls, `raise_exception`, `strftime_now`, `tojson` without ASCII escapes, ignored `generation`
tags). Their renderer runs a template to its end, whatever it does; here one that goes beyond a limit is a
TemplateError.

Only methods and filters that are listed here exist, so a new one does not open a hole. What may be larger
than what it is made of (`*`, formats, `replace`, `join`, `indent`, JSON, lists of characters) asks first;
everything else is measured after. To leave nothing out, a template is rewritten before it is compiled: loops,
literals, slices, comparisons, `~` and text become filters; operators, calls and outputs go through the
environment. Jinja is imported on first use, because it is slow to load.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from datetime import datetime
from functools import cache, wraps
from typing import TYPE_CHECKING, Any, cast

from eaglecpp.chat import bounds
from eaglecpp.chat.bounds import NODE, Budget, as_text, budget, chars, counted, made, measure, stopped
from eaglecpp.errors import TemplateError

if TYPE_CHECKING:
    import jinja2

_MAX_SEARCH = 1 << 28  # characters of a text times those of what is looked for, where that is what it takes
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

        bounds.check_size(text)
        try:
            self._template = _environment().from_string(text)
        except jinja2.TemplateSyntaxError as error:
            raise TemplateError(error.message or "syntax error", error.lineno, name="chat_template") from None
        except (RecursionError, SyntaxError, MemoryError, OverflowError):  # Python has its own limits
            raise TemplateError("nested too deeply", 0, name="chat_template") from None
        except TemplateError:
            raise
        except ValueError as error:  # a number of more digits than Python reads
            raise TemplateError(str(error), 0, name="chat_template") from None

    def render(self, variables: Mapping[str, Any]) -> str:
        """The text. Raises TemplateError for an error of the template and beyond the limits."""
        token = budget.set(Budget())
        try:
            return self._template.render(variables)
        except TemplateError as error:  # from a bound, or from raise_exception
            error.line = error.line or _line(error)
            raise
        except (RecursionError, MemoryError):
            raise TemplateError("nested too deeply", 0, name="chat_template") from None
        except Exception as error:  # an untrusted program ran: whatever it raised is the template's error
            message = str(error)[:500] or type(error).__name__
            raise TemplateError(message, _line(error), name="chat_template") from None
        finally:
            budget.reset(token)


def _line(error: BaseException) -> int:
    """The template's line in which an error was raised; Jinja puts it in the traceback."""
    line, traceback = 0, error.__traceback__
    while traceback is not None:
        if traceback.tb_frame.f_code.co_filename == "<template>":
            line = traceback.tb_lineno
        traceback = traceback.tb_next
    return line


# What may be larger than what it is made of asks before it is made, with the arguments of the filter, method
# or operator.


def _operator(sign: str, left: Any, right: Any) -> None:
    if sign == "**":
        raise stopped("** is not for templates")
    if sign == "%" and isinstance(left, str):
        _percent(left, right)
    for one, other in ((left, right), (right, left)):
        if sign == "*" and isinstance(one, str | list | tuple) and isinstance(other, int):
            chars(len(one) * max(other, 0))


def _formatted(form: str, mark: str, wide: str, values: Any) -> None:
    if re.search(wide, form):
        raise stopped("a format of more than 999 columns, or with a field's name in parentheses")
    chars(len(form) + form.count(mark) * 1000 + measure(values)[0])


def _percent(form: str, *values: Any, **named: Any) -> None:
    _formatted(form, "%", r"%[^a-zA-Z%]*([(*]|[0-9]{4})", [*values, named])


def _braces(form: str, *values: Any, **named: Any) -> None:
    plain = form.replace("{{", "").replace("}}", "")
    chars(plain.count("{") * measure([*values, named])[0])
    _formatted(plain, "{", r"\{[^}]*(\{|[0-9]{4})", [])


def _replace(value: Any, old: Any = "", new: Any = "", *_: Any) -> None:
    text = as_text(value)
    chars(len(text) + text.count(as_text(old)) * len(as_text(new)))


def _join(values: Any, separator: Any = "", *_: Any, **__: Any) -> None:
    chars(measure(values)[0] + len(values) * len(as_text(separator)))


def _indent(value: Any, width: Any = 4, *_: Any, **__: Any) -> None:
    text, n_columns = as_text(value), len(width) if isinstance(width, str) else int(width)
    chars(len(text) + (text.count("\n") + 2) * max(n_columns, 0))


def _json(value: Any, ensure_ascii: Any = False, indent: Any = None, separators: Any = (), **_: Any) -> None:
    if indent not in (None, *range(17)) or measure(separators)[0] > 1024:
        raise stopped("tojson: an indent of more than 16 columns")
    size, depth = measure(value)
    chars(size + size // NODE * (indent or 0) * depth)


def _searched(text: Any, part: Any = None, *_: Any) -> None:
    """What Python searches backwards, or for each character of `part`, takes the product of both lengths."""
    n_steps = len(as_text(text)) * len(as_text(part))
    if n_steps > _MAX_SEARCH:
        raise stopped(f"a search of {n_steps} steps")


def _taken_apart(text: Any, *_: Any, **__: Any) -> None:
    """A list with an entry for each character or word."""
    if isinstance(text, str):
        budget.get().spend(len(text) * 2 * NODE)


def _split(text: str, sep: Any = None, *_: Any, **__: Any) -> None:
    _searched(text, sep)
    n_parts = text.count(sep) + 1 if isinstance(sep, str) else len(text) // 2 + 1
    budget.get().spend(sys.getsizeof(text) + n_parts * 2 * NODE)


def _sum(values: Any, attribute: Any = None, start: Any = 0) -> None:
    if not isinstance(start, int | float):
        raise TypeError("sum: expected numbers")


def _nothing(*_: Any, **__: Any) -> None:
    pass


def _names(text: str, **asking: Callable[..., None]) -> dict[str, Callable[..., None]]:
    return dict.fromkeys(text.split(), _nothing) | asking


_METHODS: dict[type, Mapping[str, Callable[..., None]]] = {
    str: _names(
        """capitalize casefold count endswith find index isalnum isalpha isascii isdecimal isdigit
        isidentifier islower isnumeric isprintable isspace istitle isupper lower partition removeprefix
        removesuffix startswith swapcase title upper""",
        **dict.fromkeys(("lstrip", "rfind", "rindex", "rpartition", "rstrip", "strip"), _searched),
        format=_braces,
        join=lambda text, values=(): _join(values, text),
        replace=_replace,
        split=_split,
        rsplit=_split,
        splitlines=_taken_apart,
    ),
    dict: _names("get items keys values copy"),
    list: _names("count index copy"),
    tuple: _names("count index"),
    float: _names("is_integer"),
    int: _names("bit_length"),
}
_TAKEN_APART = "dictsort groupby list map reverse select sort title unique wordcount"
_FILTERS = _names(
    """abs capitalize count d default e escape first float forceescape int items last length lower max min
    reject rejectattr safe selectattr string truncate upper""",
    format=_percent,
    indent=_indent,
    join=_join,
    replace=_replace,
    sum=_sum,
    tojson=_json,
    trim=_searched,
    **dict.fromkeys(_TAKEN_APART.split(), _taken_apart),
)
"""Jinja's filters that templates may use, and what asks for what they make."""


def _bounded(function: Callable[..., Any], ask: Callable[..., None]) -> Callable[..., Any]:
    """A filter or test of Jinja's, asked for before, measured after. What Jinja passes first, such as the
    context, is no value.
    """
    n_first = int(hasattr(function, "jinja_pass_arg"))

    @wraps(function)
    def run(*args: Any, **named: Any) -> Any:
        args = _whole(args)
        ask(*args[n_first:], **named)
        return made(function(*args, **named))

    return run


def _whole(args: Iterable[Any]) -> tuple[Any, ...]:
    """Arguments with lists in place of what is made bit by bit."""
    budget.get().check_time()
    return tuple(list(counted(value)) if isinstance(value, Iterator) else value for value in args)


def _raise_exception(message: Any) -> None:
    raise TemplateError(as_text(message)[:2000], 0, name="chat_template")


def _strftime_now(form: str) -> str:
    if len(form) > 500 or re.search(r"%[^a-zA-Z%]*[0-9]{3}", form):
        raise stopped("a date of more than 99 columns")
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
                    message = f"more than {bounds.MAX_TOKENS} words and signs of the language"
                    raise TemplateError(message, token.lineno, name="chat_template")
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
                raise TemplateError("nested too deeply", node.lineno, name="chat_template")
            if isinstance(node, nodes.Compare) and len(node.ops) > 8:
                message = f"{len(node.ops)} comparisons in a row"
                raise TemplateError(message, node.lineno, name="chat_template")
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
            is_own = isinstance(function, Macro | BlockReference | LoopContext | Undefined)
            if not is_own and not isinstance(owner, LoopContext) and function not in known:
                kind = next((kind for kind in _METHODS if isinstance(owner, kind)), None)
                if kind is None or name not in _METHODS[kind]:
                    raise SecurityError(f"{type(owner).__name__}.{name} is not for templates")
                given = {key: kwargs[key] for key in kwargs if not key.startswith("_")}  # Jinja adds its own
                _METHODS[kind][name](owner, *args, **given)
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
    environment.filters = {name: _bounded(functions[name], ask) for name, ask in _FILTERS.items()} | {
        "_counted": counted,
        "_concat": lambda *parts: bounds.joined(map(as_text, parts)),
        "_made": made,
    }
    environment.tests = {
        name: _bounded(cast(Any, test), _nothing) for name, test in environment.tests.items()
    }
    environment.globals = {
        "raise_exception": _raise_exception,
        "strftime_now": _strftime_now,
        "range": safe_range,
        "dict": dict,
        "namespace": Space,
    }
    known = tuple(environment.globals.values())
    return environment
