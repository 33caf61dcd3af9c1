# SPDX-License-Identifier: MIT
"""`ChatSession`: a conversation with a model, with history, undo, saving and loading.

with Engine.open("smollm2") as engine:
    chat = ChatSession(engine, system="Be brief.")
    print(chat.ask("Why is the sky blue?").text)
    chat.undo()
    chat.save("talk.json")

The answers come from a function: a session of an engine, or a model in a server
(`eaglecpp.conversations.served`).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, Unpack
from weakref import ref

from eaglecpp.chat.conversation import Conversation, ConversationState
from eaglecpp.chat.message import Message
from eaglecpp.conversations.saved import SavedChat, new_chat, read_chat, write_chat
from eaglecpp.errors import InvalidStateError
from eaglecpp.results import AnswerStream, Completion

if TYPE_CHECKING:
    from eaglecpp.engine.engine import Engine
    from eaglecpp.engine.session import Session
    from eaglecpp.options.typed import ChatKeywords


Answers = Callable[[Conversation, Mapping[str, Any]], AnswerStream]
"""Function that starts the answer to a conversation. Its second argument is a mapping of the options of
`Session.chat`.
"""


class ChatSession:
    """A conversation with a model, in the given session or in the engine's default session.

    engine:  the engine that answers, or other `Answers`
    system:  the system prompt; None for the model's own
    session: a `Session` of the engine, which the caller closes; None for the engine's default session
    conversation, saved: a conversation to continue
    If the conversation outgrows the context, whole exchanges are left out of the prompt, oldest first;
    `left_out` counts these messages. They stay in `history`.
    """

    def __init__(
        self,
        engine: Engine | Answers,
        *,
        system: str | None = None,
        session: Session | None = None,
        conversation: Conversation | None = None,
        saved: SavedChat | None = None,
    ) -> None:
        self._engine = engine
        if callable(engine):
            self.answers: Answers = engine
        else:
            self.answers = partial((session or engine.default_session).answer, truncate=True)
            conversation = conversation or engine.shared.chat.conversation(system=system)
        self._conversation = conversation or Conversation(system or "")
        self.saved = saved
        if saved is not None:
            saved.continue_in(self._conversation)
        if system is not None:
            self._conversation.system = system
        # The running answer, which is not in the history yet: its stream, and the state of the conversation
        # before its question. The reference is weak, so that a stream ends if the caller drops it.
        self._running: tuple[ref[AnswerStream], ConversationState] | None = None
        self._answer: Completion | None = None

    def __repr__(self) -> str:
        return f"<ChatSession of {len(self.history)} messages with {self._engine!r}>"

    @property
    def conversation(self) -> Conversation:
        """The conversation, including the last answer if it is finished. If the last answer failed or has no
        text, its question is removed too.
        """
        if self._running is not None:
            stream, before = self._running[0](), self._running[1]
            if stream is None or not stream.is_open:
                self._running, answer = None, self._answer
                if answer is not None and has_begun(answer):
                    self._conversation.messages.append(answer.message)
                else:
                    self._conversation.restore(before)
        return self._conversation

    @property
    def history(self) -> tuple[Message, ...]:
        """The messages so far, oldest first, without the system prompt and the model's examples."""
        return tuple(self.conversation.messages)

    @property
    def system(self) -> str:
        """The system prompt, or "". It applies to the whole conversation, including earlier messages."""
        return self._conversation.system

    @system.setter
    def system(self, text: str) -> None:
        self._conversation.system = text

    @property
    def left_out(self) -> int:
        """Number of the oldest messages that the model no longer sees."""
        return self._conversation.n_left_out

    def ask(self, text: str, *, images: Sequence[bytes] = (), **options: Unpack[ChatKeywords]) -> Completion:
        """Asks a question and returns the answer. Takes the options of `Engine.chat`. images: PNG, JPEG, GIF
        or BMP files, for a model opened with its projector. An error leaves the history unchanged.
        """
        return self.stream(text, images=images, **options).finish()

    def stream(
        self,
        text: str,
        *,
        images: Sequence[bytes] = (),
        files: Sequence[str] = (),
        **options: Unpack[ChatKeywords],
    ) -> AnswerStream:
        """Asks a question like `ask`, but returns a stream of chunks, one per round. The history gets the
        text that was generated until the stream ends, is closed, or the next question starts. A stream closed
        before its first token leaves the history unchanged. files: texts placed before the question.
        """
        return self._begin(lambda conversation: conversation.ask(text, images, files), options)

    def retry(self, **options: Unpack[ChatKeywords]) -> Completion:
        """Answers the last question again. Raises InvalidStateError if there is no question."""
        return self.stream_again(**options).finish()

    def stream_again(self, **options: Unpack[ChatKeywords]) -> AnswerStream:
        """Answers the last question again like `retry`, but returns a stream of chunks, one per round."""
        return self._begin(Conversation.drop_answer, options)

    def edit(
        self,
        text: str,
        *,
        images: Sequence[bytes] = (),
        files: Sequence[str] = (),
        **options: Unpack[ChatKeywords],
    ) -> AnswerStream:
        """Replaces the text of the last question, and answers the question like `stream`. The question keeps
        its attachments. Raises InvalidStateError without a question.
        """
        return self._begin(lambda conversation: conversation.edit(text, images, files), options)

    def undo(self) -> str:
        """Removes the last question and its answer. Returns the question's text; "" if there is no
        question.
        """
        return self._settled().drop_question()

    def clear(self) -> None:
        """Removes all messages; the system prompt stays."""
        self._settled().clear()
        self.saved = None

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes the conversation to a file, atomically and readable only by its owner. `eaglecpp run` saves
        its chats in the same format. Raises SavedChatError.
        """
        saved = self.saved
        if saved is None and not callable(self._engine):
            plan = self._engine.plan
            saved = new_chat(plan.files.reference, None if plan.draft is None else str(plan.draft))
        self.saved = write_chat(Path(path), (saved or new_chat("")).of(self.conversation))

    @classmethod
    def load(cls, engine: Engine, path: str | os.PathLike[str], *, session: Session | None = None) -> Self:
        """Returns a session that continues a saved conversation with the model of `engine`. The conversation
        may be from another model. Raises SavedChatError.
        """
        return cls(engine, session=session, saved=read_chat(Path(path)))

    def _begin(self, change: Callable[[Conversation], bool | None], options: Any) -> AnswerStream:
        """Starts the answer to the last question of a conversation. change: function that changes the
        conversation first, and returns False if there is no question.
        """
        conversation = self._settled()
        before = conversation.state()
        try:
            if change(conversation) is False:
                raise InvalidStateError("there is no question to answer again")
            stream = self.answers(conversation, options)
        except BaseException:
            conversation.restore(before)
            raise
        remember = stream.on_end

        def ended(result: Completion) -> None:
            if remember is not None:
                remember(result)
            self._answer = result

        stream.on_end = ended
        self._running, self._answer = (ref(stream), before), None
        return stream

    def _settled(self) -> Conversation:
        """Ends a running answer and returns the conversation, including this answer."""
        stream = None if self._running is None else self._running[0]()
        if stream is not None:
            stream.close()
        return self.conversation


def has_begun(answer: Completion) -> bool:
    """Returns whether the answer has begun: False only if it was cancelled before it had any text."""
    text = answer.message.content + answer.message.thinking
    return answer.finish_reason != "cancelled" or bool(text.strip())
