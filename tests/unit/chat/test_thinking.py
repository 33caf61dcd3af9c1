# SPDX-License-Identifier: MIT
"""Thinking and answer are told apart, however the text is cut."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from eaglecpp.chat.thinking import HARMONY, Begins, ThinkTags, layout_of, splitter

TAGS = ThinkTags("<think>", "</think>")


def split(texts: list[str], tags: ThinkTags | None = TAGS, begins: Begins = "any") -> dict[str, str]:
    """Everything of each kind, joined."""
    one = splitter(tags, begins, ["<tool_call>"], lambda text: text.endswith("</tool_call>"))
    parts = [part for text in texts for part in one.feed(text)] + one.finish()
    assert "".join(part.text for part in parts) == "".join(texts), "every character comes out once, in order"
    kinds = {kind: "".join(p.text for p in parts if p.kind == kind) for kind in ("thinking", "answer", "tag")}
    return {kind: text for kind, text in kinds.items() if text}


def pieces(text: str, cuts: list[int]) -> list[str]:
    return [text[a:b] for a, b in pairwise([0, *sorted(min(cut, len(text)) for cut in cuts), len(text)])]


QUOTED = "<tool_call>f</tool_call>"
CASES = [
    ("<think>\nwhy\n</think>\n\nso", {"thinking": "why", "answer": "so"}),
    ("  <think>a < b</think>c", {"thinking": "a < b", "answer": "c"}),
    ("<think></think>x", {"answer": "x"}),
    ("no thinking here <think>x</think>", {"answer": "no thinking here <think>x</think>"}),
    ("<think>why\n<tool_call>f</tool_call>", {"thinking": "why", "answer": "<tool_call>f</tool_call>"}),
    (f"<think>a {QUOTED} but", {"thinking": f"a {QUOTED} but"}),
    ("<think>a <tool_call> is due</think>so", {"thinking": "a <tool_call> is due", "answer": "so"}),
    ("<think>ends in a tag </thi", {"thinking": "ends in a tag </thi"}),
    ("<thi", {"answer": "<thi"}),
    ("</think>\n\nso", {"answer": "so"}),  # as MiniMax M3 begins an answer without one
    ("", {}),
]


@pytest.mark.parametrize(("text", "expected"), CASES)
@given(cuts=st.lists(st.integers(0, 40), max_size=6))
@example(cuts=list(range(40)))
def test_a_text_in_any_pieces(text: str, expected: dict[str, str], cuts: list[int]) -> None:
    found = split(pieces(text, cuts))
    found.pop("tag", None)
    assert found == expected


def test_text_is_shown_as_soon_as_it_is_certain() -> None:
    one = splitter(TAGS)
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
    ('to=functions.f<|message|>{"a": "<|end|> <|start|>assistant"}<|end|><|start|>assistant' + HM, "hm",
     'to=functions.f<|message|>{"a": "<|end|> <|start|>assistant"}'),
    (HM + " so <|channel|>final<|message|>x", "hm", " so <|channel|>final<|message|>x"),
    (HM + "<|start|>assistant" + CALL, "hm", CALL[CALL.index("to=") : -8]),
    (HM + "<|start|>assistant to=functions.f<|channel|>analysis<|message|>{}<|call|>", "hm",
     "to=functions.f<|channel|>analysis<|message|>{}"),
    ('<|channel|>commentary to=functions.f<|message|>{"a": "<|call|>"}<|call|>', "",
     'to=functions.f<|message|>{"a": "<|call|>"}'),
]  # fmt: skip


@given(st.sampled_from(CHANNELS), st.lists(st.integers(0, 90), max_size=6))
@example(CHANNELS[7], list(range(90)))
@example(CHANNELS[9], list(range(90)))
def test_channels_of_harmony(case: tuple[str, str, str], cuts: list[int]) -> None:
    text, thinking, answer = case
    one = splitter(HARMONY, calls=["to=functions."])
    parts = [part for piece in pieces(text, cuts) for part in one.feed(piece)] + one.finish()
    assert "".join(part.text for part in parts) == text
    found = {
        kind: "".join(part.added + part.text for part in parts if part.kind == kind)
        for kind in ("thinking", "answer")
    }
    assert found == {"thinking": thinking, "answer": answer.replace("to=functions.", "\0to=functions.")}


MESSAGES = {
    HARMONY.open: ["<|start|>", "<|channel|>", "to=functions.f", "<|message|>", "<|end|>", "<|call|>"],
    "<|open|>think<|sep|>": ["<|open|>", "response", "tools", "<|sep|>", "<|close|>", "message<|sep|>"],
    " to=self<|message|>": [" to=", "user", "f", "<|message|>", "<|eom|>", "<|start|>assistant", "<|eot|>"],
    ">>>all\n": [">>>", "all\n", "f\n", ">", "\n"],
}


@pytest.mark.parametrize("sign", MESSAGES)
@given(st.data())
def test_messages_in_any_order_and_pieces(sign: str, data: st.DataObject) -> None:
    """Also what no model should write is split once, in order, and in the same way however it is cut."""
    text = "".join(data.draw(st.lists(st.sampled_from([sign, *MESSAGES[sign], " x"]), max_size=8)))
    splits = []
    for size in (1, 5, 1000):
        one = splitter(layout_of(sign), calls=["x"])
        parts = [part for at in range(0, len(text), size) for part in one.feed(text[at : at + size])]
        parts += one.finish()
        assert "".join(part.text for part in parts) == text
        splits.append(
            ["".join(p.added + p.text for p in parts if p.kind == k) for k in ("thinking", "answer")]
        )
    assert splits[0] == splits[1] == splits[2]
