# SPDX-License-Identifier: MIT
"""Tests the conversion of messages from and to the JSON of the chat APIs."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Sequence

import pytest

from eaglecpp.chat.images import check_unpacked, checked_image
from eaglecpp.chat.message import Message, ToolCall
from eaglecpp.errors import InvalidValueError


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
