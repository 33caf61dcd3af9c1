# SPDX-License-Identifier: MIT
"""The chat of `eaglecpp run`: answers one message after the other, and saves the conversation after each
answer.

Input comes from a callback and output goes to a `Screen`, so that the chat runs and is tested without a
terminal. Slash commands are in `commands`. If a server on this machine has the model, the server answers
until a command needs the model in this process. Ctrl+C ends an answer, keeps its text so far, and continues
the chat.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from dataclasses import InitVar, dataclass, field, replace
from functools import partial
from typing import Any

from eaglecpp.chat.conversation import Conversation
from eaglecpp.chat.message import Role
from eaglecpp.cli.chat.input import PROMPT, Ask
from eaglecpp.cli.chat.model import RunModel
from eaglecpp.cli.chat.screen import Screen
from eaglecpp.cli.figures import figures, stats_line, verbose_lines, verdict_line
from eaglecpp.cli.terminal import Watch, patience, silent_keys
from eaglecpp.conversations.saved import ChatFolder, SavedChat, SavedChatError, new_chat
from eaglecpp.conversations.served import ServerAnswers, ServerRefusedError
from eaglecpp.conversations.session import ChatSession, has_begun
from eaglecpp.engine.loops import TAIL
from eaglecpp.errors import EngineBrokenError
from eaglecpp.references import ModelName
from eaglecpp.results import AnswerStream, Completion

_SHOWN_LINES = 12


@dataclass
class ChatSettings:
    """Settings for generating and showing answers, which `/set` changes.

    think:   None = the template decides
    format:  arguments of `Session.chat` for the output format
    figures: statistics after an answer: "all", "line", or "none"
    """

    think: bool | str | None = None
    format: dict[str, Any] = field(default_factory=dict)
    figures: str = "line"
    history: bool = True


@dataclass(eq=False)
class Chat:
    """A chat with one model at a time. The command `/load` changes the model.

    folder: folder of saved conversations; None = do not save. saved: the conversation to continue
    server: server that answers until the model is opened in this process
    judged: models whose verdict was shown; attached, images: attachments of the next message
    made:   models created by `/save`
    """

    model: RunModel
    ask: Ask
    screen: Screen
    settings: ChatSettings = field(default_factory=ChatSettings)
    folder: ChatFolder | None = None
    saved: InitVar[SavedChat | None] = None
    system: InitVar[str | None] = None
    server: ServerAnswers | None = None
    judged: set[str] = field(default_factory=set)
    attached: list[str] = field(default_factory=list)
    images: list[bytes] = field(default_factory=list)
    made: set[ModelName] = field(default_factory=set)
    _n_tries: int = 0
    _noted: set[str] = field(default_factory=set)

    def __post_init__(self, saved: SavedChat | None, system: str | None) -> None:
        self.start_over(system, saved)

    def start_over(self, system: str | None = None, saved: SavedChat | None = None) -> None:
        """Starts a new conversation with the model's examples, or continues a saved one."""
        model, own = self.model, self.model.conversation()
        if self.server is not None:
            self.server = replace(self.server, model=model.source.label)
        self.session = ChatSession(self.server or model.answer, system=system, conversation=own, saved=saved)
        self.attached, self.images = [], []
        self._noted.clear()

    @property
    def conversation(self) -> Conversation:
        """The messages of the conversation so far."""
        return self.session.conversation

    # Questions and answers

    def reply(
        self, begin: Callable[..., Any], *, again: bool = False, show_stats: bool = True
    ) -> Completion | None:
        """Streams an answer to the screen and returns it. If Ctrl+C comes before its first token, restores
        the state before the question and returns None.

        begin: method of `session` that starts the answer. again: True if the question is repeated;
        attachments are then not sent.
        """
        started = time.perf_counter() - self.model.load_ms / 1000
        images, files = self.images, self.attached
        self._n_tries = self._n_tries + 1 if again else 0
        # The attachments are cleared first. Otherwise an unreadable attachment would make every later message
        # fail.
        if not again:
            self.images, self.attached = [], []
            begin = partial(begin, images=images, files=tuple(files))
        watch = Watch()
        try:
            with silent_keys():
                answer = self._begun(begin, watch)
                if answer is not None:
                    # If this process generates the answer, Ctrl+C stops it after the current round. If a
                    # server generates it, Ctrl+C stops it at once.
                    with watch.listening() if self.server is None else contextlib.nullcontext():
                        try:
                            watch.follow(answer, lambda chunk: self.screen.show(chunk.pieces))
                        finally:
                            self.screen.end()
        except EngineBrokenError:
            self.model.renew()
            raise
        finally:
            self.save()
        if answer is None or not has_begun(completion := answer.completion()):
            self.images, self.attached = images, files
            self.screen.note("stopped before the answer began; the question was removed")
            return None
        if self.settings.think and completion.finish_reason != "cancelled" and not completion.thinking:
            name = self.model.source.label
            self.screen.note(
                f"warning: {name} answered without thinking; its template may not support thinking"
            )
        self.model.notices += answer.notices
        if show_stats:
            self._report(completion, 1000 * (time.perf_counter() - started), getattr(answer, "load_ms", 0.0))
        self.say_notices()
        return completion

    def _begun(self, begin: Callable[..., AnswerStream], watch: Watch) -> AnswerStream | None:
        """Starts an answer and saves its question. Returns None if Ctrl+C came first."""
        model, settings, n_left_out = self.model, self.settings, self.session.left_out
        options = {**model.sampling_set(self._n_tries), "strategy": model.asked, "think": settings.think}
        options |= settings.format
        self._leave_server_for_own()
        answer = None
        try:
            if self.server is not None:
                address = self.server.address
                try:
                    with patience(f"waiting for {address} ..."):
                        answer = begin(**options)
                except ServerRefusedError as error:
                    if not model.is_here:
                        raise
                    self._leave_server(
                        f"{model.source.label} is opened in this process; the server {address} refused: "
                        f"{error}"
                    )
            answer = answer or begin(on_prefill=watch.on_prefill, **options)
        except KeyboardInterrupt:
            return None
        if n := self.session.left_out - n_left_out:
            n_ctx, n_train = model.engine.n_ctx, model.engine.native.n_ctx_train
            longer = f"; to extend it: /set parameter num_ctx N, up to {n_train}" if n_ctx < n_train else ""
            self.screen.note(
                f"note: the context of {n_ctx} tokens is full; the model no longer sees the oldest messages "
                f"({n}){longer}"
            )
        self.save()
        return answer

    def _leave_server_for_own(self) -> None:
        """Lets this process answer instead of the server, if the model is open in this process or if its
        options require this process.
        """
        model = self.model
        if self.server is None:
            return
        # A server starts a chat with the examples of the server's model. If the chat was created with another
        # model, the chat has other examples.
        is_its = self.conversation.examples == model.conversation().examples
        if model.is_open or not is_its or model.says_how_to_open:
            self._leave_server(
                f"from now on {model.source.label} answers in this process instead of the server"
            )

    def _leave_server(self, why: str) -> None:
        self.server = None
        self.session.answers = self.model.answer
        self.screen.note(f"note: {why}")

    def _report(self, completion: Completion, total_ms: float, server_ms: float) -> None:
        """Prints statistics after an answer."""
        stats, model, sampling = completion.timings, self.model, self.model.plan.sampling_options()
        if completion.finish_reason == "length" and not 0 <= sampling.max_tokens <= stats.predicted_n:
            size = f" of {model.engine.n_ctx} tokens" if model.is_open else ""
            self.screen.note(f"note: the answer ends here because the context{size} is full")
        ends_loops = sampling.max_repeats > 0 and stats.predicted_n >= TAIL
        if stats.loops and completion.finish_reason == "stop" and ends_loops:
            self.screen.note("note: ended, because the answer repeats itself; --max-repeats 0 turns this off")
        load_ms, model.load_ms = model.load_ms, 0.0
        server_ms += load_ms
        # A server sends the statistics at the end of an answer. So a cancelled answer may have no statistics.
        is_known = stats.predicted_n > 0 or completion.finish_reason != "cancelled"
        if self.settings.figures == "none" or not is_known:
            return
        lines, speedup = [], stats.plan.get("speedup") if stats.draft_n and not stats.loops else None
        if self.settings.figures == "all":
            template = model.engine.chat_template.describe() if model.is_open else ""
            lines = ["", *verbose_lines(stats, total_ms, server_ms, speedup)]
            lines += figures([("template", template)])
        has_draft = model.plan.can_draft if model.is_open else "rounds" in stats.plan
        # The lines of `stats_lines` already contain the drafting statistics.
        if not lines or not stats.draft_n:
            lines.append(stats_line(stats, has_draft=has_draft, speedup=speedup))
        is_new = model.is_open and model.source.label not in self.judged and not stats.loops
        if is_new and (verdict := verdict_line(stats, model.engine)):
            self.judged.add(model.source.label)
            lines.append(verdict)
        self.screen.note("\n".join(lines))

    # State of the chat

    def say_notices(self) -> None:
        """Prints new notices about the model. Each notice is printed once per conversation."""
        notices, self.model.notices = self.model.notices, []
        for notice in dict.fromkeys(notices):
            if notice not in self._noted:
                self.screen.note(f"note: {notice}")
        self._noted.update(notices)

    def save(self) -> None:
        """Saves the conversation, unless history is off. If the conversation is empty, deletes its file."""
        session, source = self.session, self.model.source
        if self.folder is None or not self.settings.history:
            return
        conversation = session.conversation
        if not conversation.messages:
            if session.saved is not None:
                self.folder.remove(session.saved)
                session.saved = None
            return
        draft = None if source.draft is None else str(source.draft)
        saved = replace(
            (session.saved or new_chat(source.reference, draft)).of(conversation),
            parameters=dict(self.model.parameters),
            strategy=self.model.strategy_set,
        )
        try:
            session.saved = self.folder.save(saved)
        except SavedChatError as error:
            self.screen.note(f"error: {error}")
            return
        if session.saved.id != saved.id:
            path = self.folder.path(session.saved)
            self.screen.note(f"note: another process continued this chat; this copy is now saved as {path}")

    def greet(self) -> None:
        """Prints the model and its drafter. If a chat is resumed, also prints the end of this chat."""
        model = self.model
        if self.server is not None:
            where = f"answered by {self.server.address}"
        else:
            where = f"context {model.engine.n_ctx} tokens ({model.engine.plan.context.origin})"
        may_draft = model.can_draft and model.strategy.kind != "off"
        drafter = "with a drafter" if model.can_draft else "no drafter"
        if model.plan.drafts_text_alone:
            drafter = "drafts from the text"
        if model.can_draft and not may_draft:
            drafter = "drafting off"
        colour = ["accepted drafts are green"] if self.screen.color and may_draft else []
        self.screen.note(" · ".join([model.source.label, drafter, where, *colour]))
        self.say_notices()
        for message in self.conversation.examples:
            self._show(message.role, message.content)
        for message in self.conversation.messages[-2:]:
            self._show(message.role, "[picture] " * len(message.images) + _shortened(message.text))
        if self.conversation.question:
            self.screen.note("this question has no answer yet; /regen answers it")

    def _show(self, role: str, text: str) -> None:
        """Prints one message of a resumed chat."""
        if role != Role.SYSTEM:
            self.screen.say(f"{PROMPT if role == Role.USER else ''}{text}")


def _shortened(text: str) -> str:
    """Returns the first lines of a long text."""
    lines = text.splitlines()
    more = [f"[... {len(lines) - _SHOWN_LINES} more]"] if len(lines) > _SHOWN_LINES else []
    return "\n".join([*lines[:_SHOWN_LINES], *more])
