# SPDX-License-Identifier: MIT
"""`Conversation`: the messages so far, and which of them go into the next prompt.

Takes questions and answers, gives messages for a template. When they outgrow the context, whole exchanges
are left out, oldest first; the system prompt and the model's own examples stay. Nothing is ever left
out without being returned to the caller, who has to tell the user. It needs no tokenizer and no
engine: counting tokens is a callback.
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
    """What one conversation's caches hold, as texts with their tokens."""

    def __init__(self, vocabulary: Vocabulary, n_ctx: Callable[[], int]) -> None:
        self._vocabulary = vocabulary
        self._n_ctx = n_ctx
        # prompts, alone and with their answers, each the beginning of the next
        self._known: list[tuple[str, Sequence[int]]] = []

    def continued(self, prompt: Rendered) -> list[int] | None:
        """The tokens of a prompt that goes on from what is known; None if it does not, or they
        leave no room for an answer.
        """
        for known, tokens in reversed(self._known):
            # an image that was not used for long has to be read again
            if prompt.text.startswith(known) and self._vocabulary.has_images(tokens):
                text, n_room = prompt.text[len(known) :], self._n_ctx() - len(tokens)
                if n_room <= 0:
                    return None
                try:
                    rest = self._vocabulary.tokenize_images(text, prompt.images, add_bos=False, n_ctx=n_room)
                except ContextFullError:
                    return None
                # Only a control token is a safe seam: beside other text tokenizers join, or insert a space.
                if not rest or rest[0] < 0 or not self._vocabulary.token_to_piece(rest[0]):
                    return [*tokens, *rest]
        return None

    def remember(self, prompt: Rendered, completion: Completion) -> None:
        """Notes an answer, so that the next prompt can go on from it, where its tokens say exactly its text:
        a stop string cuts the text and not the tokens.
        """
        tokens, vocabulary = completion.tokens, self._vocabulary
        if tokens and vocabulary.is_end(tokens[-1]):
            tokens = tokens[:-1]
        self._known = [known for known in self._known if prompt.text.startswith(known[0])]
        self._known.append((prompt.text, completion.prompt_tokens))
        said = b"".join(map(vocabulary.token_to_piece, tokens)).decode("utf-8", "replace")
        if said == completion.text and "\ufffd" not in said:
            self._known.append((prompt.text + said, [*completion.prompt_tokens, *tokens]))

    def clear(self) -> None:
        """Forgets everything, as the caches did."""
        self._known.clear()


class Conversation:
    """system: the system prompt, "" for none; examples: messages that belong to the model; messages: what
    was said in this conversation; n_left_out: how many of these, from the oldest on, stay out of the prompt.
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
        """The question that still has no answer, "" when there is none."""
        last = self.messages[-1] if self.messages else None
        return last.content if last is not None and last.role == Role.USER else ""

    def ask(self, text: str, images: Sequence[bytes] = (), files: Sequence[str] = ()) -> None:
        """Adds a question; one that got no answer before it becomes its first part, because many templates
        refuse two questions in a row. images: go before it, as bytes; files: texts that go between them and
        the question. Raises InvalidValueError for an image that is not read.
        """
        before, question = self.messages, Message(Role.USER)
        if self.question:
            *before, question = self.messages
            text = f"{question.typed}\n\n{text}"
        self.messages = [*before, _asked(question, text, images, files)]

    def edit(self, text: str, images: Sequence[bytes] = (), files: Sequence[str] = ()) -> bool:
        """Puts another text in the place of the last question's, with what is attached to it and these, and
        takes its answer back; returns whether there is one. Arguments and errors as of `ask`.
        """
        asked = [index for index, message in enumerate(self.messages) if message.role == Role.USER]
        if asked:
            question = _asked(self.messages[asked[-1]], text, images, files)
            self.messages = [*self.messages[: asked[-1]], question]
            self._clip()
        return bool(asked)

    def answer(self, content: str, thinking: str = "") -> None:
        """Adds the answer to the last question."""
        self.messages.append(Message(Role.ASSISTANT, content, thinking))

    def drop_answer(self) -> bool:
        """Takes the last answer back; returns whether a question is left to be answered again."""
        while self.messages and self.messages[-1].role != Role.USER:
            self.messages.pop()
        self._clip()
        return bool(self.messages)

    def drop_question(self) -> str:
        """Takes the last question and its answer back; returns what was typed, "" when there is none."""
        question = self.messages.pop().typed if self.drop_answer() else ""
        self._clip()
        return question

    def state(self) -> ConversationState:
        """What `restore` takes this conversation back to."""
        return tuple(self.messages), self.n_left_out

    def restore(self, state: ConversationState) -> None:
        """As it was when `state` gave this."""
        messages, self.n_left_out = state
        self.messages = list(messages)

    def clear(self) -> None:
        """Forgets what was said; system prompt and examples stay."""
        self.messages.clear()
        self.n_left_out = 0

    def prompt(self, n_left_out: int | None = None) -> list[Message]:
        """The messages of the next prompt, system prompt first."""
        head = [Message(Role.SYSTEM, self.system)] if self.system else []
        first = self.n_left_out if n_left_out is None else n_left_out
        return [*head, *self.examples, *self.messages[first:]]

    def fit(self, count: Callable[[Sequence[Message]], int], n_ctx: int, room: int) -> list[Message]:
        """Leaves out the oldest exchanges until the prompt and `room` tokens for the answer fit in `n_ctx`.

        Returns the messages left out by this call. More goes than must: down to half of the context where
        that is possible, so that the next turns keep a prefix that caches can reuse instead of losing their
        beginning every time. The last question always stays, even where it alone does not fit.
        """
        before = self.n_left_out
        starts = [i for i, one in enumerate(self.messages) if i > before and one.role == Role.USER]

        @cache
        def size(start: int) -> int:
            return count(self.prompt(start))

        def first(most: int) -> int:
            return bisect_left(starts, True, key=lambda start: size(start) <= most)

        if starts and size(before) + room > n_ctx:
            found = next((at for at in map(first, (n_ctx // 2, n_ctx - room)) if at < len(starts)), -1)
            self.n_left_out = starts[found]
        return self.messages[before : self.n_left_out]

    def _clip(self) -> None:
        self.n_left_out = min(self.n_left_out, max(len(self.messages) - 1, 0))


def _asked(question: Message, text: str, images: Sequence[bytes], files: Sequence[str]) -> Message:
    """A question with another text, and with images and files beside those that it has."""
    head = question.content[: question.attached] or "".join(map(image_mark, question.images))
    head += "".join(image_mark(checked_image(data)) for data in images) + "".join(f"{f}\n\n" for f in files)
    return replace(question, content=head + text, images=(*question.images, *images), attached=len(head))
