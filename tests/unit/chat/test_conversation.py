# SPDX-License-Identifier: MIT
"""Tests which messages are in the next prompt, and which are left out when the context is full."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import example, given
from hypothesis import strategies as st

from eaglecpp.chat.conversation import Conversation
from eaglecpp.chat.images import image_mark
from eaglecpp.chat.message import Message
from helpers.tiny_projector import make_image


def talked(n_exchanges: int, words: int = 10, **options: object) -> Conversation:
    """Returns a conversation in which every message has `words` words."""
    conversation = Conversation(**options)  # type: ignore[arg-type]
    for index in range(n_exchanges):
        conversation.ask(" ".join([f"q{index}"] * words))
        conversation.answer(" ".join([f"a{index}"] * words))
    return conversation


def words(messages: Sequence[Message]) -> int:
    """Counts the tokens of a text, as if each word were a token."""
    return sum(len(message.content.split()) for message in messages)


def texts(messages: Sequence[Message]) -> list[str]:
    return [message.content.split()[0] for message in messages]


def test_the_oldest_exchanges_are_removed_and_returned_until_half_of_the_context_is_free() -> None:
    conversation = talked(10, system="S")
    conversation.ask("last question")
    left_out = conversation.fit(words, n_ctx=200, room=20)
    assert texts(left_out) == [name for i in range(6) for name in (f"q{i}", f"a{i}")]
    assert words(conversation.prompt()) <= 100
    assert texts(conversation.prompt()) == ["S", "q6", "a6", "q7", "a7", "q8", "a8", "q9", "a9", "last"]
    assert conversation.fit(words, n_ctx=200, room=20) == [], "expected no removal before it is full again"


@given(st.lists(st.integers(1, 60), min_size=1, max_size=20), st.integers(10, 400), st.integers(1, 100))
@example([5, 5, 60], 90, 22)
def test_the_rest_fits_or_is_the_last_question_and_removed_messages_are_returned(
    sizes: list[int], n_ctx: int, room: int
) -> None:
    room = min(room, n_ctx // 4) or 1
    conversation = Conversation()
    for size in sizes:
        conversation.ask("q " * size)
        conversation.answer("a " * size)
    conversation.drop_answer()
    everything = list(conversation.messages)
    left_out = conversation.fit(words, n_ctx, room)
    prompt = conversation.prompt()
    assert left_out + prompt == everything
    assert prompt[0].role == "user"
    assert words(prompt) + room <= n_ctx or prompt == everything[-1:]


def test_merged_questions_keep_attachments_before_typed_text() -> None:
    one, two = make_image(1), make_image(2)
    conversation = Conversation()
    conversation.ask("first", [one], ["a:\n\nA"])
    conversation.ask("second", [two], ["b:\n\nB"])
    (question,) = conversation.messages
    marks = image_mark(one), image_mark(two)
    assert question.content == f"{marks[0]}a:\n\nA\n\n{marks[1]}b:\n\nB\n\nfirst\n\nsecond"
    assert (question.typed, question.images) == ("first\n\nsecond", (one, two))
    conversation.answer("said")
    assert conversation.edit("third")
    assert [m.typed for m in conversation.messages] == ["third"]
    assert conversation.messages[0].content == question.content.replace("first\n\nsecond", "third")
    assert not Conversation().edit("none")


def test_no_more_is_removed_than_needed_if_half_of_the_context_cannot_become_free() -> None:
    conversation = Conversation()
    for size in (10, 4):
        conversation.ask("q " * size)
        conversation.answer("a " * size)
    conversation.ask("q " * 30)
    assert len(conversation.fit(words, n_ctx=50, room=10)) == 2
