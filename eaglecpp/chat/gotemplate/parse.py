# SPDX-License-Identifier: MIT
"""Tokens -> tree, with Go's grammar and Go's words for what is wrong.

Every name is checked here: an unknown function or variable refuses the template before it runs. Nesting is
bounded, so that a hostile text cannot exhaust the stack. Complex numbers are the one part of the language
that is missing. Source of the rules: golang/go: src/text/template/parse/parse.go.
"""

from __future__ import annotations

from collections.abc import Collection

from eaglecpp.errors import TemplateError

from .lex import Token, lex, quoted
from .literals import LiteralError, char_value, number_value, string_value
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

__all__ = ["parse"]

MAX_DEPTH = 100
"""Blocks, else-if steps and parentheses inside each other; a real template needs fewer than ten."""

_OPERAND_STARTS = frozenset(
    ("bool", "char", "dot", "field", "name", "number", "nil", "raw", "string", "variable", "(")
)
Body = tuple[Node, ...]


def parse(text: str, functions: Collection[str], name: str = "") -> dict[str, Body]:
    """All templates of a text by name: the text itself under `name`, and what `define` and `block` add.

    functions: names that may be called. Raises TemplateError.
    """
    return _Parser(lex(text), functions, name).parse()


class _Parser:
    """Recursive descent over the token list; `at` is the next token."""

    def __init__(self, tokens: list[Token], functions: Collection[str], name: str) -> None:
        self.tokens = tokens
        self.functions = functions
        self.name = name
        self.at = 0
        self.depth = 0
        self.range_depth = 0
        self.variables = ["$"]
        self.templates: dict[str, Body] = {}

    def parse(self) -> dict[str, Body]:
        body: list[Node] = []
        while self.peek().kind != "eof":
            if self.peek().kind == "{{" and self.tokens[self.at + 1].kind == "define":
                self._define()
                continue
            node = self._text_or_action()
            if isinstance(node, Token):
                raise self.error(f"unexpected {_shown_end(node)}", node)
            body.append(node)
        self._add(self.name, tuple(body))
        self.templates.setdefault(self.name, ())
        return self.templates

    def peek(self) -> Token:
        return self.tokens[self.at]

    def next(self) -> Token:
        token = self.tokens[self.at]
        if token.kind not in ("eof", "error"):
            self.at += 1
        return token

    def error(self, message: str, token: Token, hint: str = "") -> TemplateError:
        return TemplateError(message, token.line, name=self.name, hint=hint)

    def unexpected(self, token: Token, context: str) -> TemplateError:
        message = token.text if token.kind == "error" else f"unexpected {token} in {context}"
        return self.error(message, token)

    def expect(self, kind: str, context: str) -> Token:
        token = self.next()
        if token.kind != kind:
            raise self.unexpected(token, context)
        return token

    def _enter(self, token: Token) -> None:
        self.depth += 1
        if self.depth > MAX_DEPTH:
            raise self.error(f"max expression depth exceeded ({MAX_DEPTH})", token, "use fewer nested blocks")

    def _add(self, name: str, body: Body) -> None:
        old = self.templates.get(name)
        if old is None or _is_empty(old):
            self.templates[name] = body
        elif not _is_empty(body):
            raise self.error(f"template: multiple definition of template {quoted(name)}", self.peek())

    def _template_name(self, context: str) -> str:
        token = self.next()
        if token.kind not in ("string", "raw"):
            raise self.unexpected(token, context)
        return str(self._literal(token))

    def _define(self) -> None:
        self.at += 2
        name = self._template_name("define clause")
        self.expect("}}", "define clause")
        self._add(name, self._separate_body("define clause"))

    def _separate_body(self, context: str) -> Body:
        """The body of a `define` or `block`, which sees none of the variables and loops around it."""
        saved = self.variables, self.range_depth
        self.variables, self.range_depth = ["$"], 0
        body, end = self._items()
        self.variables, self.range_depth = saved
        if end.kind != "end":
            raise self.error(f"unexpected {_shown_end(end)} in {context}", end)
        return body

    def _items(self) -> tuple[Body, Token]:
        """Nodes up to an `end` or `else`, which is returned too."""
        nodes: list[Node] = []
        self._enter(self.peek())
        while self.peek().kind != "eof":
            node = self._text_or_action()
            if isinstance(node, Token):
                self.depth -= 1
                return tuple(nodes), node
            nodes.append(node)
        raise self.error("unexpected EOF", self.peek(), "a block is not closed with {{ end }}")

    def _text_or_action(self) -> Node | Token:
        token = self.next()
        if token.kind == "text":
            return Text(token.text, token.line)
        if token.kind == "{{":
            return self._action()
        raise self.unexpected(token, "input")

    def _action(self) -> Node | Token:
        token = self.peek()
        match token.kind:
            case "if" | "with" | "range":
                return self._control(self.next())
            case "end":
                self.next()
                self.expect("}}", "end")
                return token
            case "else":
                self.next()
                if self.peek().kind not in ("if", "with"):
                    self.expect("}}", "else")
                return token
            case "break" | "continue":
                return self._jump(self.next())
            case "block" | "template":
                return self._template_call(self.next())
            case _:
                return Action(self._pipeline("command", "}}"), token.line)

    def _control(self, keyword: Token) -> Branch:
        kind, n_variables = keyword.kind, len(self.variables)
        pipe = self._pipeline(kind, "}}")
        self.range_depth += kind == "range"
        body, end = self._items()
        self.range_depth -= kind == "range"
        orelse: Body | None = None
        if end.kind == "else" and kind != "range" and self.peek().kind == kind:
            self._enter(self.peek())  # `else if` is an `else` with an `if` in it and one common `end`
            orelse = (self._control(self.next()),)
            self.depth -= 1
        elif end.kind == "else":
            orelse, end = self._items()
            if end.kind != "end":
                raise self.error(f"expected end; found {_shown_end(end)}", end)
        del self.variables[n_variables:]
        return Branch(kind, pipe, body, orelse, keyword.line)

    def _jump(self, keyword: Token) -> Jump:
        shown = f"{{{{{keyword.kind}}}}}"
        self.expect("}}", shown)
        if self.range_depth == 0:
            raise self.error(f"{shown} outside {{{{range}}}}", keyword)
        return Jump(keyword.kind, keyword.line)

    def _template_call(self, keyword: Token) -> TemplateCall:
        context = f"{keyword.kind} clause"
        name = self._template_name(context)
        if keyword.kind == "template" and self.peek().kind == "}}":
            self.next()
            return TemplateCall(name, None, keyword.line)
        pipe = self._pipeline(context, "}}")
        if keyword.kind == "block":
            self._add(name, self._separate_body(context))
        return TemplateCall(name, pipe, keyword.line)

    def _pipeline(self, context: str, end: str) -> Pipe:
        start = self.peek()
        variables, is_assignment = self._declarations(context)
        commands: list[Command] = []
        while self.peek().kind != end:
            if self.peek().kind not in _OPERAND_STARTS:
                raise self.unexpected(self.next(), context)
            commands.append(self._command())
        self.next()
        if not commands:
            raise self.error(f"missing value for {context}", start)
        for stage, command in enumerate(commands[1:], start=2):
            if _is_bare(command.operands[0]):
                raise self.error(f"non executable command in pipeline stage {stage}", start)
        return Pipe(tuple(commands), variables, is_assignment, start.line)

    def _declarations(self, context: str) -> tuple[tuple[str, ...], bool]:
        """Variables before `:=` or `=`, of which a range may have two, and whether it was `=`."""
        variables: list[str] = []
        while self.peek().kind == "variable":
            variable, sign = self.peek(), self.tokens[self.at + 1]
            if sign.kind not in ("=", ":=") and sign.text != ",":
                break
            self.at += 2
            variables.append(variable.text)
            self.variables.append(variable.text)
            if sign.text != ",":
                return tuple(variables), sign.kind == "="
            if context != "range" or len(variables) > 1:
                raise self.error(f"too many declarations in {context}", sign)
            if self.peek().kind not in ("variable", "}}", ")"):
                raise self.error("range can only initialize variables", self.peek())
        return tuple(variables), False

    def _command(self) -> Command:
        line = self.peek().line
        operands: list[Operand] = []
        while True:
            operands.append(self._operand())
            token = self.peek()
            if token.kind == "|":
                self.next()
            if token.kind in ("|", "}}", ")"):
                return Command(tuple(operands), line)
            if not token.spaced or token.kind not in _OPERAND_STARTS:
                raise self.unexpected(token, "operand")

    def _operand(self) -> Operand:
        start = self.peek()
        term = self._term(self.next())
        names: list[str] = []
        while self.peek().kind == "field" and not self.peek().spaced:
            names.append(self.next().text[1:])
        if not names:
            return term
        if _is_bare(term):
            raise self.error(f"unexpected . after term {quoted(start.text)}", start)
        if isinstance(term, Field):
            return Field((*term.names, *names), term.line)
        if isinstance(term, Variable):
            return Variable(term.name, tuple(names), term.line)
        return Chain(term, tuple(names), start.line)

    def _term(self, token: Token) -> Operand:
        match token.kind:
            case "name":
                if token.text not in self.functions:
                    hint = f"known: {', '.join(sorted(self.functions))}; a field needs a dot before its name"
                    raise self.error(f"function {quoted(token.text)} not defined", token, hint)
                return Name(token.text, token.line)
            case "dot":
                return Field((), token.line)
            case "nil":
                return Literal(None, token.line)
            case "variable":
                if token.text not in self.variables:
                    raise self.error(f"undefined variable {quoted(token.text)}", token)
                return Variable(token.text, (), token.line)
            case "field":
                return Field((token.text[1:],), token.line)
            case "(":
                self._enter(token)
                pipe = self._pipeline("parenthesized pipeline", ")")
                self.depth -= 1
                return pipe
            case _:
                return Literal(self._literal(token), token.line)

    def _literal(self, token: Token) -> str | int | float | bool:
        try:
            match token.kind:
                case "bool":
                    return token.text == "true"
                case "char":
                    return char_value(token.text)
                case "number":
                    return number_value(token.text)
                case _:
                    return string_value(token.text)
        except LiteralError as error:
            raise self.error(str(error), token) from None


def _is_bare(operand: Operand) -> bool:
    """A constant, nil or dot, which have no fields and cannot be called."""
    return isinstance(operand, Literal) or (isinstance(operand, Field) and not operand.names)


def _is_empty(body: Body) -> bool:
    return all(isinstance(node, Text) and not node.text.strip() for node in body)


def _shown_end(token: Token) -> str:
    return f"{{{{{token.kind}}}}}"
