# SPDX-License-Identifier: MIT
"""`Frame`: what a chat template puts around the words, as tokens, so that a target can be made to speak for
the user too.

It is found by rendering one conversation of marker words: what comes before the first question opens a chat,
what comes between question and answer hands over to the assistant, and so on. Turns are then joined as tokens
and never rendered again, so what the target said is kept token for token.
"""

from __future__ import annotations

from eaglecpp.chat.bounds import rendered_at
from eaglecpp.chat.message import Message, Role
from eaglecpp.chat.turns import accepted
from eaglecpp.engine.engine import Engine
from eaglecpp.errors import DataError
from eaglecpp.train.data.chats import TEMPLATE_DATE, template_of

_QUESTION, _ANSWER, _NEXT = "Kwqestio", "Zanswerv", "Xnextquej"


class Frame:
    """The pieces between the turns. to_assistant, to_user: what ends a turn and begins the other's; user_end:
    the text that ends a question where no token of the vocabulary does, else b"".
    """

    def __init__(self, engine: Engine) -> None:
        """Raises DataError for a target without a template, or with one that does not show all turns."""
        template = template_of(engine)
        if template is None:
            raise DataError(
                f"{engine.target_path.name}: expected a chat template (tokenizer.chat_template) to write "
                "conversations with, found none; this is probably a base model: give it text with --data"
            )
        self._engine, self._template = engine, template
        text, _ = self._rendered(None)
        parts: list[str] = []
        for word in (_QUESTION, _ANSWER, _NEXT):
            before, found, text = text.partition(word)
            if not found:
                raise DataError(
                    f"{engine.target_path.name}: expected a chat template that shows every turn in order, "
                    f"found one that leaves some out; give it conversations with --data"
                )
            parts.append(before)
        self.to_assistant, self.to_user = (engine.tokenize(part, add_bos=False) for part in parts[1:])
        ends = bool(self.to_assistant) and engine.native.is_eog(self.to_assistant[0])
        self.user_end = b"" if ends else parts[1].strip().encode()

    def opening(self, system: str | None) -> list[int]:
        """The tokens of a chat up to where the user speaks; None: with the template's own system prompt. One
        that the template does not take stands before the question.
        """
        text, has_bos = self._rendered(system)
        before = text.partition(_QUESTION)[0]
        return self._engine.tokenize(before, add_bos=not has_bos) if before or not has_bos else []

    def joined(self, tokens: list[int], joint: list[int]) -> list[int]:
        """A conversation and what comes behind its last turn, whose end token is not said twice."""
        if joint and tokens[-1] == joint[0] and self._engine.native.is_eog(joint[0]):
            return tokens + joint[1:]
        return tokens + joint

    def _rendered(self, system: str | None) -> tuple[str, bool]:
        turns = [] if system is None else [Message(Role.SYSTEM, system)]
        turns += [Message(Role.USER, _QUESTION), Message(Role.ASSISTANT, _ANSWER), Message(Role.USER, _NEXT)]
        with rendered_at(TEMPLATE_DATE):
            taken = accepted(turns, (), self._template.takes)
            rendered = self._template.render(taken.messages, add_generation_prompt=True)
        return rendered.text, rendered.has_bos
