# SPDX-License-Identifier: MIT
"""Tests the pieces of a streamed answer: which characters were drafted, and which text is thinking."""

from __future__ import annotations

from itertools import groupby

from hypothesis import given
from hypothesis import strategies as st

from eaglecpp.chat.reader import AnswerReader
from eaglecpp.engine.vocabulary import Detokenizer
from eaglecpp.results import Chunk, Piece


def read(
    tokens: list[bytes], accepted: list[bool], sizes: list[int], stop: tuple[str, ...] = ()
) -> tuple[AnswerReader, list[Piece]]:
    """Streams tokens (id = index) in rounds of the given sizes, like `Stream`."""
    detokenizer = Detokenizer(stop)
    reader = AnswerReader(tokens.__getitem__)
    pieces: list[Piece] = []
    start = 0
    for size in [*sizes, len(tokens)]:
        ids = list(range(start, min(start + size, len(tokens))))
        text = ""
        for token in ids:
            text += detokenizer.feed(tokens[token])
            if detokenizer.stopped:
                ids = ids[: ids.index(token) + 1]
                break
        start += size
        pieces += reader.read(Chunk(text=text, tokens=ids, accepted=[accepted[t] for t in ids])).pieces
        if detokenizer.stopped or start >= len(tokens):
            break
    last = Chunk(detokenizer.finish(), [], [], finish_reason="stop")
    return reader, pieces + reader.read(last).pieces


def drafted(pieces: list[Piece]) -> list[tuple[str, bool]]:
    """Returns the text as runs of characters that were all drafted, or all not drafted."""
    chars = [(char, piece.is_accepted) for piece in pieces for char in piece.text]
    return [("".join(c for c, _ in run), key) for key, run in groupby(chars, key=lambda c: c[1])]


def test_a_character_of_two_tokens_belongs_to_the_second() -> None:
    euro = "\u20ac".encode()
    _, pieces = read([b"x", euro[:2], euro[2:] + b"y"], [False, False, True], [1, 1, 1])
    assert drafted(pieces) == [("x", False), ("\u20acy", True)]


@given(
    st.lists(st.tuples(st.binary(max_size=4), st.booleans()), max_size=12),
    st.lists(st.integers(1, 4), max_size=12),
    st.lists(st.sampled_from(["ab", "a", "\ufffd", "xyz"]), max_size=2),
)
def test_the_pieces_add_up_to_the_text_of_the_stream(
    tokens: list[tuple[bytes, bool]], sizes: list[int], stop: list[str]
) -> None:
    pieces_of, accepted = [t for t, _ in tokens], [a for _, a in tokens]
    reader, pieces = read(pieces_of, accepted, sizes, stop=tuple(stop))
    text = "".join(piece.text for piece in pieces)
    whole = b"".join(pieces_of).decode("utf-8", "replace")
    assert whole.startswith(text) and text == reader.message.content
    if not stop:
        assert text == whole
