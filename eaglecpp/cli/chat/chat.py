# SPDX-License-Identifier: MIT
"""The chat of `eaglecpp run`: one turn, and the state between turns, which is saved after each.

Takes callbacks for asking and a `Screen` for showing, so that it runs and is tested without a terminal.
`loop` reads what is typed; commands are in `commands`. Where a server of this machine has the model, it makes
the answers until something here needs the model itself. Ctrl+C ends an answer and keeps the chat; what was
generated until then is the answer.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from eaglecpp.chat.message import Message, Role
from eaglecpp.cli.chat.answer import PlainSpeed, Settings, ShownAnswer, answer, answer_lines, verdict_line
from eaglecpp.cli.chat.input import PROMPT, Ask
from eaglecpp.cli.chat.served import ModelServer, ServerRefusedError
from eaglecpp.conversations.saved import ChatFolder, SavedChat, SavedChatError
from eaglecpp.errors import EngineBrokenError
from eaglecpp.results import Timings

if TYPE_CHECKING:
    from eaglecpp.chat.conversation import Conversation
    from eaglecpp.chat.model import ChatPrompt
    from eaglecpp.cli.chat.model import RunModel
    from eaglecpp.cli.chat.screen import Screen

__all__ = ["Chat"]

_QUOTED_CHARS = 40
_SHOWN_LINES = 12


class Chat:
    """One chat with one model at a time; `/load` changes the model.

    folder: where conversations are saved, None = nowhere; saved: the conversation to continue
    server: that makes the answers while the model is not open here
    """

    def __init__(
        self,
        model: RunModel,
        ask: Ask,
        screen: Screen,
        settings: Settings | None = None,
        *,
        folder: ChatFolder | None = None,
        saved: SavedChat | None = None,
        system: str | None = None,
        server: ModelServer | None = None,
    ) -> None:
        self.model = model
        self.ask: Ask = lambda prompt, default: _clean(ask(prompt, default))
        self.screen = screen
        self.settings = settings or Settings()
        self.folder = folder
        self.saved = saved
        self.server = server
        self.totals = Timings()
        self.n_answers = 0
        self.plain = PlainSpeed()
        self.has_said_verdict = False
        self.attached: list[str] = []
        self.images: list[bytes] = []  # that go with the next message
        self._n_tries = 0
        self._told_folding = False
        self.conversation = self.opening(system)
        if saved is not None:
            self.conversation.messages = list(saved.messages)
            self.conversation.system = saved.system if system is None else system

    def close(self) -> None:
        """Frees the model."""
        self.model.close()

    def opening(self, system: str | None = None) -> Conversation:
        """An empty conversation with the model's system prompt and examples."""
        return self.model.conversation(system)

    # Turns

    def submit(self, text: str, *, show_stats: bool = True) -> ShownAnswer | None:
        """Asks the model, attached files first; returns its answer, or None if Ctrl+C came before any."""
        before = list(self.conversation.messages)
        images, self.images = self.images, []  # one that cannot be read stays in nobody's way
        self.conversation.ask("\n\n".join([*self.attached, text]), images)
        self._n_tries = 0
        made = self._reply(before, show_stats)
        if made is not None:
            self.attached.clear()
        else:
            self.images = images
        return made

    def again(self) -> ShownAnswer | None:
        """Answers the last question once more. Raises ValueError if there is none."""
        before = list(self.conversation.messages)
        if not self.conversation.drop_answer():
            raise ValueError("there is no question to answer again")
        self._n_tries += 1
        return self._reply(before)

    def ask_instead(self, text: str) -> ShownAnswer | None:
        """Replaces the last question by another one."""
        before = list(self.conversation.messages)
        self.conversation.drop_question()
        self.conversation.ask(text)
        return self._reply(before)

    def n_prompt(self) -> int:
        """The number of tokens of the conversation at the beginning of the next prompt."""
        messages = self.conversation.prompt()
        return len(self.model.chat.prompt(messages, self.model.memory, think=self._think()).tokens)

    def _reply(self, before: Sequence[Message], show_stats: bool = True) -> ShownAnswer | None:
        """Answers the question at the end; `before` is restored if there is no answer."""
        try:
            made = self._served() or self._own()
        except BaseException as error:
            self._restore(before)
            if isinstance(error, EngineBrokenError):
                self.model.reopen()
            raise
        if made.stopped and not made.content.strip() and not made.thinking.strip():
            self._restore(before)
            self.screen.note("stopped before the answer began; the question was removed")
            return None
        self.conversation.answer(made.content, made.thinking)
        self.save()
        if show_stats:
            self._report(made)
        return made

    def _served(self) -> ShownAnswer | None:
        """The server's answer; None where the model is open here, or the server refuses."""
        model, name, server = self.model, self.model.source.name, self.server
        if server is None:
            return None
        if model.is_open or not server.can_have(model):
            self._leave_server(f"from now on {name} answers in this process, not in the server's")
            return None
        self.save()
        try:
            made = server.answer(
                model, self.conversation, self.screen, self.settings, seed_step=self._n_tries
            )
        except ServerRefusedError as error:
            self._leave_server(f"{name} is opened in this process, because {server.address} refuses: {error}")
            return None
        if self.settings.think and not made.thinking and not made.stopped:
            self.screen.note(f"warning: {name} answered without thinking; its template may not support it")
        return made

    def _leave_server(self, why: str) -> None:
        self.server = None
        self.screen.note(f"note: {why}")

    def _own(self) -> ShownAnswer:
        """The answer of the model in this process."""
        prompt = self._prompt()
        self.save()
        return answer(self.model, prompt, self.screen, self.settings, seed_step=self._n_tries)

    def _think(self) -> bool | str | None:
        return self.model.chat.thinking(self.settings.think, has_form=bool(self.settings.format))

    def _prompt(self) -> ChatPrompt:
        """The next prompt. Messages that no longer fit are left out, with a note."""
        conversation, n_ctx = self.conversation, self.model.engine.n_ctx
        n_before = conversation.n_left_out
        prompt = self.model.chat.fitting(
            conversation,
            self.model.memory,
            n_ctx=n_ctx,
            max_tokens=self.model.sampling().max_tokens,
            think=self._think(),
        )
        left_out = conversation.messages[n_before : conversation.n_left_out]
        if left_out:
            self._note_left_out(left_out)
        return prompt

    def _note_left_out(self, left_out: Sequence[Message]) -> None:
        n_ctx = self.model.engine.n_ctx
        questions = [_quoted(message.content) for message in left_out if message.role == Role.USER]
        which = questions[0] if len(questions) == 1 else f"{questions[0]} to {questions[-1]}"
        n_train = self.model.engine.native.n_ctx_train
        longer = f"; /set parameter num_ctx N makes room, up to {n_train}" if n_ctx < n_train else ""
        self.screen.note(
            f"note: the context of {n_ctx} tokens is full. The model no longer sees {len(left_out)} older "
            f"messages ({which}){longer}"
        )

    def _report(self, made: ShownAnswer) -> None:
        """Prints notices and statistics after an answer."""
        stats = made.timings
        self.totals, self.n_answers = self.totals + stats, self.n_answers + 1
        speedup = self.plain.learn(stats)
        max_tokens, is_open = self.model.sampling().max_tokens, self.model.is_open
        if made.completion.finish_reason == "length" and not 0 <= max_tokens <= stats.predicted_n:
            size = f" of {self.model.engine.n_ctx} tokens" if is_open else ""
            self.screen.note(f"note: the answer ends here because the context{size} is full")
        load_ms, self.model.load_ms = self.model.load_ms, 0.0
        lines = answer_lines(made, self.model, self.settings, load_ms, speedup)
        if is_open and not self.has_said_verdict and (verdict := verdict_line(stats, self.model, speedup)):
            self.has_said_verdict = True
            lines.append(verdict)
        self.screen.note("\n".join(lines))
        self.say_notices()

    # State

    def say_notices(self) -> None:
        """Prints the model's notices, once."""
        notices, self.model.notices = self.model.notices, []
        if self.model.is_open and self.model.chat.folds_system and not self._told_folding:
            self._told_folding = True
            notices.append("this template takes no system prompt, so it is put before the first question")
        for notice in notices:
            self.screen.note(f"note: {notice}")

    def start_over(self, conversation: Conversation) -> None:
        """Switches to another conversation; the current one stays saved."""
        self.conversation = conversation
        self.saved = None
        self.attached.clear()
        self.images.clear()
        self._n_tries = 0

    def save(self) -> None:
        """Writes the conversation to the disk, unless history is off."""
        if self.folder is None or not self.settings.history or not self.conversation.messages:
            return
        source = self.model.source
        saved = self.saved or self.folder.new(
            source.reference, None if source.draft is None else str(source.draft)
        )
        saved = replace(
            saved,
            system=self.conversation.system,
            messages=tuple(self.conversation.messages),
            parameters=dict(self.model.parameters),
            strategy=self.model.strategy_set,
        )
        try:
            self.saved = self.folder.save(saved)
        except SavedChatError as error:
            self.screen.note(f"error: {error}")
            return
        if self.saved.id != saved.id:
            path = self.folder.path(self.saved)
            self.screen.note(
                f"note: another process continued this chat; from now on this one is saved as {path}"
            )

    def _restore(self, messages: Sequence[Message]) -> None:
        self.conversation.messages = list(messages)
        self.conversation.n_left_out = min(self.conversation.n_left_out, max(len(messages) - 1, 0))
        if not messages and self.folder is not None and self.saved is not None:
            self.folder.remove(self.saved)
            self.saved = None
        self.save()

    def greet(self) -> None:
        """Prints what runs, and the end of a resumed chat."""
        model = self.model
        draft = model.source.draft
        drafter = "no drafter" if draft is None else f"drafter {self._draft_name(draft)}"
        if model.drafts_text_alone:
            drafter = "drafts from the text"
        if model.can_draft and not self._may_draft():
            drafter = "drafting off"
        if self.server is not None:
            where = f"answered by {self.server.address}"
        else:
            where = f"context {model.engine.n_ctx} tokens ({model.context.why})"
        colour = ["accepted drafts are green"] if self.screen.color and self._may_draft() else []
        self.screen.note(" · ".join([model.source.name, drafter, where, *colour]))
        self.say_notices()
        for message in self.conversation.examples:
            self._show(message.role, message.content)
        for message in self.conversation.messages[-2:]:
            self._show(message.role, _shortened(message.content))
        if self.conversation.question:
            self.screen.note("this question has no answer yet; /regen answers it")

    def _may_draft(self) -> bool:
        return self.model.can_draft and self.model.strategy.kind != "off"

    def _draft_name(self, draft: Path) -> str:
        """The name of a user's file; for a blob, whose name says nothing, its architecture."""
        if not draft.name.startswith("sha256-"):
            return draft.name
        info = self.model.engine.draft_info if self.model.is_open else None
        return str(info["arch"]) if info is not None else "of its own"

    def _show(self, role: str, text: str) -> None:
        """Prints an earlier message."""
        if role != Role.SYSTEM:
            self.screen.say(f"{PROMPT if role == Role.USER else ''}{text}")


def _shortened(text: str) -> str:
    """The beginning of a long text, enough to recognise it."""
    lines = text.splitlines()
    if len(lines) <= _SHOWN_LINES:
        return text
    return "\n".join([*lines[:_SHOWN_LINES], f"[... {len(lines) - _SHOWN_LINES} more lines]"])


def _quoted(text: str) -> str:
    """The beginning of a text, on one line, in quotes."""
    line = " ".join(text.split())
    return f'"{line[: _QUOTED_CHARS - 3]}..."' if len(line) > _QUOTED_CHARS else f'"{line}"'


def _clean(text: str) -> str:
    """Valid Unicode: terminals can deliver bytes that are not."""
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
