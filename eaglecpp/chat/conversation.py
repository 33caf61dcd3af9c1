# SPDX-License-Identifier: MIT
"""`Conversation` keeps the messages of a conversation, and selects the messages for the next prompt.

If the messages outgrow the context, `fit` leaves out whole exchanges, oldest first. The system prompt and the
model's examples stay. `fit` returns the messages left out, so that the caller can report them. `fit` needs no
tokenizer and no engine, because the caller passes a function that counts tokens.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache
from typing import TYPE_CHECKING

from eaglecpp.chat.images import checked_image, image_mark
from eaglecpp.chat.message import Message, Role
from eaglecpp.chat.template import Rendered
from eaglecpp.errors import ContextFullError

if TYPE_CHECKING:
    from eaglecpp.engine.vocabulary import Vocabulary
    from eaglecpp.results import Completion


ConversationState = tuple[tuple[Message, ...], int]


class PromptMemory:
    """Prompts and answers of a conversation that are in the engine's caches, with their tokens."""

    def __init__(self, vocabulary: Vocabulary, n_ctx: Callable[[], int]) -> None:
        self._vocabulary = vocabulary
        self._n_ctx = n_ctx
        # Pairs (text, tokens) of the conversation's prompts. Each prompt is in the list without and with its
        # answer, so each text is a prefix of the next.
        self._known: list[tuple[str, Sequence[int]]] = []

    def continued(self, prompt: Rendered) -> list[int] | None:
        """Returns the tokens of a prompt that continues a known text. Returns None for any other prompt, and
        if the prompt leaves no room for an answer.
        """
        for known, tokens in reversed(self._known):
            # A prompt whose image was evicted cannot be continued, because the engine must encode the image
            # again.
            if prompt.text.startswith(known) and self._vocabulary.has_images(tokens):
                text, n_room = prompt.text[len(known) :], self._n_ctx() - len(tokens)
                if n_room <= 0:
                    return None
                try:
                    rest = self._vocabulary.tokenize_images(text, prompt.images, add_bos=False, n_ctx=n_room)
                except ContextFullError:
                    return None
                # The new part must begin with a control token. Otherwise a tokenizer may merge its beginning
                # with the known text, or insert a space.
                if not rest or rest[0] < 0 or not self._vocabulary.token_to_piece(rest[0]):
                    return [*tokens, *rest]
        return None

    def remember(self, prompt: Rendered, completion: Completion) -> None:
        """Remembers an answer for the next prompt. An answer whose tokens do not decode to exactly its text
        is not remembered; a stop string, for example, shortens the text but not the tokens.
        """
        tokens, vocabulary = completion.tokens, self._vocabulary
        if tokens and vocabulary.is_end(tokens[-1]):
            tokens = tokens[:-1]
        self._known = [known for known in self._known if prompt.text.startswith(known[0])]
        self._known.append((prompt.text, completion.prompt_tokens))
        text = b"".join(map(vocabulary.token_to_piece, tokens)).decode("utf-8", "replace")
        if text == completion.text and "\ufffd" not in text:
            self._known.append((prompt.text + text, [*completion.prompt_tokens, *tokens]))

    def clear(self) -> None:
        """Forgets all texts."""
        self._known.clear()


class Conversation:
    """The messages of a conversation.

    system:     the system prompt, "" without one
    examples:   the model's own messages
    messages:   messages of this conversation
    n_left_out: number of the oldest messages that are not in the prompt
    """

    def __init__(
        self, system: str = "", examples: Sequence[Message] = (), messages: Sequence[Message] = ()
    ) -> None:
        self.system = system
        self.examples = tuple(examples)
        self.messages = list(messages)
        self.n_left_out = 0

    @property
    def question(self) -> str:
        """The last question if it has no answer yet, else ""."""
        last = self.messages[-1] if self.messages else None
        return last.content if last is not None and last.role == Role.USER else ""

    def ask(self, text: str, images: Sequence[bytes] = (), files: Sequence[str] = ()) -> None:
        """Adds a question. An earlier question without an answer becomes the first part of the new question,
        because many templates refuse two questions in a row.

        images: bytes of images, before the question
        files:  texts between the images and the question

        Raises InvalidValueError for an unsupported image.
        """
        before, question = self.messages, Message(Role.USER)
        if self.question:
            *before, question = self.messages
            text = f"{question.typed}\n\n{text}"
        self.messages = [*before, _asked(question, text, images, files)]

    def edit(self, text: str, images: Sequence[bytes] = (), files: Sequence[str] = ()) -> bool:
        """Replaces the text of the last question, and removes its answer. The question keeps its attachments
        and gets the given images and files in addition. Returns False if there is no question. Takes the
        arguments of `ask`, and raises the same errors.
        """
        questions = [index for index, message in enumerate(self.messages) if message.role == Role.USER]
        if questions:
            question = _asked(self.messages[questions[-1]], text, images, files)
            self.messages = [*self.messages[: questions[-1]], question]
            self._clip()
        return bool(questions)

    def answer(self, content: str, thinking: str = "") -> None:
        """Adds the answer to the last question."""
        self.messages.append(Message(Role.ASSISTANT, content, thinking))

    def drop_answer(self) -> bool:
        """Removes the last answer. Returns True if the conversation then ends in a question."""
        while self.messages and self.messages[-1].role != Role.USER:
            self.messages.pop()
        self._clip()
        return bool(self.messages)

    def drop_question(self) -> str:
        """Removes the last question and its answer. Returns the typed text, "" without a question."""
        question = self.messages.pop().typed if self.drop_answer() else ""
        self._clip()
        return question

    def state(self) -> ConversationState:
        """Returns the state of the conversation for `restore`."""
        return tuple(self.messages), self.n_left_out

    def restore(self, state: ConversationState) -> None:
        """Restores an earlier state of the conversation."""
        messages, self.n_left_out = state
        self.messages = list(messages)

    def clear(self) -> None:
        """Removes the messages, but not the system prompt and the examples."""
        self.messages.clear()
        self.n_left_out = 0

    def prompt(self, n_left_out: int | None = None) -> list[Message]:
        """Returns the messages of the next prompt, system prompt first."""
        head = [Message(Role.SYSTEM, self.system)] if self.system else []
        first = self.n_left_out if n_left_out is None else n_left_out
        return [*head, *self.examples, *self.messages[first:]]

    def fit(self, count: Callable[[Sequence[Message]], int], n_ctx: int, room: int) -> list[Message]:
        """Leaves out the oldest exchanges until the prompt and `room` tokens for the answer fit in `n_ctx`.

        Returns the messages that this call left out. If possible, the prompt shrinks to half of the context.
        The prompts of the next turns then begin with the same text, which the caches can reuse. The last
        question always stays, even if it does not fit.
        """
        before = self.n_left_out
        starts = [i for i, one in enumerate(self.messages) if i > before and one.role == Role.USER]

        @cache
        def size(start: int) -> int:
            return count(self.prompt(start))

        def first(n_max: int) -> int:
            return bisect_left(starts, True, key=lambda start: size(start) <= n_max)

        if starts and size(before) + room > n_ctx:
            first_kept = next((at for at in map(first, (n_ctx // 2, n_ctx - room)) if at < len(starts)), -1)
            self.n_left_out = starts[first_kept]
        return self.messages[before : self.n_left_out]

    def _clip(self) -> None:
        self.n_left_out = min(self.n_left_out, max(len(self.messages) - 1, 0))


def _asked(question: Message, text: str, images: Sequence[bytes], files: Sequence[str]) -> Message:
    """Returns a copy of a question with another text, and with additional images and files."""
    head = question.content[: question.attached] or "".join(map(image_mark, question.images))
    head += "".join(image_mark(checked_image(data)) for data in images) + "".join(f"{f}\n\n" for f in files)
    return replace(question, content=head + text, images=(*question.images, *images), attached=len(head))
