# SPDX-License-Identifier: MIT
"""Thinking and answer are told apart, however the text is cut."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from eaglecpp.chat.reader import ThinkSplitter, ThinkTags, tags_of

TAGS = ThinkTags("<think>", "</think>")
HARMONY = tags_of("x <|channel|>analysis<|message|> y")


def split(texts: list[str], tags: ThinkTags | None = TAGS, prompt_end: str = "") -> dict[str, str]:
    """Everything of each kind, joined."""
    splitter = ThinkSplitter(tags, prompt_end)
    parts = [part for text in texts for part in splitter.feed(text)] + splitter.finish()
    assert "".join(part.text for part in parts) == "".join(texts), "every character comes out once, in order"
    kinds = {kind: "".join(p.text for p in parts if p.kind == kind) for kind in ("thinking", "answer", "tag")}
    return {kind: text for kind, text in kinds.items() if text}


CASES = [
    ("<think>\nwhy\n</think>\n\nso", {"thinking": "why", "answer": "so"}),
    ("  <think>a < b</think>c", {"thinking": "a < b", "answer": "c"}),
    ("<think></think>x", {"answer": "x"}),
    ("<think>\n\n</think>\n\nx", {"answer": "x"}),
    ("no thinking here <think>x</think>", {"answer": "no thinking here <think>x</think>"}),
    ("<thin ice>", {"answer": "<thin ice>"}),
    ("<think>never closed", {"thinking": "never closed"}),
    ("<think>ends in a tag </thi", {"thinking": "ends in a tag </thi"}),
    ("<think>a </think> b </think> c", {"thinking": "a", "answer": "b </think> c"}),
    ("<thi", {"answer": "<thi"}),
    ("\n hello", {"answer": "\n hello"}),
    ("", {}),
]


@pytest.mark.parametrize(("text", "expected"), CASES)
def test_a_text_in_any_pieces(text: str, expected: dict[str, str]) -> None:
    for pieces in ([text], list(text), [text[:3], text[3:]]):
        found = split(pieces)
        found.pop("tag", None)
        assert found == expected


@given(st.sampled_from(CASES), st.lists(st.integers(0, 40), max_size=6))
def test_cuts_change_nothing(case: tuple[str, dict[str, str]], cuts: list[int]) -> None:
    text, expected = case
    places = [0, *sorted(min(cut, len(text)) for cut in cuts), len(text)]
    found = split([text[a:b] for a, b in pairwise(places)])
    found.pop("tag", None)
    assert found == expected


def test_a_template_may_have_opened_the_thinking() -> None:
    found = split(["why", "\n</think>", "\n\nso"], prompt_end="<|im_start|>assistant\n<think>\n")
    assert (found["thinking"], found["answer"]) == ("why", "so")
    closed = split(["so"], prompt_end="<think>\n\n</think>\n\n")
    assert closed == {"answer": "so"}


def test_text_is_shown_as_soon_as_it_is_certain() -> None:
    splitter = ThinkSplitter(TAGS)
    assert [p.text for p in splitter.feed("<think>") if p.kind != "tag"] == []
    assert [p.text for p in splitter.feed("I see")] == ["I see"]
    assert [p.text for p in splitter.feed(" </th")] == []
    assert [p.text for p in splitter.feed("e end")] == [" </the end"]


def test_harmony_channels() -> None:
    text = "<|channel|>analysis<|message|>hm<|end|><|start|>assistant<|channel|>final<|message|>yes"
    found = split(list(text), tags=HARMONY)
    assert (found["thinking"], found["answer"]) == ("hm", "yes")
    assert split(["<|channel|>final<|message|>yes"], tags=HARMONY)["answer"] == "yes"


@pytest.mark.parametrize(
    ("template", "opening"),
    [
        ("{% if x %}<think>\n\n</think>{% endif %}", "<think>"),
        ("{{ content.split('</think>')[-1] }}", "<think>"),
        ("[THINK]", "[THINK]"),
        ("{% for m in messages %}{{ m }}{% endfor %}", None),
    ],
)
def test_the_tags_are_read_off_the_template(template: str, opening: str | None) -> None:
    tags = tags_of(template)
    assert (None if tags is None else tags.open) == opening
