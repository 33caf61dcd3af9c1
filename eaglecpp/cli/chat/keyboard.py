# SPDX-License-Identifier: MIT
"""Keyboard input of a chat: prompt_toolkit with history, completion, paste and an external editor.

`open_keyboard` yields an `Ask` callback. This module is only imported with a terminal, because prompt_toolkit
takes a tenth of a second to load.
"""

from __future__ import annotations

import contextlib
import os
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator
from itertools import accumulate
from pathlib import Path

from prompt_toolkit import PromptSession
from prompt_toolkit.application import get_app
from prompt_toolkit.completion import CompleteEvent, Completer, Completion, PathCompleter
from prompt_toolkit.document import Document
from prompt_toolkit.enums import DEFAULT_BUFFER
from prompt_toolkit.filters import Condition, is_searching
from prompt_toolkit.formatted_text import FormattedText
from prompt_toolkit.history import FileHistory
from prompt_toolkit.key_binding import ConditionalKeyBindings, KeyBindings, KeyPressEvent
from prompt_toolkit.keys import Keys
from prompt_toolkit.layout.processors import Processor, Transformation, TransformationInput
from prompt_toolkit.layout.utils import explode_text_fragments
from prompt_toolkit.output import ColorDepth

from eaglecpp.cli.chat.commands import COMMANDS
from eaglecpp.cli.chat.input import CONTINUATION, PROMPT, Ask, is_open
from eaglecpp.cli.command import stored_names
from eaglecpp.cli.terminal import silent_keys, wants_colour, write
from eaglecpp.files import make_folder
from eaglecpp.human import visible
from eaglecpp.modelfile.parameters import PARAMETERS

# Minimum number of lines of a pasted text that is folded, because the text would hide the conversation.
_LONG_LINES = 10
# First character of a private-use plane. The lower private-use area is not used, because many fonts have
# icons in that area.
_FIRST_MARK = 0x100000
_PLACEHOLDER = FormattedText([("fg:ansibrightblack", "Send a message (/? for help)")])


@contextlib.contextmanager
def open_keyboard(history: Path, keeps: Callable[[], bool]) -> Iterator[Ask]:
    """Opens the keyboard of a chat, with the arguments of `Keyboard`. Between prompts, typed keys are kept
    for the next prompt, and bracketed paste stays on, so that the lines of a pasted block do not run as
    commands.
    """
    keyboard = Keyboard(history, keeps)
    with silent_keys(by_key=True):
        keyboard.mark_pastes(True)
        try:
            yield keyboard.ask
        finally:
            keyboard.mark_pastes(False)


def _text(typed: str) -> str:
    """Replaces lone surrogates, which terminals can deliver as input."""
    return typed.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


class SlashCompleter(Completer):
    """Completes slash commands, parameter names, models and file names."""

    def get_completions(self, document: Document, complete_event: CompleteEvent) -> Iterable[Completion]:
        """Yields the completions of the text before the cursor. prompt_toolkit calls this method."""
        text = document.text_before_cursor
        if not text.startswith("/") or "\n" in text:
            return
        name, _, rest = text.partition(" ")
        lines = {name: command.help for name, command in COMMANDS.items()}
        if name == "/load":
            lines = dict.fromkeys((f"/load {model}" for model in stored_names()), "")
        elif text.startswith("/set parameter "):
            lines = {f"/set parameter {one.name}": one.help for one in PARAMETERS.values()}
        for line, help_text in lines.items():
            if line.startswith(text):
                yield Completion(line, start_position=-len(text), display_meta=help_text)
        if name in ("/load", "/read"):
            yield from PathCompleter(expanduser=True).get_completions(Document(rest), complete_event)


class Pastes(Processor):
    """Long pasted texts. In the input, a private-use character stands for each text. The character is shown
    as a label, and one keypress deletes it.

    texts, labels: pasted texts and their labels by this character, for `str.translate`
    """

    def __init__(self) -> None:
        self.texts: dict[int, str] = {}
        self.labels: dict[int, str] = {}

    def folded(self, text: str) -> str:
        """Returns the placeholder character for a long pasted text. A short text is returned unchanged."""
        n_lines = len(text.splitlines())
        if n_lines < _LONG_LINES:
            return text
        mark = _FIRST_MARK + len(self.texts)
        self.texts[mark], self.labels[mark] = text, f"[pasted {n_lines} lines]"
        return chr(mark)

    def apply_transformation(self, transformation_input: TransformationInput) -> Transformation:
        """Returns the displayed form of a line, and the mapping between positions in the line and in its
        displayed form. prompt_toolkit calls this method.
        """
        fragments = explode_text_fragments(transformation_input.fragments)
        shown = [(one[0], one[1].translate(self.labels)) for one in fragments]
        starts = [0, *accumulate(len(label) for _, label in shown)]
        return Transformation([*shown], starts.__getitem__, lambda column: bisect_right(starts, column) - 1)


class Keyboard:
    """Keyboard that asks for messages. history: file in which typed lines are saved. keeps: function that
    returns False while saving is off.
    """

    def __init__(self, history: Path, keeps: Callable[[], bool]) -> None:
        self._pastes = Pastes()
        self._session: PromptSession[str] = PromptSession(
            input_processors=[self._pastes],
            history=_PrivateHistory(str(history), keeps, self._pastes.texts),
            completer=SlashCompleter(),
            complete_while_typing=Condition(lambda: get_app().current_buffer.text.startswith("/")),
            prompt_continuation=CONTINUATION,
            key_bindings=ConditionalKeyBindings(self._bindings(), ~is_searching),
            erase_when_done=True,
            color_depth=None if wants_colour() else ColorDepth.DEPTH_1_BIT,
            enable_open_in_editor=True,
            tempfile_suffix=".md",
        )

    def ask(self, prompt: str, default: str) -> str:
        """Asks for a line, or a pasted or edited block, and returns it. A block that begins with three quotes
        (as program text may) is wrapped in quotes. Raises EOFError, KeyboardInterrupt.

        At the end the input is printed again, because prompt_toolkit leaves the placeholder on the screen,
        and of a long block only as much as fits on the screen.
        """
        # The placeholder is "" and not None, because prompt_toolkit would keep the previous placeholder for
        # None.
        placeholder = _PLACEHOLDER if prompt == PROMPT else ""
        typed = ""
        # A signal may have ended the previous prompt during a search, which moves the focus.
        self._session.layout.focus(DEFAULT_BUFFER)
        try:
            typed = self._session.prompt(prompt, default=default, placeholder=placeholder)
        except KeyboardInterrupt as interrupt:
            typed = str(interrupt)
            raise
        finally:
            self.mark_pastes(True)  # prompt_toolkit turns bracketed paste off after every prompt
            typed = _text(typed)
            shown = visible(typed.translate(self._pastes.labels)).replace("\n", f"\n{CONTINUATION}")
            write(f"{prompt}{shown}\n", styled=True)
        typed = typed.translate(self._pastes.texts)
        return f'"""\n{typed}\n"""' if "\n" in typed and is_open(typed) else typed

    def mark_pastes(self, on: bool) -> None:
        """Turns bracketed paste on or off: the terminal then marks the start and end of a pasted block."""
        output = self._session.output
        (output.enable_bracketed_paste if on else output.disable_bracketed_paste)()
        output.flush()

    def _bindings(self) -> KeyBindings:
        bindings = KeyBindings()

        @bindings.add("c-c")
        def _(event: KeyPressEvent) -> None:
            """Key binding that discards the input: raises an exception that contains the input."""
            event.app.exit(exception=KeyboardInterrupt(event.current_buffer.text), style="class:aborting")

        @bindings.add("c-g")
        def _(event: KeyPressEvent) -> None:
            event.current_buffer.text = event.current_buffer.text.translate(self._pastes.texts)
            event.current_buffer.open_in_editor()

        @bindings.add(Keys.BracketedPaste)
        def _(event: KeyPressEvent) -> None:
            pasted = _text(event.data).replace("\r\n", "\n").replace("\r", "\n")
            event.current_buffer.insert_text(self._pastes.folded(pasted))

        @bindings.add("escape", "enter")
        def _(event: KeyPressEvent) -> None:
            event.current_buffer.insert_text("\n")

        return bindings


class _PrivateHistory(FileHistory):
    """A file of typed lines that only its owner can read. Nothing is saved while `keeps` returns False.

    pasted: pasted texts by their placeholder characters
    """

    def __init__(self, filename: str, keeps: Callable[[], bool], pasted: dict[int, str]) -> None:
        super().__init__(filename)
        self._keeps, self._pasted = keeps, pasted

    def append_string(self, string: str) -> None:
        """Adds an entered line. prompt_toolkit calls this method."""
        super().append_string(string.translate(self._pasted))

    def store_string(self, string: str) -> None:
        """Appends a line to the file. A line that cannot be written stays in memory. prompt_toolkit calls
        this method.
        """
        if not self._keeps():
            return
        path = Path(os.fsdecode(self.filename))
        with contextlib.suppress(OSError):
            make_folder(path.parent, 0o700)
            os.close(os.open(path, os.O_CREAT | os.O_APPEND, 0o600))
            super().store_string(string)
