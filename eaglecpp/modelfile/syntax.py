# SPDX-License-Identifier: MIT
"""The Modelfile language: bytes -> text -> commands -> text.

`decode` returns the text of a file and `parse` its commands; `read` also returns `#eaglecpp:` pragmas and
notices. `format` turns commands back into text. The grammar is Ollama's, including its corner cases, because
a file must mean the same in Ollama and in eaglecpp. This module opens no file and interprets no value, so
`FROM` may name a missing file. Source of the rules: ollama/ollama: parser/parser.go.
"""

from __future__ import annotations

import array
import bisect
import codecs
import re
import unicodedata
from collections.abc import Iterable
from dataclasses import KW_ONLY, dataclass, field

from eaglecpp.errors import EagleError


@dataclass(eq=False, repr=False)
class ModelfileError(EagleError, ValueError):
    """An invalid Modelfile.

    message:      the cause
    line, column: 1-based position of the offending word or quote; None if the error concerns the whole file
    (such as a missing FROM)
    file:         name of the Modelfile; None if the text is not from a file
    hint:         how to fix it
    """

    message: str
    _: KW_ONLY
    line: int | None = None
    column: int | None = None
    file: str | None = None
    hint: str = ""

    def __str__(self) -> str:
        where = _location(self.file, self.line, self.column)
        text = f"{where}: {self.message}" if where else self.message
        return f"{text} ({self.hint})" if self.hint else text


@dataclass(frozen=True)
class Notice:
    """A warning about a valid Modelfile."""

    message: str
    line: int | None = None
    file: str | None = None

    def __str__(self) -> str:
        where = _location(self.file, self.line, None)
        return f"{where}: {self.message}" if where else self.message


def _location(file: str | None, line: int | None, column: int | None) -> str:
    """Returns a location for messages: `Modelfile:3:1`, or `line 3` without a file name, or ""."""
    if file is None:
        return "" if line is None else f"line {line}"
    return ":".join([file, *[str(number) for number in (line, column) if number is not None]])


MAX_TEXT = 4 << 20
"""Maximum bytes of a Modelfile."""
MAX_COMMANDS = 20_000

_NAMES = "from license template system adapter draft renderer parser parameter message requires"
INSTRUCTIONS = tuple(_NAMES.split())
ROLES = ("system", "user", "assistant")
_UNKNOWN_COMMAND = f"command must be one of {', '.join(INSTRUCTIONS)}"
_BAD_ROLE = f"message role must be one of {', '.join(ROLES)}"
_UNEXPECTED_EOF = "unexpected EOF"
_NO_FROM = "no FROM line"

_BLANKS = " \t\r\n"
_IDLE = re.compile(r"[ \t\r\n]*")
_LINE = re.compile(r"[^\r\n]*")
_LETTERS = re.compile(r"[A-Za-z]*")
_PARAMETER_NAME = re.compile(r"[A-Za-z0-9_]*")
_NEWLINE = re.compile(r"\r\n|\r|\n")
_ANY_NEWLINE = re.compile(r"[\r\n]")
_SPACE = re.compile(r"\s")
# Without a colon, only "#eaglecpp NAME" is reported, because "# eaglecpp is ..." is probably a sentence.
_PRAGMA = re.compile(r"(?:[ \t]*eaglecpp(:)|eaglecpp[ \t])(.*)", re.DOTALL)
_PRAGMA_WORDS = re.compile(r"(?:(?i:PARAMETER)[ \t]+)?([A-Za-z_][A-Za-z0-9_]*)(?:[ \t]+(.*))?", re.DOTALL)


@dataclass(frozen=True)
class Command:
    """One instruction or pragma of a Modelfile.

    name: the instruction in lower case, with two exceptions, as in Ollama: the name of `FROM` is "model", and
        the name of a `PARAMETER` is the parameter's name. args: the value as text; "role: text" for a
        `MESSAGE`.
    line, file: for messages, the 1-based line of the instruction (0 if the command was not parsed from a
        text) and the file's name. Comparing commands ignores these two fields.
    """

    name: str
    args: str
    line: int = field(default=0, compare=False)
    file: str | None = field(default=None, compare=False)

    def error(self, message: str, hint: str = "") -> ModelfileError:
        """Returns an error with this command's location."""
        return ModelfileError(message, line=self.line or None, file=self.file, hint=hint)

    def notice(self, message: str) -> Notice:
        """Returns a warning with this command's location."""
        return Notice(message, self.line or None, self.file)


@dataclass(frozen=True)
class Document:
    """The parsed contents of one Modelfile: commands, `#eaglecpp:` pragmas and warnings."""

    commands: tuple[Command, ...]
    pragmas: tuple[Command, ...] = ()
    notices: tuple[Notice, ...] = ()


def decode(data: bytes) -> str:
    """Decodes a Modelfile. A file that starts with the byte-order mark of UTF-16 is decoded as UTF-16, any
    other file as UTF-8.

    The byte-order mark is dropped, and invalid bytes become U+FFFD, as in Ollama.
    """
    is_utf16 = data.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE))
    return data.decode("utf-16" if is_utf16 else "utf-8-sig", "replace")


def parse(text: str | bytes, *, file: str | None = None) -> list[Command]:
    """Returns the commands of a Modelfile in order, without pragmas (see `read`). Raises ModelfileError."""
    return list(read(text, file=file).commands)


def read(text: str | bytes, *, file: str | None = None) -> Document:
    """Parses a Modelfile. file: the name used in messages. Raises ModelfileError."""
    if len(text) > MAX_TEXT:
        raise ModelfileError(f"more than {MAX_TEXT} bytes", file=file, hint="is it a Modelfile?")
    if isinstance(text, bytes):
        text = decode(text)
    reader = _Parser(text.removeprefix("\ufeff"), file)
    reader.run()
    if "\ufffd" in text:
        reader.notices.append(Notice("bytes that are not UTF-8 became U+FFFD, as in Ollama", file=file))
    if not any(command.name == "model" for command in reader.commands):
        raise ModelfileError(_NO_FROM, file=file, hint="name the base model, as in FROM ./model.gguf")
    return Document(tuple(reader.commands), tuple(reader.pragmas), tuple(reader.notices))


def format(commands: Iterable[Command], pragmas: Iterable[Command] = ()) -> str:
    """Returns a text that `parse` turns into the same commands. The pragmas come first.

    Raises ModelfileError for a value that the language cannot express (see `docs/modelfile.md`).
    """
    lines = [_pragma_line(pragma) for pragma in pragmas]
    lines += [_command_line(command) for command in commands]
    return "".join(f"{line}\n" for line in lines)


def holdable(value: str) -> str:
    """Returns a value without the characters that a Modelfile cannot hold."""
    return "".join(char for char in value if char in "\r\n" or _is_kept(char))


class _Parser:
    """Reader of a Modelfile, which passes over the text once. Each method moves `at` behind the text that the
    method read.

    Ollama's parser is a state machine that examines the whole value again at every blank, which takes
    quadratic time. A value can only end at a newline or at the end of the file. So this reader works line by
    line, in linear time.
    """

    def __init__(self, text: str, file: str | None) -> None:
        self.text = text
        self.file = file
        self.at = 0
        self.commands: list[Command] = []
        self.pragmas: list[Command] = []
        self.notices: list[Notice] = []
        self._line_starts = array.array("I", (match.end() for match in _NEWLINE.finditer(text)))
        self._line_starts.insert(0, 0)

    def run(self) -> None:
        while True:
            self._take(_IDLE)
            if self.at == len(self.text):
                return
            if len(self.commands) + len(self.pragmas) + len(self.notices) > MAX_COMMANDS:
                raise self._error(f"more than {MAX_COMMANDS} instructions", self.at, "remove some")
            if self.text[self.at] == "#":
                self._comment()
            else:
                self._command()

    def _take(self, pattern: re.Pattern[str]) -> str:
        match = pattern.match(self.text, self.at)
        assert match is not None  # every pattern matches at least the empty string
        self.at = match.end()
        return match[0]

    def _comment(self) -> None:
        start, self.at = self.at, self.at + 1
        match = _PRAGMA.match(self._take(_LINE))
        if match is None:
            return
        line = self._line_of(start)
        words = match[1] and _PRAGMA_WORDS.fullmatch(_kept(match[2]).strip(_BLANKS))
        if words:
            value = (words[2] or "").strip(_BLANKS)
            self.pragmas.append(Command(words[1].lower(), _unquoted(value), line, self.file))
            return
        message = f"pragma '{match[2].strip()}' ignored: expected '#eaglecpp: NAME VALUE'"
        self.notices.append(Notice(message, line, self.file))

    def _command(self) -> None:
        start = self.at
        # If the first character of a name is invalid, Ollama drops it. A later invalid character becomes part
        # of the name.
        self.at += 1
        word = (_kept(self.text[start]) + self._take(_LETTERS)).lower()
        hint = f"{word.upper()} needs a value" if word in INSTRUCTIONS else f"found '{word}'"
        self._need_blank(start, _UNKNOWN_COMMAND, hint)
        if word not in INSTRUCTIONS:
            raise self._error(_UNKNOWN_COMMAND, start, hint)
        self.at += 1
        name, role = ("model" if word == "from" else word), ""
        if word == "parameter":
            name = self._second_word(_PARAMETER_NAME, "write PARAMETER NAME VALUE")
        elif word == "message":
            role = f"{self._role()}: "
        self.commands.append(Command(name, role + self._value(), self._line_of(start), self.file))

    def _need_blank(self, start: int, message: str, hint: str) -> None:
        if self.at == len(self.text):
            raise self._error(_UNEXPECTED_EOF, start, "the file ends here, but the instruction needs a value")
        if self.text[self.at] not in " \t":
            raise self._error(message, start, hint=hint)

    def _second_word(self, pattern: re.Pattern[str], hint: str) -> str:
        start = self.at
        word = self._take(pattern)
        self._need_blank(start, f"{_UNEXPECTED_EOF}: {word}", hint)
        self.at += 1
        return word

    def _role(self) -> str:
        start = self.at
        role = self._second_word(_LETTERS, "write MESSAGE ROLE TEXT")
        if role not in ROLES:
            raise self._error(_BAD_ROLE, start, hint=f"found '{role}'")
        return role

    def _value(self) -> str:
        """Reads the value of an instruction, which continues over several lines while a quote is open."""
        start, parts = self.at, [self._kept_line()]
        head = parts[0].strip(_BLANKS)
        quote = _opening_quote(head)
        closed = not quote or _unquoted(head) != head
        while not closed:
            if self.at == len(self.text):
                hint = f"the {quote} that opens here has no line that ends in {quote}"
                raise self._error(_UNEXPECTED_EOF, start + self.text[start:].index('"'), hint)
            parts.append(self.text[self.at])
            self.at += 1
            parts.append(self._kept_line())
            closed = parts[-1].rstrip(_BLANKS).endswith(quote)
        value = "".join(parts).strip(_BLANKS)
        return value[len(quote) : len(value) - len(quote)]

    def _kept_line(self) -> str:
        """Reads the line up to its newline, without the characters that a Modelfile cannot hold."""
        line = self._line_of(self.at)
        raw = self._take(_LINE)
        kept = _kept(raw)
        if kept != raw:
            message = f"dropped characters that a Modelfile cannot contain, as in Ollama: {_not_kept(raw)}"
            self.notices.append(Notice(message, line, self.file))
        return kept

    def _line_of(self, index: int) -> int:
        return bisect.bisect_right(self._line_starts, index)

    def _error(self, message: str, start: int, hint: str) -> ModelfileError:
        """Returns an error located at the word that starts at `start`."""
        line = self._line_of(start)
        column = start - self._line_starts[line - 1] + 1
        return ModelfileError(message, line=line, column=column, file=self.file, hint=hint)


def _is_kept(char: str) -> bool:
    """Returns whether a Modelfile's value keeps a character.

    Ollama keeps letters, marks, numbers, punctuation, symbols, the plain space and the tab. A code point that
    is missing in this Python's Unicode tables may be a letter or an emoji in newer tables, so it is kept as
    well.
    """
    if char == "\t" or char.isprintable():
        return True
    code = ord(char)
    is_noncharacter = code & 0xFFFE == 0xFFFE or 0xFDD0 <= code <= 0xFDEF
    return unicodedata.category(char) == "Cn" and not is_noncharacter


def _dropped(line: str) -> set[str]:
    return set() if line.isprintable() else {char for char in set(line) if not _is_kept(char)}


def _not_kept(line: str) -> str:
    return ", ".join(sorted(f"U+{ord(char):04X}" for char in _dropped(line)))


def _kept(line: str) -> str:
    return line.translate(dict.fromkeys(map(ord, _dropped(line))))


def _opening_quote(value: str) -> str:
    return '"""' if value.startswith('"""') else '"' if value.startswith('"') else ""


def _unquoted(value: str) -> str:
    """Returns the value between its quotes, or the whole value if the quotes are not closed."""
    quote = _opening_quote(value)
    if quote and len(value) >= 2 * len(quote) and value.endswith(quote):
        return value[len(quote) : len(value) - len(quote)]
    return value


def _pragma_line(pragma: Command) -> str:
    words = _PRAGMA_WORDS.fullmatch(f"{pragma.name} x")
    if words is None or words[1] != pragma.name or pragma.name != pragma.name.lower():
        raise pragma.error(f"'{pragma.name}' cannot be the name of a pragma")
    if _ANY_NEWLINE.search(pragma.args):
        raise pragma.error(f"pragma {pragma.name}: the value has a line break, but a pragma is one line")
    return f"#eaglecpp: {pragma.name} {_written(pragma, pragma.args, bare=_is_bare(pragma.args))}"


def _command_line(command: Command) -> str:
    name, args = command.name, command.args
    if name == "message":
        role, _, text = args.partition(": ")
        if role not in ROLES:
            raise command.error(_BAD_ROLE, f"found '{role}'")
        return f"MESSAGE {role} {_written(command, text, bare=False)}"
    if name in ("system", "template", "license"):
        return f"{name.upper()} {_written(command, args, bare=False)}"
    if name == "model" or name in INSTRUCTIONS:
        word = "FROM" if name == "model" else name.upper()
        return f"{word} {_written(command, args, bare=_is_bare(args))}"
    if _PARAMETER_NAME.fullmatch(name) is None:
        raise command.error(f"'{name}' cannot be the name of a parameter")
    return f"PARAMETER {name} {_written(command, args, bare=_is_bare(args) and not _SPACE.search(args))}"


def _is_bare(value: str) -> bool:
    """Returns whether a value can be written without quotes."""
    if value == "" or value[0] == '"' or value != value.strip(_BLANKS):
        return False
    return _ANY_NEWLINE.search(value) is None


def _written(command: Command, value: str, *, bare: bool) -> str:
    """Returns a command's value as written in a Modelfile, with quotes if needed. Triple quotes can hold
    every value that the language can express.
    """
    if problem := _why_inexpressible(value):
        hint = "no quoting in a Modelfile can express this; change the text"
        raise command.error(f"{command.name}: {problem}", hint)
    return value if bare else f'"""{value}"""'


def _why_inexpressible(value: str) -> str:
    *inner_lines, last_line = _ANY_NEWLINE.split(value)
    for line in inner_lines:
        if line.rstrip(_BLANKS).endswith('"""'):
            return 'a line before the last ends in """, which would close the value there'
    dropped = _not_kept("".join((*inner_lines, last_line)))
    return f"it contains characters that reading drops: {dropped}" if dropped else ""
