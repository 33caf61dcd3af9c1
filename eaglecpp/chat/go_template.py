# SPDX-License-Identifier: MIT
"""Go's text/template, as far as Ollama's TEMPLATEs use it, and how Ollama feeds a conversation to one.

    template = Template.parse("{{ range .Messages }}<{{ .Role }}>{{ .Content }}{{ end }}")
    text = template.render(messages)

The language: text, comments, `if`, `with`, `range` (with `break` and `continue`), `define`, `template`,
`block`, variables, pipelines, and the functions below. Anything else is an error with its line, found while
the template is read where Go finds it too. Each construct becomes a closure over those inside it; what runs
is bounded by `chat.bounds`.

    nil            None        prints as <no value>, inside of functions as <nil>
    string         str         bytes that are not UTF-8 are surrogates U+DC80 to U+DCFF
    bool, int      bool, int
    float64        float
    slice          list, tuple an empty tuple is nil
    map            dict        str keys; Go walks and prints them sorted
    struct         Struct      a fixed set of fields; any other field is an error

Sources of the rules: golang/go: src/text/template, src/fmt, src/encoding/json; ollama/ollama:
template/template.go, api/types.go.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, timedelta
from decimal import Decimal
from itertools import islice, pairwise
from typing import Any, NamedTuple

from eaglecpp.chat import bounds
from eaglecpp.chat.bounds import as_text, budget, counted, joined
from eaglecpp.chat.message import Message, Role
from eaglecpp.chat.turns import merged
from eaglecpp.errors import InvalidValueError, TemplateError

# Values


class Struct(dict[str, Any]):
    """A Go struct. json: its fields' names in JSON, with "?" for one that is left out when empty; "" prints
    as {a b c}.
    """

    def __init__(self, json_names: str = "", **fields: Any) -> None:
        super().__init__(fields)
        self.json_names = json_names.split()


class JsonList(tuple[Any, ...]):
    """A slice that prints as JSON."""


class JsonDict(dict[str, Any]):
    """A map that prints as JSON."""


class TypeNames(tuple[str, ...]):
    """The type of a tool's property: one name, or several. One prints as the bare name."""


def is_true(value: Any) -> bool:
    """Go's truth: nil, zero, false and everything of length zero are false; a struct is true."""
    return isinstance(value, Struct) or bool(value)


def _bytes(text: str) -> bytes:
    return text.encode("utf-8", "surrogateescape")


def _sorted_items(value: Mapping[str, Any]) -> list[tuple[str, Any]]:
    return sorted(value.items(), key=lambda item: _bytes(item[0]))


def printed(value: Any) -> str:
    """What printing the value gives, as `%v`."""
    if isinstance(value, str):
        return value
    if value is None:
        return "<nil>"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int):
        return str(value)
    if isinstance(value, float):
        return _float_text(value)
    if isinstance(value, JsonList | JsonDict) or (isinstance(value, Struct) and value.json_names):
        return _json_text(value)
    if isinstance(value, Struct):
        return "{" + " ".join(map(printed, value.values())) + "}"
    if isinstance(value, dict):
        return "map[" + " ".join(f"{key}:{printed(one)}" for key, one in _sorted_items(value)) + "]"
    if isinstance(value, TypeNames) and len(value) <= 1:
        return "".join(value)
    return "[" + " ".join(map(printed, value)) + "]"


def _float_text(value: float, low: int = -4, high: int = 6) -> str:
    """The shortest digits that give the number back; in exponent form outside 10**low to 10**high."""
    if not math.isfinite(value):
        return "NaN" if math.isnan(value) else f"{value:+}".capitalize()
    number = Decimal(repr(value)).normalize()
    if number and not low <= number.adjusted() < high:
        digits, power = f"{number:e}".split("e")
        return f"{digits}e{int(power):+03d}"
    return f"{number:f}"


_JSON_ESCAPES = {"<": "\\u003c", ">": "\\u003e", "&": "\\u0026", "\u2028": "\\u2028", "\u2029": "\\u2029"}
_JSON_SPECIAL = re.compile("[<>&\u2028\u2029\udc80-\udcff]")


def _json_text(value: Any, is_html: bool = True) -> str:
    """The value as Go's encoding/json writes it: no spaces, map keys sorted, `<`, `>` and `&` escaped."""
    if isinstance(value, TypeNames) and len(value) == 1:
        value = value[0]
    if isinstance(value, str):
        escaped = json.dumps(value, ensure_ascii=False)
        replaced = _JSON_SPECIAL.sub(lambda match: _JSON_ESCAPES.get(match[0], "\\ufffd"), escaped)
        return replaced if is_html else escaped
    if isinstance(value, float):
        if not math.isfinite(value):
            raise ValueError(f"json: unsupported value: {value}")
        return re.sub(r"e-0(\d)$", r"e-\1", _float_text(value, low=-6, high=21))
    if isinstance(value, dict):
        items = _fields(value) if isinstance(value, Struct) else _sorted_items(value)
        return "{" + ",".join(f"{_json_text(key)}:{_json_text(one)}" for key, one in items) + "}"
    if isinstance(value, list) or (isinstance(value, tuple) and value):
        return "[" + ",".join(map(_json_text, value)) + "]"
    return json.dumps(value or None if isinstance(value, tuple) else value)


def _fields(value: Struct) -> Iterator[tuple[str, Any]]:
    for name, one in zip(value.json_names or value, value.values(), strict=True):
        if is_true(one) or not name.endswith("?"):
            yield name.removesuffix("?"), one


# Functions. Each raises ValueError for what it cannot do.


def _elements(value: Any) -> Any:
    """What an index counts."""
    if not isinstance(value, str | list | tuple):
        raise ValueError(f"{printed(value):.80} is neither a text nor a list")
    return _bytes(value) if isinstance(value, str) else value


def _position(index: Any, end: int) -> int:
    if isinstance(index, bool) or not isinstance(index, int) or not 0 <= index <= end:
        raise ValueError(f"an index of {printed(index)}, of at most {end}")
    return index


def _index(value: Any, *indexes: Any) -> Any:
    for index in indexes:
        if isinstance(value, dict) and isinstance(index, str):
            value = value.get(index)
        else:
            elements = _elements(value)
            value = elements[_position(index, len(elements) - 1)]
    return value


def _slice(value: Any, first: Any = 0, end: Any = None) -> Any:
    elements = _elements(value)
    last = _position(len(elements) if end is None else end, len(elements))
    part = elements[_position(first, last) : last]
    return part.decode("utf-8", "surrogateescape") if isinstance(part, bytes) else part


def _is_nil(value: Any) -> bool:
    return value is None or (isinstance(value, tuple) and not value)


def _equal(first: Any, second: Any) -> bool:
    if _is_nil(first) or _is_nil(second):
        return _is_nil(first) and _is_nil(second)
    if type(first) is not type(second) or not isinstance(first, str | bool | int | float):
        raise ValueError(f"{printed(first):.40} and {printed(second):.40} cannot be compared")
    return bool(first == second)


def _less(first: Any, second: Any) -> bool:
    _equal(first, second)
    if isinstance(first, bool) or first is None or second is None:
        raise ValueError(f"{printed(first):.40} and {printed(second):.40} have no order")
    return bool(_bytes(first) < _bytes(second) if isinstance(first, str) else first < second)


def _print(*values: Any) -> str:
    """Values one after the other, a space between two that are both no strings."""
    parts: list[str] = []
    for index, value in enumerate(values):
        is_apart = index and not isinstance(value, str) and not isinstance(values[index - 1], str)
        parts += [" " if is_apart else "", as_text(printed(value))]
    return joined(parts)


_DIRECTIVE = re.compile(r"%([-+0]*[0-9]{0,3}(?:\.[0-9]{1,3})?)(.?)", re.DOTALL)
_VERBS = {"v": object, "s": str | list | tuple | dict | None, "q": str, "d": int}


def _printf(form: Any, *values: Any) -> str:
    """The format with each directive replaced. What Go would mark in the text (`%!d(string=hi)`) is an error:
    in a prompt it would be a mistake.
    """
    left = list(values)

    def formatted(match: re.Match[str]) -> str:
        spec, verb = match.groups()
        if verb == "%":
            return "%"
        if verb not in _VERBS or not left or (verb == "d" and isinstance(left[0], bool)):
            raise ValueError(f"{match[0]!r}: not supported, or without its value; use %v %s %q %d")
        value = left.pop(0)
        if not isinstance(value, _VERBS[verb]):
            raise ValueError(f"{match[0]} of {printed(value):.40}")
        if verb == "d":
            return f"%{spec}d" % value
        return as_text(f"%{spec}s" % (_json_text(value, is_html=False) if verb == "q" else printed(value)))

    text = _DIRECTIVE.sub(formatted, as_text(form))
    if left:
        raise ValueError(f"{len(left)} values more than the format has")
    return text


def _json(value: Any) -> str:
    try:
        return _json_text(value)
    except ValueError:
        return ""  # as in Ollama, which drops the error


def _day(days: int) -> Callable[..., str]:
    return lambda *_: (date.today() + timedelta(days=days)).isoformat()


_MANY = 1 << 20
_FUNCTIONS: dict[str, tuple[Callable[..., Any], int, int]] = {
    "and": (is_true, 1, _MANY),
    "or": (is_true, 1, _MANY),
    "not": (lambda value: not is_true(value), 1, 1),
    "eq": (lambda first, *others: any(_equal(first, other) for other in others), 2, _MANY),
    "ne": (lambda first, second: not _equal(first, second), 2, 2),
    "lt": (_less, 2, 2),
    "le": (lambda first, second: not _less(second, first), 2, 2),
    "gt": (lambda first, second: _less(second, first), 2, 2),
    "ge": (lambda first, second: not _less(first, second), 2, 2),
    "len": (lambda value: len(value if isinstance(value, dict) else _elements(value)), 1, 1),
    "index": (_index, 2, _MANY),
    "slice": (_slice, 1, 3),
    "print": (_print, 0, _MANY),
    "printf": (_printf, 1, _MANY),
    "json": (_json, 1, 1),
    "currentDate": (_day(0), 0, _MANY),
    "yesterdayDate": (_day(-1), 0, _MANY),
}
"""What a name stands for, and how many arguments it takes: at least, at most. `and` and `or` evaluate only
those that they need (`_shortcut`).
"""


# The language

_DELIMITER = re.compile(
    r"(?P<comment>(?:[ \t\r\n]*\{\{-[ \t\r\n]|\{\{)/\*.*?\*/(?:[ \t\r\n]-\}\}[ \t\r\n]*|\}\}))"
    r"|[ \t\r\n]*\{\{-(?=[ \t\r\n])|\{\{",
    re.DOTALL,
)
_TOKEN = re.compile(
    r"(?P<close>[ \t\r\n]+-\}\}[ \t\r\n]*|\}\})|(?P<space>[ \t\r\n]+)"
    r'|(?P<string>"(?:[^"\\\n]|\\[^\n])*")|(?P<raw>`[^`]*`)|(?P<int>[+-]?(?:0|[1-9][0-9]{0,17}))'
    r"|(?P<variable>\$\w*)|(?P<field>\.[^\W\d]\w*)|(?P<dot>\.)|(?P<sign>:=|[=|(),])"
    r"|(?P<word>(?:if|with|range|else|end|define|block|template|break|continue|nil|true|false)\b)"
    r"|(?P<name>[^\W\d]\w*)"
)
_ESCAPE = re.compile(
    r"\\(?:([abfnrtv\\\"])|x([0-7][0-9a-fA-F])|u([0-9a-fA-F]{4})|U([0-9a-fA-F]{8})|(.))", re.DOTALL
)
_SIMPLE = dict(zip('abfnrtv\\"', '\a\b\f\n\r\t\v\\"', strict=True))


class Token(NamedTuple):
    """kind: a group of `_TOKEN`, "text", "open" or "eof"; of a word or a sign, itself. text: as written.
    spaced: white space comes before it inside the action.
    """

    kind: str
    text: str
    line: int
    spaced: bool = False


def lex(text: str) -> Iterator[Token]:
    """The tokens of a template, without comments and what `{{-` and `-}}` trim."""
    at, line = 0, 1
    while match := _DELIMITER.search(text, at):
        yield Token("text", text[at : match.start()], line)
        line += text.count("\n", at, match.end())
        at, spaced, kind = match.end(), False, "close" if match["comment"] else "open"
        if kind == "open":
            yield Token(kind, match[0], line)
        while kind != "close":
            found = _TOKEN.match(text, at)
            if found is None:
                what = f"unexpected {text[at]!r}" if at < len(text) else "the text ends"
                raise TemplateError(f"{what} in an action", line)
            kind, at = str(found.lastgroup), found.end()
            if kind != "space":
                yield Token(found[0] if kind in ("sign", "word") else kind, found[0], line, spaced)
            spaced = kind == "space"
            line += found[0].count("\n")
    yield Token("text", text[at:], line)
    yield Token("eof", "the end of the text", line + text.count("\n", at))


def _constant(token: Token) -> Any:
    """The value of a literal."""

    def replacement(match: re.Match[str]) -> str:
        simple, *codes, other = match.groups()
        code = int(next(filter(None, codes), "-1"), 16)
        if other is not None or not (simple or 0 <= code < 0xD800 or 0xDFFF < code <= 0x10FFFF):
            raise TemplateError(f"{match[0]!r} in a string is not supported", token.line)
        return _SIMPLE[simple] if simple else chr(code)

    match token.kind:
        case "string":
            return _ESCAPE.sub(replacement, token.text[1:-1])
        case "raw":
            return token.text[1:-1].replace("\r", "")
        case "int":
            return int(token.text)
        case "nil" | "true" | "false":
            return {"nil": None, "true": True, "false": False}[token.kind]
    raise _unexpected(token, "an operand")


def _unexpected(token: Token, where: str) -> TemplateError:
    return TemplateError(f"unexpected {token.text} in {where}", token.line)


Frame = list[Any]
"""The values of the variables that are visible, by the numbers that the parser gave them."""
Expression = Callable[[Any, Frame], Any]
"""The value of an operand or a pipeline, given the dot."""


Node = Callable[[list[str], Any, Frame], str]
"""Writes to the parts; gives "break" or "continue" where that ends a body early, else ""."""


class _Open(list[str]):
    """The parts of a prompt that ends where its answer begins: nothing behind the first place that prints
    `.Response` comes into it.
    """


class Pipeline(NamedTuple):
    """numbers: of the variables that it sets; is_new: by `:=`."""

    value: Expression
    numbers: Sequence[int]
    is_new: bool

    def assign(self, frame: Frame, values: Sequence[Any]) -> None:
        """Sets the variables, one value each."""
        if self.is_new:
            frame[self.numbers[0] :] = values
        else:
            for number, value in zip(self.numbers, values, strict=True):
                frame[number] = value

    def run(self, dot: Any, frame: Frame) -> Any:
        """The value, after it was assigned."""
        value = self.value(dot, frame)
        self.assign(frame, [value] * len(self.numbers))
        return value


class Program:
    """A template, parsed by recursive descent to closures. uses: the fields and variables that it mentions;
    templates: by their names.
    """

    def __init__(self, tokens: Sequence[Token]) -> None:
        self._tokens = tokens
        self._at = self._level = self._n_loops = 0
        self._variables = ["$"]
        self._is_late: bool | None = False  # behind the first `.Response`; None = in what is defined
        self.uses: set[str] = set()
        self.templates: dict[str, Node] = {}
        self._all, end = self._body(is_top=True)
        if end.kind != "eof":
            raise _unexpected(end, "the text")

    def run(self, data: Mapping[str, Any], is_open: bool = False) -> list[str]:
        """The parts of the text with `data` as dot, paid for from the `budget`; is_open: those before the
        answer. Raises TemplateError.
        """
        parts: list[str] = _Open() if is_open else []
        self._all(parts, data, [data])
        return parts

    def _peek(self, n: int = 0) -> Token:
        return self._tokens[min(self._at + n, len(self._tokens) - 1)]

    def _take(self, where: str = "", *kinds: str) -> Token:
        token = self._peek()
        if kinds and token.kind not in kinds:
            raise _unexpected(token, where)
        self._at += 1
        return token

    def _enter(self) -> None:
        self._level += 1
        if self._level > bounds.MAX_NESTING:
            raise TemplateError(f"more than {bounds.MAX_NESTING} blocks in each other", self._peek().line)

    def _body(self, is_top: bool = False) -> tuple[Node, Token]:
        """What comes before an `end`, an `else` or the end of the text, and that."""
        nodes: list[Node] = []
        self._enter()
        while True:
            token, is_late = self._take(), self._is_late
            if token.kind == "eof" or (token.kind == "open" and self._peek().kind in ("end", "else")):
                self._level -= 1
                return _all_of(nodes), token if token.kind == "eof" else self._take()
            node = _writing(_is(token.text))
            if token.kind == "open":
                node = _located(self._action(is_top), token.line)
            nodes.append(_closing(node) if is_late else node)

    def _ended(self, end: Token) -> None:
        """Behind the body of a block."""
        if end.kind != "end":
            raise TemplateError(f"unexpected {end.text}; a block is closed with {{{{ end }}}}", end.line)
        self._take("end", "close")

    def _action(self, is_top: bool) -> Node:
        token = self._peek()
        match token.kind:
            case "if" | "with" | "range":
                return self._control(self._take().kind)
            case "break" | "continue" if self._n_loops:
                self._take()
                self._take(token.kind, "close")
                return lambda parts, dot, frame: token.kind
            case "define" if is_top:
                return self._named(self._take().kind)
            case "block" | "template":
                return self._named(self._take().kind)
        start = self._at
        pipeline = self._pipeline("an action", "close")
        if self._is_late is False:
            read = pairwise(self._tokens[start - 1 : self._at])
            self._is_late = any(t.text == ".Response" and before.kind != "variable" for before, t in read)
        return _writing(pipeline.run, is_silent=bool(pipeline.numbers))

    def _control(self, kind: str) -> Node:
        n_variables = len(self._variables)
        pipeline = self._pipeline(kind, "close")
        self._n_loops += kind == "range"
        body, end = self._body()
        self._n_loops -= kind == "range"
        orelse = _all_of(())
        if end.kind == "else" and self._peek().kind == kind != "range":
            self._enter()
            orelse = self._control(self._take().kind)
            self._level -= 1
        else:
            if end.kind == "else":
                self._take("else", "close")
                orelse, end = self._body()
            self._ended(end)
        del self._variables[n_variables:]
        return _range(pipeline, body, orelse) if kind == "range" else _branch(kind, pipeline, body, orelse)

    def _named(self, kind: str) -> Node:
        name = _constant(self._take(kind, "string", "raw"))
        given = _is(None)
        if kind == "block" or (kind == "template" and self._peek().kind != "close"):
            given = self._pipeline(kind, "close").run
        else:
            self._take(kind, "close")
        if kind != "template":
            saved = self._variables, self._n_loops, self._is_late
            self._variables, self._n_loops, self._is_late = ["$"], 0, None
            body, end = self._body()
            self._ended(end)
            self._variables, self._n_loops, self._is_late = saved
            if self.templates.setdefault(name, body) is not body:
                raise TemplateError(f"template {name!r} is defined twice", end.line)

        def run(parts: list[str], dot: Any, frame: Frame) -> str:
            if name not in self.templates:
                raise ValueError(f"template {name!r} is not defined")
            value = given(dot, frame)
            return self.templates[name](parts, value, [value])

        return run if kind != "define" else _all_of(())

    def _pipeline(self, where: str, end: str) -> Pipeline:
        start, names, sign = self._peek(), [], Token(",", ",", 0)
        while sign.kind == "," and self._peek().kind == "variable" and self._peek(1).kind in (":=", "=", ","):
            names.append(self._take())
            sign = self._take()
        if names and (sign.kind == "," or len(names) > 1 + (where == "range") or end == ")"):
            raise _unexpected(sign, where)
        value: Expression | None = None
        while self._peek().kind != end:
            value = self._command(value)
            if self._peek().kind != end:
                self._take(where, "|")
        self._take()
        if value is None:
            raise TemplateError(f"{where} without a value", start.line)
        numbers = [self._variable(name) for name in names] if sign.kind == "=" else []
        if sign.kind == ":=":
            numbers = list(range(len(self._variables), len(self._variables) + len(names)))
            self._variables += [name.text for name in names]
        return Pipeline(value, numbers, sign.kind == ":=")

    def _variable(self, token: Token) -> int:
        if token.text not in self._variables:
            raise TemplateError(f"undefined variable {token.text}; declare it first, with :=", token.line)
        return len(self._variables) - 1 - self._variables[::-1].index(token.text)

    def _command(self, piped: Expression | None) -> Expression:
        """Operands with spaces between them, and what the command before gave as the last one."""
        first = self._peek()
        operands: list[Expression] = []
        if first.kind == "name":
            self._take()
        while not (first.kind == "name" or operands) or self._peek().kind not in ("|", ")", "close"):
            if (first.kind == "name" or operands) and not self._peek().spaced:
                raise _unexpected(self._peek(), "an operand")
            operands.append(self._operand())
        if piped is not None:
            operands.append(piped)
        if first.kind == "name":
            return _call(first, operands)
        if len(operands) > 1 or first.kind == "nil":
            raise TemplateError(f"{first.text} is no function, and cannot have arguments", first.line)
        return operands[0]

    def _operand(self) -> Expression:
        token = self._take()
        names: list[str] = []
        base: Expression = _dot
        match token.kind:
            case "name":
                base = _call(token, ())
            case "variable":
                number = self._variable(token)
                self.uses.add(token.text)
                base = _value_of(number)
            case "field":
                names = [token.text[1:]]
            case "(":
                self._enter()
                base = self._pipeline("parentheses", ")").run
                self._level -= 1
            case "dot":
                return base
            case _:
                return _is(_constant(token))
        while self._peek().kind == "field" and not self._peek().spaced:
            names.append(self._take().text[1:])
        if token.kind != "(":
            self.uses.update(names)
        return _field(base, names) if names else base


def _dot(dot: Any, frame: Frame) -> Any:
    return dot


def _value_of(variable: int) -> Expression:
    return lambda dot, frame: frame[variable]


def _is(value: Any) -> Expression:
    return lambda dot, frame: value


def _field(base: Expression, names: Sequence[str]) -> Expression:
    def run(dot: Any, frame: Frame) -> Any:
        value = base(dot, frame)
        for name in names if value is not None else ():
            if not isinstance(value, dict) or (isinstance(value, Struct) and name not in value):
                raise ValueError(f"there is no field {name} in {printed(value):.80}")
            value = value.get(name)
        return value

    return run


def _call(token: Token, arguments: Sequence[Expression]) -> Expression:
    name = token.text
    if name not in _FUNCTIONS:
        hint = f"known: {', '.join(sorted(_FUNCTIONS))}; a field needs a dot before its name"
        raise TemplateError(f'function "{name}" not defined', token.line, hint=hint)
    function, min_args, max_args = _FUNCTIONS[name]
    if not min_args <= len(arguments) <= max_args:
        raise TemplateError(f"{name}: {len(arguments)} arguments, expected {min_args}", token.line)

    def shortcut(dot: Any, frame: Frame) -> Any:
        """The first argument that decides, or the last one."""
        value = None
        for argument in arguments:
            value = argument(dot, frame)
            if is_true(value) == (name == "or"):
                break
        return value

    def run(dot: Any, frame: Frame) -> Any:
        budget.get().check_time()
        values = [argument(dot, frame) for argument in arguments]
        try:
            made = function(*values)
        except TemplateError:
            raise
        except ValueError as error:
            raise ValueError(f"{name}: {error}") from None
        return as_text(made) if isinstance(made, str) else made

    return shortcut if name in ("and", "or") else run


def _located(node: Node, line: int) -> Node:
    def run(parts: list[str], dot: Any, frame: Frame) -> str:
        try:
            return node(parts, dot, frame)
        except TemplateError as error:
            error.line = error.line or line
            raise
        except ValueError as error:
            raise TemplateError(str(error), line) from None

    return run


def _all_of(nodes: Sequence[Node]) -> Node:
    def run(parts: list[str], dot: Any, frame: Frame) -> str:
        for node in nodes:
            jump = node(parts, dot, frame)
            if jump:
                return jump
        return ""

    return run


def _writing(value: Expression, is_silent: bool = False) -> Node:
    def run(parts: list[str], dot: Any, frame: Frame) -> str:
        found = value(dot, frame)
        if not is_silent:
            parts.append(as_text("<no value>" if found is None else printed(found)))
        return ""

    return run


def _closing(node: Node) -> Node:
    """What comes behind an answer."""
    return lambda parts, dot, frame: "" if isinstance(parts, _Open) else node(parts, dot, frame)


def _branch(kind: str, pipeline: Pipeline, body: Node, orelse: Node) -> Node:
    def run(parts: list[str], dot: Any, frame: Frame) -> str:
        value = pipeline.run(dot, frame)
        if is_true(value):
            return body(parts, value if kind == "with" else dot, frame)
        return orelse(parts, dot, frame)

    return run


def _range(pipeline: Pipeline, body: Node, orelse: Node) -> Node:
    def run(parts: list[str], dot: Any, frame: Frame) -> str:
        value = pipeline.run(dot, frame)
        n_variables, is_empty = len(pipeline.numbers), True
        for index, element in counted(_items(value, n_variables)):
            is_empty = False
            pipeline.assign(frame, [index, element][-n_variables:] if n_variables else [])
            if body(parts, element, frame) == "break":
                break
        return orelse(parts, dot, frame) if is_empty else ""

    return run


def _items(value: Any, n_variables: int) -> Iterable[tuple[Any, Any]]:
    if value is None:
        return ()
    if isinstance(value, list | tuple):
        return enumerate(value)
    if isinstance(value, dict) and not isinstance(value, Struct):
        return _sorted_items(value)
    if isinstance(value, int) and not isinstance(value, bool) and n_variables < 2:
        return ((None, number) for number in range(value))
    raise ValueError(f"range over {printed(value):.80}")


# What Ollama feeds to a template. Which fields exist, what they are called and in which order they print as
# JSON is part of the prompt. What Ollama's types do not know, such as the `default` of a tool's parameter, is
# not there for the template either.

_TOOL_JSON = "type items? function"
_FUNCTION_JSON = "name description parameters"
_PARAMETERS_JSON = "type $defs? items? required? properties"
_PROPERTY_JSON = "anyOf? type? items? description? enum? properties? required?"


def _message_value(message: Message) -> Struct:
    """One element of `.Messages`."""
    calls = [
        Struct(ID=call.id, Function=Struct(Index=index, Name=call.name, Arguments=JsonDict(call.arguments)))
        for index, call in enumerate(message.tool_calls)
    ]
    return Struct(
        Role=str(message.role),
        Content=message.content,
        Thinking=message.thinking,
        Images=(),
        ToolCalls=tuple(calls),
        ToolName=message.tool_name,
        ToolCallID=message.tool_call_id,
    )


def _tool_value(tool: Mapping[str, Any]) -> Struct:
    """One element of `.Tools`, from a definition in the JSON form of both chat APIs."""
    function = _given(tool, "function", Mapping)
    if not isinstance(function.get("name"), str):
        raise InvalidValueError("tool: expected {'type': 'function', 'function': {'name': ...}}")
    given = _given(function, "parameters", Mapping)
    parameters = Struct(
        _PARAMETERS_JSON,
        Type=_text(given, "type"),
        Defs=given.get("$defs"),
        Items=given.get("items"),
        Required=tuple(_given(given, "required", list)),
        Properties=_properties(given),
    )
    described = Struct(
        _FUNCTION_JSON,
        Name=function["name"],
        Description=_text(function, "description"),
        Parameters=parameters,
    )
    return Struct(_TOOL_JSON, Type=_text(tool, "type"), Items=tool.get("items"), Function=described)


def _properties(schema: Mapping[str, Any]) -> JsonDict:
    properties = _given(schema, "properties", Mapping)
    return JsonDict({name: _property(_given(properties, name, Mapping)) for name in properties})


def _property(schema: Mapping[str, Any]) -> Struct:
    types = schema.get("type")
    return Struct(
        _PROPERTY_JSON,
        AnyOf=tuple(map(_property, _given(schema, "anyOf", list))),
        Type=TypeNames([types] if isinstance(types, str) else map(str, _given(schema, "type", list))),
        Items=schema.get("items"),
        Description=_text(schema, "description"),
        Enum=tuple(_given(schema, "enum", list)),
        Properties=_properties(schema),
        Required=tuple(_given(schema, "required", list)),
    )


def _given(values: Mapping[str, Any], key: str, kind: type) -> Any:
    value = values.get(key) or ([] if kind is list else {})
    if not isinstance(value, kind):
        what = "a list" if kind is list else "an object"
        raise InvalidValueError(f"tool: {key}: expected {what}, found {value!r:.80}")
    return value


def _text(values: Mapping[str, Any], key: str) -> str:
    value = values.get(key)
    return value if isinstance(value, str) else ""


@dataclass(frozen=True)
class Template:
    """A parsed TEMPLATE. uses: the fields and variables it mentions, in lower case.

    It runs with all messages at once, where it mentions `.Messages`, or in the older form, once for each
    exchange with `.System`, `.Prompt` and `.Response`, the last time cut behind `.Response`, from where the
    model goes on.
    """

    uses: frozenset[str]
    _program: Program

    @classmethod
    def parse(cls, text: str) -> Template:
        """Parses a template; one without `.Messages` and `.Response` gets a `.Response` at its end.

        Raises TemplateError.
        """
        bounds.check_size(text)
        tokens = list(islice(lex(text), bounds.MAX_TOKENS + 1))
        if len(tokens) > bounds.MAX_TOKENS:
            raise TemplateError(
                f"more than {bounds.MAX_TOKENS} words and signs of the language", tokens[-1].line
            )
        program = Program(tokens)
        uses = frozenset(map(str.lower, program.uses))
        if not uses & {"messages", "response"}:
            program = Program([*tokens[:-1], *lex("{{ .Response }}")])
        return cls(uses, program)

    def render(
        self,
        messages: Sequence[Message] = (),
        *,
        tools: Sequence[Mapping[str, Any]] = (),
        think: bool | str | None = None,
    ) -> str:
        """The prompt. Raises TemplateError for an error at run time or beyond the limits.

        tools: definitions as the chat APIs have them
        think: None = not asked for; a bool, or a level such as "high"
        """
        systems = [message.content for message in messages if message.role == Role.SYSTEM]
        messages = merged(messages, [role for role in Role if role != Role.TOOL])
        common: dict[str, Any] = {
            "Response": "",
            "Think": bool(think),
            "ThinkLevel": think if isinstance(think, str) else "",
            "IsThinkSet": think is not None,
        }
        token = budget.set(bounds.Budget())
        try:
            if "messages" in self.uses:
                values = {"System": "\n\n".join(systems), "Tools": JsonList(map(_tool_value, tools))}
                values["Messages"] = list(map(_message_value, messages))
                parts = self._program.run(common | values)
            else:
                parts = self._exchanges(messages, common)
            return _bytes(joined(parts)).decode("utf-8", "replace")
        except RecursionError:
            raise TemplateError(
                "nested too deeply", 0, hint="use fewer nested templates and blocks"
            ) from None
        finally:
            budget.reset(token)

    def _exchanges(self, messages: Sequence[Message], common: dict[str, Any]) -> list[str]:
        """The older form: one execution for each exchange, the last one open at its end."""
        parts: list[str] = []
        turn = {"System": "", "Prompt": "", "Response": ""}
        for message in messages:
            pending = {"system": ("Prompt", "Response"), "user": ("Response",)}.get(message.role, ())
            if any(turn[name] for name in pending):
                parts += self._program.run(common | turn)
                turn = dict.fromkeys(turn, "")
            name = {"system": "System", "user": "Prompt", "assistant": "Response"}.get(message.role)
            if name:
                turn[name] = message.content
        return parts + self._program.run(common | turn, is_open=True)
