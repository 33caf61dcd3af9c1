# SPDX-License-Identifier: MIT
"""Tests detokenization. The text and the stop position depend on the bytes alone, not on how the bytes are
split.
"""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from eaglecpp.engine.vocabulary import Detokenizer

# With a small alphabet, overlapping stop strings are likely. With single bytes, broken code points are
# likely.
letters = st.text(alphabet="abü世", max_size=12)
raw = st.one_of(letters.map(str.encode), st.binary(max_size=12), st.just("a\u00fc\U0001f600b".encode()))
stops = st.lists(st.text(alphabet="abü世", min_size=1, max_size=4), max_size=3)
cuts = st.lists(st.integers(0, 12), max_size=8)


def pieces(data: bytes, at: list[int]) -> list[bytes]:
    return [data[a:b] for a, b in pairwise([0, *sorted(min(cut, len(data)) for cut in at), len(data)])]


def run(parts: list[bytes], stop: list[str]) -> tuple[str, str | None]:
    detokenizer = Detokenizer(stop)
    text = "".join([detokenizer.feed(part) for part in parts])
    return text + detokenizer.finish(), detokenizer.stopped_by


def expected(data: bytes, stop: list[str]) -> tuple[str, str | None]:
    """Returns the expected text and stop position. This slow and simple reference checks the whole text after
    each character.
    """
    text = data.decode("utf-8", "replace")
    for end in range(1, len(text) + 1):
        done = [one for one in stop if text[:end].endswith(one)]
        if done:
            longest = max(done, key=len)
            return text[: end - len(longest)], longest
    return text, None


@given(raw, cuts, stops)
@example(b"xab", [2], ["ab", "b"])
@example(b"xab", [], ["b", "ab"])
@example(b"abab", [], ["abab", "ba", "b"])
@example(b"aab", [1, 2], ["ab"])
@example(b"aaab", [], ["aab"])
@example("\u4e16".encode()[:2] + b"a", [1], [])
def test_text_and_stop_do_not_depend_on_the_split(data: bytes, at: list[int], stop: list[str]) -> None:
    assert run(pieces(data, at), stop) == expected(data, stop)


def test_a_possible_beginning_of_a_stop_string_is_withheld_and_an_empty_one_refused() -> None:
    detokenizer = Detokenizer(["<end>"])
    assert detokenizer.feed(b"yes<e") == "yes"
    assert detokenizer.feed(b"nd") == ""
    assert detokenizer.feed(b"!") == "<end!"
    assert not detokenizer.stopped
    with pytest.raises(ValueError, match="empty"):
        Detokenizer(["a", ""])
