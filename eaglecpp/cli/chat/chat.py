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
from collections.abc import Callable, Mapping
from dataclasses import InitVar, dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from eaglecpp.chat.conversation import Conversation
from eaglecpp.chat.message import Role
from eaglecpp.cli.chat.input import PROMPT, Ask, no_input
from eaglecpp.cli.chat.screen import Screen
from eaglecpp.cli.chat.settings import SAMPLING, ChatSettings
from eaglecpp.cli.figures import figures, stats_line, verbose_lines, verdict_line
from eaglecpp.cli.options import in_flags
from eaglecpp.cli.terminal import Watch, patience, silent_keys
from eaglecpp.conversations.saved import ChatFolder, SavedChat, SavedChatError, new_chat
from eaglecpp.conversations.served import ServerAnswers, ServerRefusedError
from eaglecpp.conversations.session import ChatSession, has_begun
from eaglecpp.engine.loops import TAIL
from eaglecpp.errors import EngineBrokenError, InvalidValueError, UnsupportedError
from eaglecpp.modelfile.parameters import PARAMETERS, ParameterValue
from eaglecpp.opening.find import ModelFiles
from eaglecpp.opening.plan import OpeningPlan
from eaglecpp.options import Strategy
from eaglecpp.references import ModelName
from eaglecpp.results import AnswerStream, Completion

if TYPE_CHECKING:
    from eaglecpp.engine.engine import Engine
    from eaglecpp.engine.stream import Stream

_SHOWN_LINES = 12


@dataclass(eq=False)
class Chat:
    """A chat with one model at a time. The command `/load` changes the model.

    source: the model's files
    plan:   how the model is opened with the current settings
    folder: folder of saved conversations; None = do not save. saved: the conversation to continue
    server: server that answers until the model is opened in this process
    elsewhere: address of a server on another machine, and whether its model drafts and reads pictures. If it
        is set, methods that need the model's files raise UnsupportedError
    load_ms: milliseconds that opening took
    judged: models whose verdict was shown; attached, images: attachments of the next message
    made:   models created by `/save`
    """

    source: ModelFiles
    settings: ChatSettings
    screen: Screen
    ask: Ask = no_input
    folder: ChatFolder | None = None
    saved: InitVar[SavedChat | None] = None
    system: InitVar[str | None] = None
    server: ServerAnswers | None = None
    elsewhere: tuple[str, bool, bool] | None = None
    judged: set[str] = field(default_factory=set)
    attached: list[str] = field(default_factory=list)
    images: list[bytes] = field(default_factory=list)
    made: set[ModelName] = field(default_factory=set)
    notices: list[str] = field(default_factory=list)
    load_ms: float = 0.0
    _engine: Engine | None = None
    _n_tries: int = 0
    _noted: set[str] = field(default_factory=set)

    def __post_init__(self, saved: SavedChat | None, system: str | None) -> None:
        self.renew(False)
        if saved is not None:
            self.settings = self.settings.restored(saved.parameters, saved.strategy)
            self.plan = self._make_plan()
        self.start_over(system, saved)

    def start_over(self, system: str | None = None, saved: SavedChat | None = None) -> None:
        """Starts a new conversation with the model's examples, or continues a saved one."""
        if self.server is not None:
            self.server = replace(self.server, model=self.source.label)
        answers = self.server or self._answer
        self.session = ChatSession(answers, system=system, conversation=self._empty(), saved=saved)
        self.attached, self.images = [], []
        self._noted.clear()

    @property
    def conversation(self) -> Conversation:
        """The messages of the conversation so far."""
        return self.session.conversation

    # The model

    @property
    def is_open(self) -> bool:
        """True if the model is loaded in this process."""
        return self._engine is not None

    @property
    def can_draft(self) -> bool:
        """True if the model can draft."""
        return self.elsewhere[1] if self.elsewhere else self.plan.can_draft

    @property
    def reads_pictures(self) -> bool:
        """True if the model is opened with a projector."""
        return self.elsewhere[2] if self.elsewhere else bool(self.plan.model_options().mmproj)

    @property
    def engine(self) -> Engine:
        """The engine, opened at its first use. Raises the errors of `Engine`."""
        if self._engine is None:
            self._engine = self._open()
        return self._engine

    @property
    def strategy(self) -> Strategy:
        """The strategy of the next answer."""
        wanted: Strategy = self.plan.strategy.value
        return wanted if not self.is_open or self.engine.has_draft else Strategy("off")

    @property
    def says_how_to_open(self) -> bool:
        """True if options require another way of opening the model than a server's, which opens the stored
        model as it is.
        """
        return self.source.name is None or not self.settings.options.keys() <= SAMPLING

    def set_parameter(self, name: str, value: ParameterValue) -> bool:
        """Sets a parameter by its Modelfile name. Returns the result of `change`, and raises its errors."""
        option, changed = PARAMETERS[name].key, {**self.settings.parameters, name: value}
        if option == "strategy":
            return self.set_strategy(Strategy.parse(f"chain:{value}" if value else "off"))
        reloads = option.startswith("model.") and changed != self.settings.parameters
        return self.change(reloads, replace(self.settings, parameters=changed))

    def set_strategy(self, strategy: Strategy) -> bool:
        """Changes the strategy, like `change`. Raises InvalidValueError for a strategy that needs a drafter
        if the model has none.
        """
        if strategy.kind != "off" and not self.can_draft:
            raise InvalidValueError(f"strategy {strategy} needs a drafter: run with --draft")
        settings = replace(self.settings, strategy=strategy, strategy_set=str(strategy))
        return self.change(not self._has_room(strategy), settings)

    def change(self, reloads: bool, settings: ChatSettings, source: ModelFiles | None = None) -> bool:
        """Changes the settings and the model. If this raises an error, both stay as they were.

        reloads: an open model must be loaded again for this change. Returns True if the model was reloaded.
        """
        if source is not None:
            self.check_here()
        before, reloads = (self.source, self.settings), reloads and self.is_open
        self.source, self.settings = source or self.source, settings
        try:
            self.renew(reloads)
        except BaseException:
            self.source, self.settings = before
            self.notices.clear()  # they are about the plan that failed
            self.renew(reloads)
            raise
        return reloads

    def renew(self, reloads: bool = True) -> None:
        """Makes a new plan, and reloads the model by this plan. The caches are empty afterwards."""
        if self.says_how_to_open:
            self.check_here()
        if reloads:
            self.close()
        self.plan = self._make_plan()  # the new plan is made after closing, when the memory is free
        if reloads:
            self._engine = self._open()

    def close(self) -> None:
        """Frees the model."""
        if self._engine is not None:
            self._engine.close()

    def check_here(self) -> None:
        """Raises UnsupportedError if the model's files are on another machine."""
        if self.elsewhere:
            address = self.elsewhere[0]
            raise UnsupportedError(
                f"the server {address} has the files and decides how to open the model; use --no-server"
            )

    def _make_plan(self) -> OpeningPlan:
        return self.settings.plan(self.source, choose_context=self.elsewhere is None)

    def _has_room(self, strategy: Strategy) -> bool:
        """Returns True if the engine was opened with enough room for the strategy's drafts."""
        if not self.is_open or strategy.kind == "off":
            return True
        shared, n_max = self.engine.shared, self.engine.native.n_draft_max
        if not shared.has_draft:
            return False
        resolved, _ = shared.resolve_strategy(strategy)
        return resolved.nodes <= n_max and resolved.n_leaves <= shared.n_leaves

    def _open(self) -> Engine:
        """Opens the model, without its drafter if drafting is off or the drafter does not fit."""
        from eaglecpp.engine.engine import open_fitting

        self.check_here()
        started = time.perf_counter()
        self.notices += map(in_flags, self.plan.notices)
        is_off = self.plan.strategy.value.kind == "off" or not self.plan.can_draft
        with patience(f"loading {self.source.label} (and measuring it the first time) ..."):
            engine, without = open_fitting(self.plan.without_drafts() if is_off else self.plan)
        self.notices += [without] if without else []
        self.load_ms = 1000 * (time.perf_counter() - started)
        self.notices += engine.shared.chat.template.notices
        return engine

    # Questions and answers

    def _empty(self) -> Conversation:
        """Returns an empty conversation with the model's system prompt and examples."""
        modelfile = self.source.modelfile
        return Conversation(modelfile.system or "", modelfile.messages)

    def _answer(self, conversation: Conversation, options: Mapping[str, Any]) -> Stream:
        """Starts an answer in this process."""
        own = {**options, "strategy": self.strategy}
        return self.engine.default_session.answer(conversation, own, needs_template=False, truncate=True)

    def reply(
        self, begin: Callable[..., Any], *, again: bool = False, show_stats: bool = True
    ) -> Completion | None:
        """Streams an answer to the screen and returns it. If Ctrl+C comes before its first token, restores
        the state before the question and returns None.

        begin: method of `session` that starts the answer. again: True if the question is repeated;
        attachments are then not sent.
        """
        started = time.perf_counter() - self.load_ms / 1000
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
            self.renew()
            raise
        finally:
            self.save()
        if answer is None or not has_begun(completion := answer.completion()):
            self.images, self.attached = images, files
            self.screen.note("stopped before the answer began; the question was removed")
            return None
        if self.settings.think and completion.finish_reason != "cancelled" and not completion.thinking:
            name = self.source.label
            self.screen.note(
                f"warning: {name} answered without thinking; its template may not support thinking"
            )
        self.notices += answer.notices
        if show_stats:
            self._report(completion, 1000 * (time.perf_counter() - started), getattr(answer, "load_ms", 0.0))
        self.say_notices()
        return completion

    def _begun(self, begin: Callable[..., AnswerStream], watch: Watch) -> AnswerStream | None:
        """Starts an answer and saves its question. Returns None if Ctrl+C came first."""
        settings, n_left_out = self.settings, self.session.left_out
        options = settings.sampling(self.plan, self._n_tries) | settings.format
        options |= {"strategy": settings.strategy, "think": settings.think}
        self._leave_server_for_own()
        answer = None
        try:
            if self.server is not None:
                address = self.server.address
                try:
                    with patience(f"waiting for {address} ..."):
                        answer = begin(**options)
                except ServerRefusedError as error:
                    if self.elsewhere:
                        raise
                    self._leave_server(
                        f"{self.source.label} is opened in this process; the server {address} refused: "
                        f"{error}"
                    )
            answer = answer or begin(on_prefill=watch.on_prefill, **options)
        except KeyboardInterrupt:
            return None
        if n := self.session.left_out - n_left_out:
            n_ctx, n_train = self.engine.n_ctx, self.engine.native.n_ctx_train
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
        if self.server is None:
            return
        # A server starts a chat with the examples of the server's model. If the chat was created with another
        # model, the chat has other examples.
        is_its = self.conversation.examples == self._empty().examples
        if self.is_open or not is_its or self.says_how_to_open:
            self._leave_server(
                f"from now on {self.source.label} answers in this process instead of the server"
            )

    def _leave_server(self, why: str) -> None:
        self.server = None
        self.session.answers = self._answer
        self.screen.note(f"note: {why}")

    def _report(self, completion: Completion, total_ms: float, server_ms: float) -> None:
        """Prints statistics after an answer."""
        stats, sampling = completion.timings, self.plan.sampling_options()
        if completion.finish_reason == "length" and not 0 <= sampling.max_tokens <= stats.predicted_n:
            size = f" of {self.engine.n_ctx} tokens" if self.is_open else ""
            self.screen.note(f"note: the answer ends here because the context{size} is full")
        ends_loops = sampling.max_repeats > 0 and stats.predicted_n >= TAIL
        if stats.loops and completion.finish_reason == "stop" and ends_loops:
            self.screen.note("note: ended, because the answer repeats itself; --max-repeats 0 turns this off")
        load_ms, self.load_ms = self.load_ms, 0.0
        server_ms += load_ms
        # A server sends the statistics at the end of an answer. So a cancelled answer may have no statistics.
        is_known = stats.predicted_n > 0 or completion.finish_reason != "cancelled"
        if self.settings.figures == "none" or not is_known:
            return
        lines, speedup = [], stats.plan.get("speedup") if stats.draft_n and not stats.loops else None
        if self.settings.figures == "all":
            template = self.engine.chat_template.describe() if self.is_open else ""
            lines = ["", *verbose_lines(stats, total_ms, server_ms, speedup)]
            lines += figures([("template", template)])
        has_draft = self.plan.can_draft if self.is_open else "rounds" in stats.plan
        # The lines of `stats_lines` already contain the drafting statistics.
        if not lines or not stats.draft_n:
            lines.append(stats_line(stats, has_draft=has_draft, speedup=speedup))
        is_new = self.is_open and self.source.label not in self.judged and not stats.loops
        if is_new and (verdict := verdict_line(stats, self.engine)):
            self.judged.add(self.source.label)
            lines.append(verdict)
        self.screen.note("\n".join(lines))

    # State of the chat

    def say_notices(self) -> None:
        """Prints new notices about the model. Each notice is printed once per conversation."""
        notices, self.notices = self.notices, []
        for notice in dict.fromkeys(notices):
            if notice not in self._noted:
                self.screen.note(f"note: {notice}")
        self._noted.update(notices)

    def save(self) -> None:
        """Saves the conversation, unless history is off. If the conversation is empty, deletes its file."""
        session, source = self.session, self.source
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
            parameters=dict(self.settings.parameters),
            strategy=self.settings.strategy_set,
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
        if self.server is not None:
            where = f"answered by {self.server.address}"
        else:
            where = f"context {self.engine.n_ctx} tokens ({self.engine.plan.context.origin})"
        may_draft = self.can_draft and self.strategy.kind != "off"
        drafter = "with a drafter" if self.can_draft else "no drafter"
        if self.plan.drafts_text_alone:
            drafter = "drafts from the text"
        if self.can_draft and not may_draft:
            drafter = "drafting off"
        colour = ["accepted drafts are green"] if self.screen.color and may_draft else []
        self.screen.note(" · ".join([self.source.label, drafter, where, *colour]))
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
