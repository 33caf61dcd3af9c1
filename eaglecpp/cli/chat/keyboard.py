# SPDX-License-Identifier: MIT
"""The line that a user types in a chat: prompt_toolkit with history, completion, paste and an editor.

`open_keyboard` gives an `Ask` callback. This module is imported only when someone sits at a terminal, because
prompt_toolkit takes a tenth of a second to load.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from prompt_toolkit import PromptSession
from prompt_toolkit.application import get_app
from prompt_toolkit.completion import CompleteEvent, Completer, Completion, PathCompleter
from prompt_toolkit.document import Document
from prompt_toolkit.filters import Condition
from prompt_toolkit.formatted_text import FormattedText
from prompt_toolkit.history import FileHistory
from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent
from prompt_toolkit.output import ColorDepth

from eaglecpp.cli.chat.commands import COMMANDS
from eaglecpp.cli.chat.input import CONTINUATION, PROMPT, Ask, is_open
from eaglecpp.cli.command import stored_names
from eaglecpp.cli.terminal import silent_keys, visible, wants_colour, write
from eaglecpp.modelfile.parameters import PARAMETERS

_PLACEHOLDER = FormattedText([("fg:ansibrightblack", "Send a message (/? for help)")])


@contextlib.contextmanager
def open_keyboard(history: Path, keeps: Callable[[], bool]) -> Iterator[Ask]:
    """The keyboard of a chat, arguments as for `Keyboard`. Between two prompts keys are kept for the next
    one, and the terminal goes on marking what is pasted: a block stays a block, whose lines are no commands.
    """
    keyboard = Keyboard(history, keeps)
    with silent_keys(by_key=True):
        keyboard.mark_pastes(True)
        try:
            yield keyboard.ask
        finally:
            keyboard.mark_pastes(False)


class SlashCompleter(Completer):
    """Completes slash commands, parameter names, models and file names."""

    def get_completions(self, document: Document, complete_event: CompleteEvent) -> Iterable[Completion]:
        """For prompt_toolkit: what may stand at the cursor."""
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


class Keyboard:
    """Asks for messages. history: the file of typed lines; keeps: whether they are currently saved there."""

    def __init__(self, history: Path, keeps: Callable[[], bool]) -> None:
        self._session: PromptSession[str] = PromptSession(
            history=_PrivateHistory(str(history), keeps),
            completer=SlashCompleter(),
            complete_while_typing=Condition(lambda: get_app().current_buffer.text.startswith("/")),
            prompt_continuation=CONTINUATION,
            key_bindings=self._bindings(),
            erase_when_done=True,
            color_depth=None if wants_colour() else ColorDepth.DEPTH_1_BIT,
            enable_open_in_editor=True,
            tempfile_suffix=".md",
        )

    def ask(self, prompt: str, default: str) -> str:
        """One line, or one block that was pasted or edited, which is whole even where it begins with three
        quotes: program text may well. Raises EOFError, KeyboardInterrupt.

        What was typed is written again at the end: prompt_toolkit would leave as much of a long block as fits
        on the screen, and the placeholder.
        """
        placeholder = _PLACEHOLDER if prompt == PROMPT else None
        typed = ""
        try:
            typed = self._session.prompt(prompt, default=default, placeholder=placeholder)
            # terminals can deliver bytes that are no text
            typed = typed.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
        except KeyboardInterrupt as interrupt:
            typed = str(interrupt)
            raise
        finally:
            self.mark_pastes(True)  # prompt_toolkit stops it with every prompt
            write(prompt + visible(typed).replace("\n", f"\n{CONTINUATION}") + "\n", styled=True)
        return f'"""\n{typed}\n"""' if "\n" in typed and is_open(typed) else typed

    def mark_pastes(self, on: bool) -> None:
        """Whether the terminal says where a pasted block begins and ends."""
        output = self._session.output
        (output.enable_bracketed_paste if on else output.disable_bracketed_paste)()
        output.flush()

    def _bindings(self) -> KeyBindings:
        bindings = KeyBindings()

        @bindings.add("c-c")
        def _(event: KeyPressEvent) -> None:
            """Discards what is typed; the exception carries it."""
            error = KeyboardInterrupt(event.current_buffer.text)
            event.app.exit(exception=error, style="class:aborting")

        @bindings.add("c-g")
        def _(event: KeyPressEvent) -> None:
            event.current_buffer.open_in_editor()

        @bindings.add("escape", "enter")
        def _(event: KeyPressEvent) -> None:
            event.current_buffer.insert_text("\n")

        return bindings


class _PrivateHistory(FileHistory):
    """A history file that only its owner can read, and that saves nothing while told not to."""

    def __init__(self, filename: str, keeps: Callable[[], bool]) -> None:
        super().__init__(filename)
        self._keeps = keeps

    def store_string(self, string: str) -> None:
        """For prompt_toolkit: appends a line. A line that cannot be written stays in memory."""
        if not self._keeps():
            return
        path = Path(os.fsdecode(self.filename))
        with contextlib.suppress(OSError):
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            os.close(os.open(path, os.O_CREAT | os.O_APPEND, 0o600))
            super().store_string(string)
