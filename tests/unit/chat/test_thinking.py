# SPDX-License-Identifier: MIT
"""Tests that thinking and answer are separated, however the text is split into pieces, and which characters
of a streamed answer were drafted.
"""

from __future__ import annotations

from itertools import groupby, pairwise

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from eaglecpp.chat.formats import GPT_OSS, HERMES, Begins, Layout, formats_of, layout_of
from eaglecpp.chat.message import ToolCall
from eaglecpp.chat.reader import AnswerReader, Part, Reader
from eaglecpp.engine.vocabulary import Detokenizer
from eaglecpp.results import Chunk, Piece
from helpers.chat_templates import call_formats

TAGS = Layout("<think>", "</think>")


def split(texts: list[str], tags: Layout | None = TAGS, begins: Begins = "any") -> dict[str, str]:
    """Returns the joined text of each kind (thinking and answer)."""
    parts = parts_of(Reader(tags, begins, (HERMES,), {"f": {}}), texts)
    calls = ",".join(call.name for part in parts for call in part.calls)
    kinds = {
        kind: "".join(p.added + p.text for p in parts if p.kind == kind) for kind in ("thinking", "answer")
    }
    return {kind: text for kind, text in {**kinds, "calls": calls}.items() if text}


def parts_of(reader: Reader, texts: list[str]) -> list[Part]:
    parts = [part for text in texts for part in reader.feed(text)] + reader.finish()
    assert "".join(part.text for part in parts) == "".join(texts), "each character must come out once"
    return parts


def pieces(text: str, cuts: list[int]) -> list[str]:
    return [text[a:b] for a, b in pairwise([0, *sorted(min(cut, len(text)) for cut in cuts), len(text)])]


QUOTED = '<tool_call>{"name": "f"}</tool_call>'
CASES = [
    ("<think>\nwhy\n</think>\n\nso", {"thinking": "why", "answer": "so"}),
    ("  <think>a < b</think>c", {"thinking": "a < b", "answer": "c"}),
    ("<think></think>x", {"answer": "x"}),
    ("no thinking here <think>x</think>", {"answer": "no thinking here <think>x</think>"}),
    (f"<think>why\n{QUOTED}", {"thinking": "why", "calls": "f"}),
    (f"<think>a {QUOTED} but", {"thinking": f"a {QUOTED} but"}),
    ("<think>a <tool_call> is due</think>so", {"thinking": "a <tool_call> is due", "answer": "so"}),
    ("<think>ends in a tag </thi", {"thinking": "ends in a tag </thi"}),
    ("<thi", {"answer": "<thi"}),
    ("</think>\n\nso", {"answer": "so"}),  # MiniMax M3 answers without a thought in this way
    ("", {}),
]


@pytest.mark.parametrize(("text", "expected"), CASES)
@given(cuts=st.lists(st.integers(0, 40), max_size=6))
@example(cuts=list(range(40)))
def test_a_text_in_any_pieces(text: str, expected: dict[str, str], cuts: list[int]) -> None:
    assert split(pieces(text, cuts)) == expected


@pytest.mark.parametrize(("is_whole", "calls"), [(True, 1), (False, 0)])
def test_a_call_inside_a_thought_counts_only_if_the_model_ended_there(is_whole: bool, calls: int) -> None:
    """Tests a call inside a thought. If the answer was cut inside the thought, the model may only have
    considered the call.
    """
    one = Reader(TAGS, "any", (HERMES,), {"f": {}})
    parts = one.feed("<think>why " + QUOTED) + one.finish(is_whole)
    assert len([call for part in parts for call in part.calls]) == calls


def test_text_is_shown_as_soon_as_it_is_certain() -> None:
    one = Reader(TAGS)
    assert [p.text for p in one.feed("<think>") if p.kind != "tag"] == []
    assert [p.text for p in one.feed("I see")] == ["I see"]
    assert [p.text for p in one.feed(" </th")] == []
    assert [p.text for p in one.feed("e end")] == [" </the end"]


HM = "<|channel|>analysis<|message|>hm<|end|>"
CALL = "<|channel|>commentary to=functions.f <|constrain|>json<|message|>{}<|call|>"
CHANNELS = [
    (HM + "<|start|>assistant<|channel|>final<|message|>yes", "hm", "yes"),
    (HM + "<|start|>assistant<|channel|>final <|constrain|>json<|message|>{}<|return|>", "hm", "{}"),
    ("<|channel|>commentary<|message|>I look.<|end|><|start|>assistant" + HM, "hm", "I look."),
    ("<|channel|>commentary<|message|>I look.<|end|><|start|>assistant<|channel|>final<|message|>so", "",
     "I look.\n\nso"),
    ("<|channel|>commentary to=assistant<|channel|>final<|message|>so", "", "so"),
    ("<|channel|>analysis<|message|>no <|call|> nor <|channel|>final<|end|>",
     "no <|call|> nor <|channel|>final", ""),
    (HM + "<|start|>assistant<|channel|>commentary to=python <|constrain|>code<|message|>1 + 1",
     "hm\n\n1 + 1", ""),
    ("plain, without channels", "", "plain, without channels"),
    ("<|channel|>analysis<|message|>cut o", "cut o", ""),
    ("<|start|>assistant" + "x" * 600, "", "<|start|>assistant" + "x" * 600),
    (HM + " so <|channel|>final<|message|>x", "hm", " so <|channel|>final<|message|>x"),
    ('to=functions.f<|message|>{"a": "<|end|> <|start|>assistant"}<|end|><|start|>assistant' + HM, "hm",
     ToolCall("f", {"a": "<|end|> <|start|>assistant"})),
    (HM + "<|start|>assistant" + CALL, "hm", ToolCall("f")),
    (HM + "<|start|>assistant to=functions.f<|channel|>analysis<|message|>{}<|call|>", "hm", ToolCall("f")),
    ('<|channel|>commentary to=functions.f<|message|>{"a": "<|call|>"}<|call|>', "",
     ToolCall("f", {"a": "<|call|>"})),
    ("to=functions.f<|message|>{a: 1}<|end|><|start|>assistant<|channel|>final<|message|>so", "",
     "to=functions.f<|message|>{a: 1}\n\nso"),  # the JSON of this call is broken
]  # fmt: skip


@given(st.sampled_from(CHANNELS), st.lists(st.integers(0, 90), max_size=6))
@example(CHANNELS[7], list(range(90)))
@example(CHANNELS[9], list(range(90)))
def test_channels_of_harmony(case: tuple[str, str, str | ToolCall], cuts: list[int]) -> None:
    text, thinking, answer = case
    parts = parts_of(
        Reader(GPT_OSS, formats=formats_of("to=functions."), tools={"f": {}}), pieces(text, cuts)
    )
    found = ["".join(p.added + p.text for p in parts if p.kind == kind) for kind in ("thinking", "answer")]
    calls = [call for part in parts for call in part.calls]
    assert found == [thinking, answer if isinstance(answer, str) else ""]
    assert calls == ([answer] if isinstance(answer, ToolCall) else [])


MESSAGES = {  # templates by the opening mark of a thought, and marks that their messages may contain
    GPT_OSS.open: ["openai-gpt-oss-120b", "<|start|>", "<|channel|>", "to=functions.f", "<|message|>",
                   "<|end|>", "<|call|>"],
    "<|open|>think<|sep|>": ["kimi-k3", "<|open|>", "response", "tools", "<|sep|>", "<|close|>",
                             "message<|sep|>"],
    " to=self<|message|>": ["muse", " to=", "user", "f", "<|message|>", "<|eom|>", "<|start|>assistant",
                            "<|eot|>"],
    ">>>all\n": ["functionary-v3.2", ">>>", "all\n", "f\n", ">", "\n"],
}  # fmt: skip


@pytest.mark.parametrize("sign", MESSAGES)
@given(st.data())
def test_messages_in_any_order_and_pieces(sign: str, data: st.DataObject) -> None:
    """Tests messages in an order that no model should write. They are also split in order, without loss or
    repetition, and independently of the pieces.
    """
    file, *marks = MESSAGES[sign]
    formats = call_formats(file)
    parts = st.sampled_from([sign, *marks, formats[0].write([ToolCall("f", {})]), " x", "\n"])
    text = "".join(data.draw(st.lists(parts, max_size=8)))
    splits = []
    for size in (1, 5, 1000):
        one = Reader(layout_of(sign), formats=formats, tools={"f": {}})
        found = parts_of(one, pieces(text, list(range(0, len(text), size))))
        said = ["".join(p.added + p.text for p in found if p.kind == k) for k in ("thinking", "answer")]
        splits.append((*said, [call for part in found for call in part.calls]))
    assert splits[0] == splits[1] == splits[2]


# Pieces of a streamed answer


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
