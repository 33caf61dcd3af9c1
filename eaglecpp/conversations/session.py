# SPDX-License-Identifier: MIT
"""`ChatSession`: a conversation with a model, with history, undo, and saving and loading.

with Engine.open("smollm2") as engine:
    chat = ChatSession(engine, system="Be brief.")
    print(chat.ask("Why is the sky blue?").text)
    chat.undo()
    chat.save("talk.json")
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from eaglecpp.chat.message import Message
from eaglecpp.conversations.saved import SavedChat, new_chat, read_chat, write_chat
from eaglecpp.engine import Engine, Session, Stream
from eaglecpp.errors import InvalidStateError
from eaglecpp.results import Completion

if TYPE_CHECKING:
    from typing import Unpack

    from eaglecpp.options.typed import ChatKeywords

__all__ = ["ChatSession"]


class ChatSession:
    """A conversation with its own place in the engine's caches, or in the engine's default conversation.

    system:  the system prompt; None for the model's own
    session: a `Session` of the engine, which the caller closes; None for the engine's default conversation
    If the conversation outgrows the context, whole exchanges are left out of the prompt, oldest first;
    `left_out` says how many messages. They stay in `history`.
    """

    def __init__(self, engine: Engine, *, system: str | None = None, session: Session | None = None) -> None:
        self._engine = engine
        self._place = session
        self._conversation = engine.shared.chat.conversation(system=system)
        self._saved: SavedChat | None = None

    def __repr__(self) -> str:
        return f"<ChatSession of {len(self.history)} messages with {self._engine!r}>"

    @property
    def history(self) -> tuple[Message, ...]:
        """The messages so far, oldest first, without the system prompt and the model's own examples."""
        return tuple(self._conversation.messages)

    @property
    def system(self) -> str:
        """The system prompt, "" for none. It applies to the whole conversation, including earlier
        messages.
        """
        return self._conversation.system

    @system.setter
    def system(self, text: str) -> None:
        self._conversation.system = text

    @property
    def left_out(self) -> int:
        """How many of the oldest messages the model no longer sees."""
        return self._conversation.n_left_out

    def ask(self, text: str, *, images: Sequence[bytes] = (), **options: Unpack[ChatKeywords]) -> Completion:
        """Asks, and returns the answer; options as `Engine.chat`. images: PNG, JPEG, GIF or BMP files, for a
        model that was opened with its projector. An error leaves the history unchanged.
        """
        stream = self.stream(text, images=images, **options)
        with stream:
            for _ in stream:
                pass
        return stream.completion()

    def stream(self, text: str, *, images: Sequence[bytes] = (), **options: Unpack[ChatKeywords]) -> Stream:
        """As `ask`, one chunk per round. What was generated until its end, or until it is closed, is the
        answer; a stream closed before its first token leaves the history unchanged.
        """
        before = self.history
        self._conversation.ask(text, images)
        return self._answered(before, dict(options))

    def retry(self, **options: Unpack[ChatKeywords]) -> Completion:
        """Answers the last question once more. Raises InvalidStateError if there is none."""
        before = self.history
        if not self._conversation.drop_answer():
            raise InvalidStateError("there is no question to answer again")
        with self._answered(before, dict(options)) as stream:
            for _ in stream:
                pass
            return stream.completion()

    def undo(self) -> str:
        """Removes the last question and its answer; returns the question, "" if there is none."""
        return self._conversation.drop_question()

    def clear(self) -> None:
        """Forgets all messages; the system prompt stays."""
        self._conversation.clear()
        self._saved = None

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes the conversation to a file, atomically and readable only by its owner. `eaglecpp run` saves
        its chats in the same format. Raises SavedChatError.
        """
        self._saved = write_chat(Path(path), self._as_saved())

    @classmethod
    def load(cls, engine: Engine, path: str | os.PathLike[str], *, session: Session | None = None) -> Self:
        """Continues a saved conversation, with whichever model `engine` has. Raises
        SavedChatError.
        """
        saved = read_chat(Path(path))
        chat = cls(engine, system=saved.system, session=session)
        chat._conversation.messages = list(saved.messages)
        chat._saved = saved
        return chat

    def _as_saved(self) -> SavedChat:
        from dataclasses import replace

        plan = self._engine.plan
        saved = self._saved or new_chat(plan.model.reference, None if plan.draft is None else str(plan.draft))
        return replace(saved, system=self._conversation.system, messages=self.history)

    def _answered(self, before: Sequence[Message], options: dict[str, Any]) -> Stream:
        conversation = self._conversation
        try:
            place = self._engine.default_session if self._place is None else self._place
            stream = place.answer_fitting(conversation, options)
        except BaseException:
            conversation.messages = list(before)
            raise
        remember = stream.on_end

        def ended(result: Completion) -> None:
            if remember is not None:
                remember(result)
            if result.tokens:
                conversation.messages.append(result.message)
            else:
                conversation.messages = list(before)

        stream.on_end = ended
        return stream
