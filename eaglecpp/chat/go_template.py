# SPDX-License-Identifier: MIT
"""Renders templates of Go's text/template, as in Ollama's TEMPLATE instructions, with the values that Ollama
passes for a conversation.

    template = Template.parse("{{ range .Messages }}<{{ .Role }}>{{ .Content }}{{ end }}")
    text = template.render(messages)

The module supports text, comments, `if`, `with`, `range` (with `break` and `continue`), `define`, `template`,
variables, pipelines, and the functions in this module. Anything else in a template raises an error with the
line. The template becomes a syntax tree of Jinja, which `chat.jinja` compiles and limits. Values are Python
objects, and count as true or false by Go's rules:

    nil            None        prints as <no value>, inside of functions as <nil>
    string         str         bytes that are not UTF-8 are surrogates U+DC80 to U+DCFF
    bool, int      bool, int
    float64        float
    slice          list, tuple an empty tuple is nil
    map            dict        str keys, sorted
    struct         Struct      a fixed set of fields; any other field is an error

Sources of the rules: golang/go: src/text/template, src/fmt, src/encoding/json; ollama/ollama:
template/template.go, api/types.go.
"""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, timedelta
from functools import reduce
from itertools import islice, pairwise
from typing import Any, NamedTuple

import jinja2
from jinja2 import nodes

from eaglecpp.chat import bounds
from eaglecpp.chat.bounds import as_text, joined, made
from eaglecpp.chat.jinja import ENVIRONMENT, own_errors
from eaglecpp.chat.message import Message, Role
from eaglecpp.chat.turns import merged
from eaglecpp.errors import InvalidValueError, TemplateError

# Values in templates


class Struct:
    """A Go struct.

    json_names: names of the fields in JSON. A field whose name ends in "?" is omitted if it is empty. The
        struct prints as JSON; if `json_names` is "", it prints as {a b c}
    """

    def __init__(self, json_names: str = "", **fields: Any) -> None:
        named = zip(json_names.split() or fields, fields.values(), strict=True)
        self.fields = fields
        self.json = {name.removesuffix("?"): one for name, one in named if one or not name.endswith("?")}
        self.is_json = bool(json_names)


class JsonList(tuple[Any, ...]):
    """A Go slice that prints as JSON."""


class JsonDict(dict[str, Any]):
    """A Go map that prints as JSON."""


class TypeNames(tuple[str, ...]):
    """The types of a tool's property. A list with a single type prints as the type's name."""


def go_value(value: Any) -> Any:
    """Returns a JSON value with sorted keys, because Go walks and prints maps in the order of their keys."""
    if isinstance(value, Mapping):
        return {key: go_value(value[key]) for key in sorted(value)}
    if isinstance(value, list | tuple):
        return [go_value(one) for one in value]
    return int(value) if isinstance(value, float) and value.is_integer() else value


def printed(value: Any) -> str:
    """Formats a value like Go's `%v`."""
    if value is None:
        return "<nil>"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, JsonList | JsonDict) or (isinstance(value, Struct) and value.is_json):
        return _json(value)
    if isinstance(value, Struct):
        return "{" + " ".join(map(printed, value.fields.values())) + "}"
    if isinstance(value, dict):
        return "map[" + " ".join(f"{key}:{printed(one)}" for key, one in value.items()) + "]"
    if isinstance(value, TypeNames) and len(value) <= 1:
        return "".join(value)
    if isinstance(value, list | tuple):
        return "[" + " ".join(map(printed, value)) + "]"
    return str(value)


_JSON_ESCAPES = {ord(char): f"\\u{ord(char):04x}" for char in "<>&\u2028\u2029"}


def _json(value: Any) -> str:
    """Formats a value like Go's encoding/json: without spaces, and with `<`, `>` and `&` escaped."""
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"), default=lambda one: one.json)
    return text.translate(_JSON_ESCAPES)


def _bytes(text: str) -> bytes:
    return text.encode("utf-8", "surrogateescape")


# Functions that templates can call. They raise ValueError for invalid arguments.


def _elements(value: Any) -> Any:
    """Returns the sequence to which an index of the value refers: the bytes of a string, or the elements of a
    list.
    """
    if not isinstance(value, str | list | tuple):
        raise ValueError(f"{printed(value):.80} is neither a text nor a list")
    return _bytes(value) if isinstance(value, str) else value


def _position(index: Any, end: int) -> int:
    if isinstance(index, bool) or not isinstance(index, int) or not 0 <= index <= end:
        raise ValueError(f"index {printed(index)} is out of range; the maximum is {end}")
    return index


def _index(value: Any, index: Any, *others: Any) -> Any:
    for one in (index, *others):
        if isinstance(value, dict) and isinstance(one, str):
            value = value.get(one)
        else:
            elements = _elements(value)
            value = elements[_position(one, len(elements) - 1)]
    return value


def _slice(value: Any, first: Any = 0, end: Any = None) -> Any:
    elements = _elements(value)
    last = _position(len(elements) if end is None else end, len(elements))
    part = elements[_position(first, last) : last]
    return part.decode("utf-8", "surrogateescape") if isinstance(part, bytes) else part


def _equal(first: Any, second: Any) -> bool:
    nils = [value is None or value == () for value in (first, second)]
    if any(nils):
        return all(nils)
    if type(first) is not type(second) or not isinstance(first, str | bool | int | float):
        raise ValueError(f"{printed(first):.40} and {printed(second):.40} cannot be compared")
    return bool(first == second)


def _less(first: Any, second: Any) -> bool:
    _equal(first, second)
    if isinstance(first, bool) or first is None or second is None:
        raise ValueError(f"{printed(first):.40} and {printed(second):.40} cannot be ordered")
    return bool(first < second)


_VERBS = {"v": object, "s": str | list | tuple | dict | None, "q": str, "d": int}


def _printf(form: Any, *values: Any) -> str:
    """Returns the format with its directives replaced. Raises ValueError for a directive for which Go would
    write an error such as `%!d(string=hi)` into the text.
    """
    left = list(values)

    def formatted(match: re.Match[str]) -> str:
        verb = match[1]
        if verb == "%":
            return "%"
        if verb not in _VERBS or not left or (verb == "d" and isinstance(left[0], bool)):
            raise ValueError(f"{match[0]!r} is not supported or has no value; use %v, %s, %q or %d")
        value = left.pop(0)
        if not isinstance(value, _VERBS[verb]):
            raise ValueError(f"{match[0]} cannot format {printed(value):.40}")
        return as_text(json.dumps(value, ensure_ascii=False) if verb == "q" else printed(value))

    text = re.sub(r"(?s)%(.?)", formatted, as_text(form))
    if left:
        raise ValueError(f"the format has too few verbs: {len(left)} values are left")
    return text


def _day(days: int) -> Callable[..., str]:
    return lambda *_: (date.today() + timedelta(days=days)).isoformat()


_FUNCTIONS: dict[str, Callable[..., Any]] = {
    "not": lambda value: not value,
    "eq": lambda first, second, *others: any(_equal(first, one) for one in (second, *others)),
    "ne": lambda first, second: not _equal(first, second),
    "lt": _less,
    "le": lambda first, second: not _less(second, first),
    "gt": lambda first, second: _less(second, first),
    "ge": lambda first, second: not _less(first, second),
    "len": lambda value: len(value if isinstance(value, dict) else _elements(value)),
    "index": _index,
    "slice": _slice,
    "printf": _printf,
    "json": _json,
    "currentDate": _day(0),
    "yesterdayDate": _day(-1),
}
_OPERATORS = {"and": nodes.And, "or": nodes.Or}


def _called(name: str, *values: Any) -> Any:
    try:
        return made(_FUNCTIONS[name](*values))
    except TemplateError:
        raise
    except ValueError as error:
        raise ValueError(f"{name}: {error}") from None


def _field(value: Any, *names: str) -> Any:
    for name in names if value is not None else ():
        fields = value.fields if isinstance(value, Struct) else value
        if not isinstance(fields, dict) or (isinstance(value, Struct) and name not in fields):
            raise ValueError(f"{printed(value):.80} has no field {name}")
        value = fields.get(name)
    return value


def _items(value: Any) -> Iterable[tuple[Any, Any]]:
    if value is None:
        return ()
    if isinstance(value, list | tuple):
        return enumerate(value)
    if isinstance(value, dict):
        return value.items()
    raise ValueError(f"cannot range over {printed(value):.80}")


_ENVIRONMENT = ENVIRONMENT.overlay()
# templates cannot call these filters, because the names contain a space
_ENVIRONMENT.filters = ENVIRONMENT.filters | {
    "go call": _called,
    "go field": _field,
    "go items": _items,
    "go text": lambda value: "<no value>" if value is None else printed(value),
}


# Parsing the template language

# White space matches only from its first character. Otherwise long runs of white space would take quadratic
# time.
_TRIM = r"(?:(?<![ \t\r\n])[ \t\r\n]+)?\{\{-"
_DELIMITER = re.compile(
    rf"(?P<comment>(?:{_TRIM}[ \t\r\n]|\{{\{{)/\*.*?\*/(?:[ \t\r\n]-\}}\}}[ \t\r\n]*|\}}\}}))"
    rf"|{_TRIM}(?=[ \t\r\n])|\{{\{{",
    re.DOTALL,
)
_TOKEN = re.compile(
    r"(?P<close>[ \t\r\n]+-\}\}[ \t\r\n]*|\}\})|(?P<space>[ \t\r\n]+)"
    r'|(?P<string>"(?:[^"\\\n]|\\[^\n])*")|(?P<raw>`[^`]*`)|(?P<int>[+-]?(?:0|[1-9][0-9]{0,17}))'
    r"|(?P<variable>\$\w*)|(?P<field>\.[^\W\d]\w*)|(?P<dot>\.)|(?P<sign>:=|[=|(),])"
    r"|(?P<word>(?:if|with|range|else|end|define|block|template|break|continue|nil|true|false)\b)"
    r"|(?P<name>[^\W\d]\w*)"
)


class Token(NamedTuple):
    """A token of the template language.

    kind:   "text", "open", "eof", a group of `_TOKEN`, or the text of a keyword or sign
    text:   the token as written
    spaced: white space inside the action precedes the token
    """

    kind: str
    text: str
    line: int
    spaced: bool = False


def lex(text: str) -> Iterator[Token]:
    """Yields the tokens of a template, without comments and the white space that `{{-` and `-}}` trim."""
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
                what = f"unexpected {text[at]!r}" if at < len(text) else "the template ends"
                raise TemplateError(f"{what} inside an action", line)
            kind, at = str(found.lastgroup), found.end()
            if kind != "space":
                yield Token(found[0] if kind in ("sign", "word") else kind, found[0], line, spaced)
            spaced = kind == "space"
            line += found[0].count("\n")
    yield Token("text", text[at:], line)
    yield Token("eof", "the end of the text", line + text.count("\n", at))


def _constant(token: Token) -> Any:
    """Returns the value of a literal. A string may have JSON's escapes."""
    match token.kind:
        case "string":
            try:
                text = str(json.loads(token.text, strict=False))
                text.encode()
            except ValueError:
                raise TemplateError(f"{token.text} contains an unsupported escape", token.line) from None
            return text
        case "raw":
            return token.text[1:-1].replace("\r", "")
        case "int":
            return int(token.text)
        case "nil" | "true" | "false":
            return {"nil": None, "true": True, "false": False}[token.kind]
    raise _unexpected(token, "an operand")


def _unexpected(token: Token, where: str) -> TemplateError:
    return TemplateError(f"unexpected {token.text} in {where}", token.line)


def _load(name: str) -> nodes.Expr:
    return nodes.Name(name, "load")


def _set(slot: str, value: nodes.Expr) -> nodes.Node:
    return nodes.Assign(nodes.NSRef("slots", slot), value)


def _filter(name: str, value: nodes.Expr, *others: Any) -> nodes.Expr:
    return nodes.Filter(value, name, [nodes.Const(one) for one in others], [], None, None)


def _framed(body: Sequence[nodes.Node]) -> list[nodes.Node]:
    """Returns a body with a namespace of its own for Go's variables. Blocks inside the body may set these
    variables.
    """
    call = nodes.Call(_load("namespace"), [], [], None, None)
    return [nodes.Assign(nodes.Name("slots", "store"), call), _set("root", _load("dot")), *body]


class Parser:
    """Parser that turns a template into a syntax tree of Jinja, by recursive descent.

    A template without `.Messages` and `.Response` gets a `.Response` at its end. uses: names of the fields
    and variables in the template, in lower case.
    """

    def __init__(self, tokens: Sequence[Token]) -> None:
        self._tokens = tokens
        self._at = self._level = self._n_loops = self._n_names = 0
        self._dot = "dot"
        self._variables = [("$", "root")]  # pairs of a Go variable and its Jinja variable
        self._is_late: bool | None = False  # True after the first `.Response`, None inside a `define`
        self._called: list[tuple[str, int]] = []
        self._defined: dict[str, nodes.Node] = {}
        self.uses: set[str] = set()
        body, end = self._body()
        if end.kind != "eof":
            raise _unexpected(end, "the text")
        if not self.uses & {"messages", "response"}:
            body.append(nodes.Output([_filter("go text", _filter("go field", _load("dot"), "Response"))]))
        for name, line in self._called:
            if name not in self._defined:
                raise TemplateError(f"template {name!r} is not defined", line)
        self.tree = nodes.Template([*self._defined.values(), *_framed(body)], lineno=1)
        self.tree.set_lineno(1).set_environment(_ENVIRONMENT)

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
            raise TemplateError(f"blocks are nested more than {bounds.MAX_NESTING} deep", self._peek().line)

    def _name(self) -> str:
        self._n_names += 1
        return f"n{self._n_names}"

    def _body(self) -> tuple[list[nodes.Node], Token]:
        """Parses up to an `end`, an `else` or the end of the template. Returns the nodes, and the token at
        which the body ends.
        """
        found: list[nodes.Node] = []
        self._enter()
        while True:
            token, is_late = self._take(), self._is_late
            if token.kind == "eof" or (token.kind == "open" and self._peek().kind in ("end", "else")):
                self._level -= 1
                return found, token if token.kind == "eof" else self._take()
            some: list[nodes.Node] = [nodes.Output([nodes.Const(token.text)])]
            if token.kind == "open":
                some = self._action()
            if is_late:
                some = [nodes.If(nodes.Not(_load("is_open")), some, [], [])]
            found += [node.set_lineno(token.line) for node in some]

    def _ended(self, end: Token) -> None:
        """Parses the `end` of a block."""
        if end.kind != "end":
            raise TemplateError(f"unexpected {end.text}; close the block with {{{{ end }}}}", end.line)
        self._take("end", "close")

    def _action(self) -> list[nodes.Node]:
        token = self._peek()
        match token.kind:
            case "if" | "with" | "range":
                return self._control(self._take().kind)
            case "break" | "continue" if self._n_loops:
                self._take()
                self._take(token.kind, "close")
                return [nodes.Break() if token.kind == "break" else nodes.Continue()]
            case "define" if self._level == 1:
                return self._define()
            case "template":
                return self._template()
        start = self._at
        value, slots = self._pipeline("an action", "close")
        if self._is_late is False:
            read = pairwise(self._tokens[start - 1 : self._at])
            self._is_late = any(t.text == ".Response" and before.kind != "variable" for before, t in read)
        return [_set(slot, value) for slot in slots] or [nodes.Output([_filter("go text", value)])]

    def _control(self, kind: str) -> list[nodes.Node]:
        n_variables, dot, what = len(self._variables), self._dot, self._name()
        value, slots = self._pipeline(kind, "close")
        self._dot = {"if": dot, "with": what, "range": f"{what}_one"}[kind]
        self._n_loops += kind == "range"
        body, end = self._body()
        self._n_loops -= kind == "range"
        self._dot = dot
        orelse: list[nodes.Node] = []
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
        keep = nodes.Assign(nodes.Name(what, "store"), value)
        if kind != "range":
            sets = [_set(slot, _load(what)) for slot in slots]
            return [keep, *sets, nodes.If(_load(what), body, [], orelse)]
        names = [f"{what}_key", f"{what}_one"]
        sets = [_set(slot, _load(name)) for slot, name in zip(slots, names[-len(slots) :], strict=False)]
        target = nodes.Tuple([nodes.Name(name, "store") for name in names], "store")
        items = _filter("go items", _load(what))
        loop = nodes.For(target, items, [*sets, *body], [], None, False)
        return [keep, loop, nodes.If(_load(what), [], [], orelse)]

    def _define(self) -> list[nodes.Node]:
        token = self._take()
        name = _constant(self._take("define", "string", "raw"))
        self._take("define", "close")
        saved = self._variables, self._n_loops, self._is_late, self._dot
        self._variables, self._n_loops, self._is_late, self._dot = [("$", "root")], 0, None, "dot"
        body, end = self._body()
        self._ended(end)
        self._variables, self._n_loops, self._is_late, self._dot = saved
        macro = nodes.Macro(_macro(name), [nodes.Name("dot", "param")], [], _framed(body))
        if self._defined.setdefault(name, macro.set_lineno(token.line)) is not macro:
            raise TemplateError(f"template {name!r} is defined twice", end.line)
        return []

    def _template(self) -> list[nodes.Node]:
        token = self._take()
        name = _constant(self._take("template", "string", "raw"))
        value: nodes.Expr = nodes.Const(None)
        if self._peek().kind == "close":
            self._take()
        else:
            value, _ = self._pipeline("template", "close")
        self._called.append((name, token.line))
        return [nodes.Output([nodes.Call(_load(_macro(name)), [value], [], None, None)])]

    def _pipeline(self, where: str, end: str) -> tuple[nodes.Expr, list[str]]:
        """Parses a pipeline. Returns the pipeline's value, and the slots of the variables that get this
        value.
        """
        start, names, sign = self._peek(), [], Token(",", ",", 0)
        while sign.kind == "," and self._peek().kind == "variable" and self._peek(1).kind in (":=", "=", ","):
            names.append(self._take())
            sign = self._take()
        n_names_max = {"range": 2, "parentheses": 0, "template": 0}.get(where, 1)
        if names and (sign.kind == "," or len(names) > n_names_max):
            raise _unexpected(sign, where)
        value: nodes.Expr | None = None
        while self._peek().kind != end:
            value = self._command(value)
            if self._peek().kind != end:
                self._take(where, "|")
        self._take()
        if value is None:
            raise TemplateError(f"{where} has no value", start.line)
        if sign.kind == "=":
            return value, [self._variable(name) for name in names]
        slots = [self._name() for _ in names]
        self._variables += [(name.text, slot) for name, slot in zip(names, slots, strict=True)]
        return value, slots

    def _variable(self, token: Token) -> str:
        for name, slot in reversed(self._variables):
            if name == token.text:
                return slot
        raise TemplateError(f"undefined variable {token.text}; declare it first, with :=", token.line)

    def _command(self, piped: nodes.Expr | None) -> nodes.Expr:
        """Parses a command of a pipeline and returns the command's value. piped: value of the previous
        command, which becomes the last operand.
        """
        first = self._peek()
        operands: list[nodes.Expr] = []
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
            raise TemplateError(f"{first.text} is not a function and takes no arguments", first.line)
        return operands[0]

    def _operand(self) -> nodes.Expr:
        token = self._take()
        names: list[str] = []
        base = _load(self._dot)
        match token.kind:
            case "name":
                base = _call(token, ())
            case "variable":
                base = nodes.Getattr(_load("slots"), self._variable(token), "load")
                self.uses.add(token.text.lower())
            case "field":
                names = [token.text[1:]]
            case "(":
                self._enter()
                base, _ = self._pipeline("parentheses", ")")
                self._level -= 1
            case "dot":
                return base
            case _:
                return nodes.Const(_constant(token))
        while self._peek().kind == "field" and not self._peek().spaced:
            names.append(self._take().text[1:])
        if token.kind != "(":
            self.uses.update(map(str.lower, names))
        return _filter("go field", base, *names) if names else base


def _macro(name: str) -> str:
    return "t" + name.encode().hex()


def _call(token: Token, arguments: Sequence[nodes.Expr]) -> nodes.Expr:
    name = token.text
    if name in _OPERATORS and arguments:
        return reduce(_OPERATORS[name], arguments)
    if name not in _FUNCTIONS and name not in _OPERATORS:
        hint = f"functions: {', '.join(sorted((*_OPERATORS, *_FUNCTIONS)))}; a field's name begins with a dot"
        raise TemplateError(f'function "{name}" not defined', token.line, hint=hint)
    try:
        inspect.signature(_FUNCTIONS[name]).bind(*arguments)
    except (KeyError, TypeError):
        raise TemplateError(f"{name} does not take {len(arguments)} arguments", token.line) from None
    return nodes.Filter(nodes.Const(name), "go call", list(arguments), [], None, None)


# Values that Ollama passes to a template. A template may print a value as JSON, so the names and the order of
# the fields affect the prompt. Fields that Ollama's types lack are left out, for example the `default` of a
# tool's parameter.


def _message_value(message: Message) -> Struct:
    """Returns a message as an element of `.Messages`."""
    calls = []
    for index, call in enumerate(message.tool_calls):
        function = Struct(Index=index, Name=call.name, Arguments=JsonDict(go_value(call.arguments)))
        calls.append(Struct(ID=call.id, Function=function))
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
    """Returns a tool as an element of `.Tools`. tool: definition of the tool in the chat APIs of Ollama and
    OpenAI.
    """
    function = _given(tool, "function", Mapping)
    if not isinstance(function.get("name"), str):
        raise InvalidValueError("tool: expected {'type': 'function', 'function': {'name': ...}}")
    parameters = _struct("type $defs? items? required? properties", _given(function, "parameters", Mapping))
    described = _struct("name description parameters", {**function, "parameters": parameters})
    return _struct("type items? function", {**tool, "function": described})


def _struct(json_names: str, values: Mapping[str, Any]) -> Struct:
    """Returns the struct for a tool or a schema. json_names: names of the fields in JSON."""
    fields: dict[str, Any] = {}
    for json_name in json_names.split():
        name = json_name.removesuffix("?")
        value = values.get(name)
        if name in ("name", "description", "type"):
            value = value if isinstance(value, str | TypeNames) else ""
        elif name in ("required", "enum", "anyOf"):
            value = tuple(_given(values, name, list))
        elif name == "properties":
            properties = _given(values, name, Mapping)
            value = JsonDict({key: _property(_given(properties, key, Mapping)) for key in properties})
        fields[name.lstrip("$")[:1].upper() + name.lstrip("$")[1:]] = value
    return Struct(json_names, **fields)


def _property(schema: Mapping[str, Any]) -> Struct:
    types = schema.get("type")
    names = TypeNames([types] if isinstance(types, str) else map(str, _given(schema, "type", list)))
    several = [_property(_given({"anyOf": one}, "anyOf", Mapping)) for one in _given(schema, "anyOf", list)]
    json_names = "anyOf? type? items? description? enum? properties? required?"
    found = _struct(json_names, {**schema, "anyOf": several, "type": names})
    if len(names) == 1:
        found.json["type"] = names[0]
    return found


def _given(values: Mapping[str, Any], key: str, kind: type) -> Any:
    value = values.get(key) or ([] if kind is list else {})
    if not isinstance(value, kind):
        what = "a list" if kind is list else "an object"
        raise InvalidValueError(f"tool: {key}: expected {what}, found {value!r:.80}")
    return value


@dataclass(frozen=True)
class Template:
    """A parsed TEMPLATE. has_messages: the template mentions `.Messages`.

    A template with `.Messages` runs once, with all messages. An older template without `.Messages` runs once
    for each exchange, with `.System`, `.Prompt` and `.Response`. Its last run ends at `.Response`, where the
    model continues.
    """

    has_messages: bool
    _compiled: jinja2.Template

    @classmethod
    def parse(cls, text: str) -> Template:
        """Parses and compiles a template. Raises TemplateError."""
        bounds.check_size(text)
        tokens = list(islice(lex(text), bounds.MAX_TOKENS + 1))
        if len(tokens) > bounds.MAX_TOKENS:
            raise TemplateError(f"the template has more than {bounds.MAX_TOKENS} tokens", tokens[-1].line)
        with own_errors():
            parsed = Parser(tokens)
            return cls("messages" in parsed.uses, _ENVIRONMENT.from_string(parsed.tree))

    def run(self, data: Mapping[str, Any], is_open: bool = False) -> str:
        """Runs the template with `data` as its dot. Returns the text, which is charged to the `budget`.
        Raises TemplateError.

        is_open: the text ends where the answer begins
        """
        with own_errors():
            return self._compiled.render(dot=data, is_open=is_open)

    def render(
        self,
        messages: Sequence[Message] = (),
        *,
        tools: Sequence[Mapping[str, Any]] = (),
        think: bool | str | None = None,
    ) -> str:
        """Returns the prompt of a conversation. Raises TemplateError for an error at run time or an exceeded
        limit.

        tools: definitions as in the chat APIs
        think: None = the request does not say, a bool, or a level such as "high"
        """
        systems = [message.content for message in messages if message.role == Role.SYSTEM]
        messages = merged(messages, [role for role in Role if role != Role.TOOL])
        common: dict[str, Any] = {
            "Response": "",
            "Think": bool(think),
            "ThinkLevel": think if isinstance(think, str) else "",
            "IsThinkSet": think is not None,
        }
        with bounds.budgeted():
            if self.has_messages:
                common |= {"System": "\n\n".join(systems), "Messages": list(map(_message_value, messages))}
                text = self.run(common | {"Tools": JsonList(map(_tool_value, go_value(tools)))})
            else:
                text = joined(self._exchanges(messages, common))
            return _bytes(text).decode("utf-8", "replace")

    def _exchanges(self, messages: Sequence[Message], common: dict[str, Any]) -> Iterator[str]:
        """Yields the text of each exchange, for a template without `.Messages`. The text of the last exchange
        ends where the answer begins.
        """
        turn = {"System": "", "Prompt": "", "Response": ""}
        for message in messages:
            pending = {"system": ("Prompt", "Response"), "user": ("Response",)}.get(message.role, ())
            if any(turn[name] for name in pending):
                yield self.run(common | turn)
                turn = dict.fromkeys(turn, "")
            name = {"system": "System", "user": "Prompt", "assistant": "Response"}.get(message.role)
            if name:
                turn[name] = message.content
        yield self.run(common | turn, is_open=True)
