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
_STRING = re.compile(r'"(?:[^"\\\n]|\\[^\n])*"')
_CHAR = re.compile(r"'(?:[^'\\\n]|\\[^\n])*'")
_RAW_STRING = re.compile(r"`[^`]*`")
_NUMBER = re.compile(
    r"[+-]?(?:0[xX][0-9a-fA-F_]*(?:\.[0-9a-fA-F_]*)?(?:[pP][+-]?[0-9_]*)?"
    r"|0[oO][0-7_]*(?:\.[0-7_]*)?|0[bB][01_]*(?:\.[01_]*)?"
    r"|[0-9_]*(?:\.[0-9_]*)?(?:[eE][+-]?[0-9_]*)?)i?"
)
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
        char = self.text[self.at]
        if char == '"':
            self._matched("string", _STRING, "unterminated quoted string")
        elif char == "`":
            self._matched("raw", _RAW_STRING, "unterminated raw quoted string")
        elif char == "'":
            self._matched("char", _CHAR, "unterminated character constant")
        elif char == "$":
            self._word("variable", self.at + 1)
        elif char == "." and not _is_digit(self.text[self.at + 1 : self.at + 2]):
            self._word("field", self.at + 1)
        elif char in "+-." or _is_digit(char):
            self._number()
        elif _is_word_char(char):
            self._word("name", self.at)
        else:
            self._sign(char)

    def _matched(self, kind: str, pattern: re.Pattern[str], problem: str) -> None:
        match = pattern.match(self.text, self.at)
        if match is None:
            raise _LexError(problem)
        self.emit(kind, match[0])
        self._skip(match.end())

    def _word(self, kind: str, index: int) -> None:
        """A name, `.field` or `$variable`; `index` is behind the dot or dollar."""
        while index < len(self.text) and _is_word_char(self.text[index]):
            index += 1
        if not self._terminates(index):
            raise _LexError(f"bad character {_code_point(self.text[index])}")
        word = self.text[self.at : index]
        if word == ".":
            kind = "dot"
        elif word in ("true", "false"):
            kind = "bool"
        elif word in KEYWORDS:
            kind = word
        self.emit(kind, word)
        self.at = index

    def _terminates(self, index: int) -> bool:
        return (
            index >= len(self.text) or self.text[index] in _TERMINATORS or self.text.startswith("}}", index)
        )

    def _number(self) -> None:
        match = _NUMBER.match(self.text, self.at)
        text = match[0] if match else self.text[self.at]
        following = self.text[self.at + len(text) : self.at + len(text) + 1]
        if following and (_is_word_char(following) or following in "+-"):
            raise _LexError(f"bad number syntax: {quoted(text + following)}")
        self.emit("number", text)
        self.at += len(text)

    def _sign(self, char: str) -> None:
        if char == ":":
            if not self.text.startswith(":=", self.at):
                raise _LexError("expected :=")
            char = ":="
        elif char not in "=|()" and not (char.isascii() and char.isprintable()):
            raise _LexError(f"unrecognized character in action: {_code_point(char)}")
        self.emit(char if char in ("=", ":=", "|", "(", ")") else "other", char)
        self.at += len(char)


def _is_digit(char: str) -> bool:
    return len(char) == 1 and "0" <= char <= "9"


def _is_word_char(char: str) -> bool:
    return char == "_" or char.isalpha() or char.isdecimal()


def _code_point(char: str) -> str:
    shown = f" '{char}'" if char.isprintable() else ""
    return f"U+{ord(char):04X}{shown}"
