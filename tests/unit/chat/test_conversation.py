# SPDX-License-Identifier: MIT
"""Tests which messages are in the next prompt, and which are left out when the context is full. Also tests
the conversion of messages from and to the JSON of the chat APIs.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Sequence

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from eaglecpp.chat.conversation import Conversation
from eaglecpp.chat.images import check_unpacked, checked_image, image_mark
from eaglecpp.chat.message import Message, ToolCall
from eaglecpp.errors import InvalidValueError
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


# Messages and images


def test_an_openai_message() -> None:
    call = {"id": "c1", "function": {"name": "add", "arguments": '{"a": 1}'}}
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    message = Message.from_dict(
        {"role": "assistant", "content": parts, "reasoning_content": "hm", "tool_calls": [call]}
    )
    assert message == Message("assistant", "ab", "hm", (ToolCall("add", {"a": 1}, "c1"),))
    assert Message.from_dict({"role": "function", "content": None}) == Message("tool")
    assert Message.from_dict({"role": "developer"}).role == "system"


PNG = b"\x89PNG\r\n\x1a\n\0\0\0\x0dIHDR"


IMAGES = {
    "PNG": (PNG + b"\0\0\x01\0" * 2 + b"\x08\x02", ""),
    "GIF": (b"GIF89a\x05\0\x06\0", ""),
    "JPEG": (b"\xff\xd8\xff\xe0\0\x02\xff\xc0\0\x11\x08\0\x10\0\x10\x03" + b"\0" * 9, ""),
    "large": (PNG + b"\0\x01\0\0" * 2 + b"\x08\x02", "65536 x 65536 pixels; the maximum is 64 million"),
    "65535 of a GIF": (b"GIF89a\xff\xff\xff\xff", "expected PNG, JPEG, GIF or BMP"),
    "cut": (b"GIF89a\x05", "expected PNG, JPEG, GIF or BMP"),
    "segments": (
        b"\xff\xd8" + b"\xff\xe0\0\x02" * 4_000_000,
        "does not give its width and height in its first 2.1 MB",
    ),
    "WebP": (b"RIFF\0\0\0\0WEBPVP8 " + b"\x10\0" * 9, "expected PNG, JPEG, GIF or BMP"),
    "MB": (b"\0" * (33 << 20), "an image has more than 34 MB"),
}


@pytest.mark.parametrize(("data", "problem"), IMAGES.values(), ids=IMAGES)
def test_images_of_supported_kind_and_size_are_accepted(data: bytes, problem: str) -> None:
    if problem:
        with pytest.raises(InvalidValueError, match=problem):
            checked_image(data)
    else:
        assert checked_image(data) is data


def png(n: int, depth: int, color: int, interlaced: int = 0) -> bytes:
    """Returns a PNG of 33 x 35 pixels. Its data is in two pieces, which unpack to n bytes."""
    head, packed = struct.pack(">IIBBBBB", 33, 35, depth, color, 0, 0, interlaced), zlib.compress(bytes(n), 9)
    parts = (
        (b"IHDR", head),
        (b"tEXt", b"a\0b"),
        (b"IDAT", packed[:1]),
        (b"IDAT", packed[1:]),
        (b"IEND", b""),
    )
    return PNG[:8] + b"".join(struct.pack(">I", len(data)) + kind + data + b"sum." for kind, data in parts)


PASSES = ((0, 0, 8, 8), (4, 0, 8, 8), (0, 4, 4, 8), (2, 0, 4, 4), (0, 2, 2, 4), (1, 0, 2, 2), (0, 1, 1, 2))


@pytest.mark.parametrize(
    ("color", "n_bits"), [(0, (1, 2, 4, 8, 16)), (2, (8, 16)), (3, (1, 2, 4, 8)), (4, (8, 16)), (6, (8, 16))]
)
def test_a_png_unpacks_to_its_pixels(color: int, n_bits: Sequence[int]) -> None:
    for depth in n_bits:
        size = depth * {2: 3, 4: 2, 6: 4}.get(color, 1)
        for interlaced, passes in ((0, [(0, 0, 1, 1)]), (1, PASSES)):
            n = sum(
                len(range(y, 35, down)) * (1 + -(-len(range(x, 33, right)) * size // 8))
                for x, y, right, down in passes
            )
            check_unpacked(png(n, depth, color, interlaced))
        with pytest.raises(InvalidValueError, match="of 33 x 35 pixels unpacks"):
            check_unpacked(png(n + 100_000_000, depth, color, interlaced))
    check_unpacked(PNG + bytes(8))
    with pytest.raises(InvalidValueError, match="it is damaged"):
        check_unpacked(png(900, 1, 0).replace(zlib.compress(bytes(900), 9)[1:4], b"\xda\xff\xff"))
