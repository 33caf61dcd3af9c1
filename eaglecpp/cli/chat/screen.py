# SPDX-License-Identifier: MIT
"""`Screen`: shows a streaming answer with styles and word wrap, and the chat's own messages.

It takes pieces of text and writes them through `terminal.write`. On a terminal, control characters in a
model's text are shown as symbols, because they could rewrite the screen or attack the terminal. In files and
pipes, the text is written unchanged and without styles.
"""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable, Sequence

from wcwidth import wcwidth

from eaglecpp.cli.terminal import laid_out, note, stderr_is_terminal, wants_colour, write
from eaglecpp.human import visible
from eaglecpp.results import Piece

_RESET, _DIM, _ACCEPTED, _DIM_ACCEPTED = "\x1b[0m", "\x1b[90m", "\x1b[32m", "\x1b[2;32m"
_MIN_WIDTH = 20


class WordWrap:
    """Breaks lines between words, except in fenced code. Holds back an unfinished word.

    width: function that returns the number of columns, 0 = do not wrap. It is called for every word, because
    windows can be resized
    """

    def __init__(self, width: Callable[[], int]) -> None:
        self._width = width
        self._column = 0
        self._blanks: list[tuple[str, str]] = []
        self._word: list[tuple[str, str]] = []
        self._begin = ""  # first characters of the current line
        self._is_code = False

    def feed(self, text: str, style: str = "") -> list[tuple[str, str]]:
        """Adds styled text. Returns the parts that are finished, as pairs (text, style)."""
        if not self._width():
            return [*self.flush(), (text, style)]
        out: list[tuple[str, str]] = []
        for char in text:
            if char == "\n":
                self._is_code ^= self._begin.lstrip().startswith(("```", "~~~"))
                self._begin = ""
                out += [*self.flush(), (char, style)]
                self._column = 0
                continue
            if len(self._begin) < _MIN_WIDTH:
                self._begin += char
            if self._is_code:
                out.append((char, style))
            elif char in " \t":
                out += self._place_word()
                self._blanks.append((char, style))
            # Scripts without spaces, which have wide characters, may break at any character.
            elif _columns(char) == 2:
                out += self._place_word()
                self._word.append((char, style))
                out += self._place_word()
            else:
                self._word.append((char, style))
        return out

    def flush(self) -> list[tuple[str, str]]:
        """Returns the text that was held back, with its blanks."""
        out = [*self._place_word(), *self._blanks]
        self._column += len(self._blanks)
        self._blanks = []
        return out

    def _place_word(self) -> list[tuple[str, str]]:
        if not self._word:
            return []
        width = max(self._width(), _MIN_WIDTH)
        n_word = sum(_columns(char) for char, _ in self._word)
        n_line = self._column + len(self._blanks) + n_word
        if n_line > width and self._column > 0 and n_word <= width:
            out = [("\n", ""), *self._word]
            self._column = n_word
        else:
            out = [*self._blanks, *self._word]
            self._column = n_line % width if n_line > width else n_line
        self._word, self._blanks = [], []
        return out


class Screen:
    """Output of a chat or of one answer. `wrap` may change between answers. On a colour terminal, accepted
    draft tokens are green, and notes and thinking are grey. In files and pipes, thinking is hidden.

    is_terminal: stdout is a terminal; None = detect
    """

    def __init__(
        self,
        *,
        wrap: bool = True,
        hide_thinking: bool = False,
        echo: bool = True,
        is_terminal: bool | None = None,
    ) -> None:
        self.is_terminal = sys.stdout.isatty() if is_terminal is None else is_terminal
        self.wrap = wrap
        self._dim = _DIM if wants_colour() else ""
        self.color = self.is_terminal and wants_colour()
        self.hide_thinking = hide_thinking or not self.is_terminal
        self.echo = echo
        self._wrapper = WordWrap(self._columns)
        self._style = ""
        self._is_thinking = False

    def show(self, pieces: Sequence[Piece]) -> None:
        """Writes pieces of an answer."""
        if not self.echo:
            return
        out: list[tuple[str, str]] = []
        for piece in pieces:
            if piece.is_thinking != self._is_thinking:
                out += self._turn(piece.is_thinking)
            if piece.is_thinking and self.hide_thinking:
                continue
            text = visible(piece.text) if self.is_terminal else piece.text
            out += self._wrapper.feed(text, self._style_of(piece))
        self._write(out)

    def end(self) -> None:
        """Ends an answer, and the line that it ends on."""
        if self.echo:
            closing = self._turn(False) if self._is_thinking else []
            self._write([*closing, *self._wrapper.flush(), ("\n", "")])
            self._wrapper = WordWrap(self._columns)

    def say(self, text: str, *, verbatim: bool = False) -> None:
        """Prints the reply to a user's command. The reply may quote text from a model.

        verbatim: add no line breaks, because the text will be copied
        """
        if self.is_terminal:
            text = visible(text) if verbatim else self._laid_out(text)
        write(text + "\n", styled=True)

    def note(self, text: str) -> None:
        """Prints a note that is not part of an answer, in grey on a terminal."""
        if stderr_is_terminal():
            text = f"{self._dim}{self._laid_out(text)}{_RESET if self._dim else ''}"
        note(text, styled=True)

    def _laid_out(self, text: str) -> str:
        """Returns the text. If stdout is a terminal, adds line breaks between words."""
        return laid_out(visible(text)) if self.wrap else visible(text)

    def _columns(self) -> int:
        return shutil.get_terminal_size().columns if self.wrap and self.is_terminal else 0

    def _turn(self, thinking: bool) -> list[tuple[str, str]]:
        """Switches between thinking and the answer, and prints Ollama's marks for it."""
        self._is_thinking = thinking
        text = "Thinking...\n" if thinking else "\n...done thinking.\n\n"
        return [] if self.hide_thinking else self._wrapper.feed(text, self._dim)

    def _style_of(self, piece: Piece) -> str:
        if self.color and piece.is_accepted:
            return _DIM_ACCEPTED if piece.is_thinking else _ACCEPTED
        return self._dim if piece.is_thinking else ""

    def _write(self, parts: Sequence[tuple[str, str]]) -> None:
        """Writes styled parts in one call, with escape sequences only where the style changes."""
        out = []
        for text, style in parts:
            if style != self._style and self.is_terminal:
                out.append((_RESET if self._style else "") + style)
                self._style = style
            out.append(text)
        if self._style:
            out.append(_RESET)
            self._style = ""
        if out:
            write("".join(out), styled=True)


def _columns(char: str) -> int:
    """Returns the columns that a character takes on a terminal."""
    return max(wcwidth(char), 0)
