# SPDX-License-Identifier: MIT
"""Template text -> tokens, as Go's text/template cuts it.

Gives a list that ends in an "eof" token, or in an "error" token whose text says what is wrong: an error
counts only when the parser gets that far. Comments and the white space that `{{-` and `-}}` trim are gone; a
token knows whether a space came before it. Source of the rules: golang/go: src/text/template/parse/lex.go.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

__all__ = ["Token", "lex"]

KEYWORDS = frozenset(
    ("block", "break", "continue", "define", "else", "end", "if", "nil", "range", "template", "with")
)
_SPACES = " \t\r\n"
_SPACE_RUN = re.compile(r"[ \t\r\n]+")
_NUMBER = (
    r"[+-]?(?:0[xX][0-9a-fA-F_]*(?:\.[0-9a-fA-F_]*)?(?:[pP][+-]?[0-9_]*)?"
    r"|0[oO][0-7_]*(?:\.[0-7_]*)?|0[bB][01_]*(?:\.[01_]*)?"
    r"|[0-9_]*(?:\.[0-9_]*)?(?:[eE][+-]?[0-9_]*)?)i?"
)
_TOKEN = re.compile(
    r'(?P<string>"(?:[^"\\\n]|\\[^\n])*")|(?P<raw>`[^`]*`)'
    r"|(?P<char>'(?:[^'\\\n]|\\[^\n])*')"
    rf"|(?P<number>(?=[+-]|\.?[0-9]){_NUMBER})"
    r"|(?P<variable>\$\w*)|(?P<field>\.\w*)|(?P<name>\w+)|(?P<sign>:=|[=|()])|(?P<other>[!-~])"
)
_UNTERMINATED = {'"': "quoted string", "`": "raw quoted string", "'": "character constant"}
_TERMINATORS = frozenset(" \t\r\n.,|:)(")


@dataclass(frozen=True, slots=True)
class Token:
    """kind: "text", "{{", "}}", "(", ")", "|", "=", ":=", "string", "raw", "char", "number", "bool", "field",
    "variable", "dot", "name", "other", "error", "eof", or a keyword.

    text: as written; of a string with its quotes, of a field with its dot
    spaced: whether white space comes before it inside the action
    """

    kind: str
    text: str
    line: int
    spaced: bool = False

    def __str__(self) -> str:
        if self.kind == "eof":
            return "EOF"
        if self.kind == "error":
            return self.text
        if self.kind in KEYWORDS or self.kind == "dot":
            return f"<{self.text}>"
        return quoted(self.text if len(self.text) <= 10 else self.text[:10]) + (
            "..." if len(self.text) > 10 else ""
        )


def quoted(text: str) -> str:
    """The text between double quotes, quotes, backslashes and line breaks escaped."""
    escapes = {"\\": "\\\\", '"': '\\"', "\n": "\\n", "\r": "\\r", "\t": "\\t"}
    return '"' + "".join(escapes.get(char, char) for char in text) + '"'


def lex(text: str) -> list[Token]:
    """All tokens of a template; the last is "eof" or "error"."""
    lexer = _Lexer(text)
    try:
        lexer.run()
    except _LexError as error:
        lexer.emit("error", str(error))
    else:
        lexer.emit("eof", "")
    return lexer.tokens


class _LexError(Exception):
    pass


class _Lexer:
    """One pass. `at` is the position, `line` its line, `spaced` whether the next token follows a space."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.at = 0
        self.line = 1
        self.spaced = False
        self.tokens: list[Token] = []

    def emit(self, kind: str, text: str) -> None:
        self.tokens.append(Token(kind, text, self.line, self.spaced))
        self.spaced = False

    def run(self) -> None:
        while True:
            start = self.text.find("{{", self.at)
            if start < 0:
                self._text(len(self.text), trim=False)
                return
            self._text(start, trim=self._trims_left(start + 2))
            self.at += 2 + (2 if self._trims_left(self.at + 2) else 0)
            if self.text.startswith("/*", self.at):
                self._comment()
            else:
                self._action()

    def _trims_left(self, index: int) -> bool:
        return self.text.startswith("-", index) and self.text[index + 1 : index + 2] in tuple(_SPACES)

    def _text(self, end: int, trim: bool) -> None:
        found = self.text[self.at : end]
        kept = found.rstrip(_SPACES) if trim else found
        if kept:
            self.emit("text", kept)
        self.line += found.count("\n")
        self.at = end

    def _skip(self, end: int) -> str:
        passed = self.text[self.at : end]
        self.line += passed.count("\n")
        self.at = end
        return passed

    def _close(self) -> bool:
        """Passes a right delimiter, with the white space after it when it trims; False when there is none."""
        trims = self.text[self.at : self.at + 1] in tuple(_SPACES) and self.text.startswith(
            "-}}", self.at + 1
        )
        if not trims and not self.text.startswith("}}", self.at):
            return False
        self._skip(self.at + (4 if trims else 2))
        if trims:
            match = _SPACE_RUN.match(self.text, self.at)
            self._skip(match.end() if match else self.at)
        return True

    def _comment(self) -> None:
        end = self.text.find("*/", self.at + 2)
        if end < 0:
            raise _LexError("unclosed comment")
        self._skip(end + 2)
        if not self._close():
            raise _LexError("comment ends before closing delimiter")

    def _action(self) -> None:
        self.spaced = False
        start_line = self.line
        self.emit("{{", "{{")
        depth = 0
        while True:
            line = self.line
            if self._close():
                if depth:
                    raise _LexError("unclosed left paren")
                self.tokens.append(Token("}}", "}}", line, self.spaced))
                return
            if self.at == len(self.text):
                extra = f" started at :{start_line}" if start_line != self.line else ""
                raise _LexError(f"unclosed action{extra}")
            if self.text[self.at] in _SPACES:
                self._space()
                continue
            depth += {"(": 1, ")": -1}.get(self.text[self.at], 0)
            if depth < 0:
                raise _LexError("unexpected right paren")
            self._token()

    def _space(self) -> None:
        match = _SPACE_RUN.match(self.text, self.at)
        end = match.end() if match else self.at
        if self.text.startswith("-}}", end):  # the last space belongs to the delimiter " -}}"
            end -= 1
        if end > self.at:
            self._skip(end)
            self.spaced = True

    def _token(self) -> None:
        match = _TOKEN.match(self.text, self.at)
        if match is None:
            raise _LexError(f"unrecognized character in action: {_code_point(self.text[self.at])}")
        kind, word = match.lastgroup or "", match[0]
        behind = self.text[match.end() : match.end() + 2]
        if kind == "other" and word in _UNTERMINATED:
            raise _LexError(f"unterminated {_UNTERMINATED[word]}")
        if word == ":":
            raise _LexError("expected :=")
        if kind == "number" and behind and (behind[0].isalnum() or behind[0] in "_+-"):
            raise _LexError(f"bad number syntax: {quoted(word + behind[0])}")
        if kind in ("variable", "field", "name"):
            if behind and behind[0] not in _TERMINATORS and behind != "}}":
                raise _LexError(f"bad character {_code_point(behind[0])}")
            if word == ".":
                kind = "dot"
            elif word in ("true", "false"):
                kind = "bool"
            elif word in KEYWORDS:
                kind = word
        self.emit(word if kind == "sign" else kind, word)
        self._skip(match.end())


def _code_point(char: str) -> str:
    shown = f" '{char}'" if char.isprintable() else ""
    return f"U+{ord(char):04X}{shown}"
