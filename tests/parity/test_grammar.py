# SPDX-License-Identifier: MIT
"""Tests that a grammar in GBNF allows the same tokens in eaglecpp as in llama.cpp's own matcher, at each
position of many texts.

Tokens that end within a character are left out, because llama.cpp refuses some of them although a character
class allows them.
"""

from __future__ import annotations

import ctypes
import random
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import llama_cpp
import numpy as np
import pytest
from llama_cpp import llama_grammar
from numpy.typing import NDArray

from eaglecpp.lowlevel import Target
from helpers.models import installed_smollm2
from helpers.native import make_sampler, open_target

GRAMMARS = {
    **{
        name.removesuffix("_GBNF").lower(): getattr(llama_grammar, name)
        for name in vars(llama_grammar)
        if name.endswith("_GBNF")
    },
    "ambiguous": 'root ::= ("a" | "aa" | "ab" | b)* "."\nb ::= "a"? "b"? [ab]',
    "japanese-text": "root ::= ([ぁ-ゟ] | [ァ-ヿ] | [、-〿] | [一-鿿])+",
    "counted": 'root ::= ([a-z]{2,5} " "?){3,7} ("x" | "yz"{2,}){0,3}',
    "empty": 'root ::= a? b* c\na ::= "" | "x"\nb ::= a "y"\nc ::= a a a',
    "escaped": 'root ::= ([^a-c\\n] . [\\x41\\u00e9] "\\"" [a-b-] [\\]\\-])+ # note\n',
    "lines": 'root ::= x # note\n# another\nx ::= "(" x ")" | "" |\n  [ab]\nx ::= "[" x "]" | "c"\n',
    "none of it": 'root ::= "ab"* "c"+ "d"',
    "nested": 'root ::= (("a" | "b" "c"){2} "d"){1,2} ("e"{3,} "f" | "g"{2,4})+',
}


class Theirs:
    """llama.cpp's own sampler."""

    def __init__(self, vocab: Any, grammar: str) -> None:
        self.sampler = llama_cpp.llama_sampler_init_grammar(vocab, grammar.encode(), b"root")
        self.n = llama_cpp.llama_vocab_n_tokens(vocab)

    def allowed(self) -> NDArray[np.bool_]:
        data = (llama_cpp.llama_token_data * self.n)()
        fields = np.frombuffer(data, dtype=[("id", np.int32), ("logit", np.float32), ("p", np.float32)])
        fields["id"] = np.arange(self.n)
        array = llama_cpp.llama_token_data_array(data, self.n, -1, False)
        llama_cpp.llama_sampler_apply(self.sampler, ctypes.byref(array))
        return np.asarray(fields["logit"] == 0.0)

    def accept(self, token: int) -> None:
        llama_cpp.llama_sampler_accept(self.sampler, token)

    def __del__(self) -> None:
        if self.sampler:
            llama_cpp.llama_sampler_free(self.sampler)


@contextmanager
def both(path: Path) -> Iterator[tuple[Target, Any]]:
    """Yields a model for eaglecpp, and the model's vocabulary for llama.cpp."""
    params = llama_cpp.llama_model_default_params()
    params.vocab_only = True
    model = llama_cpp.llama_model_load_from_file(str(path).encode(), params)
    yield open_target(path), llama_cpp.llama_model_get_vocab(model)
    llama_cpp.llama_model_free(model)


@pytest.fixture(scope="module")
def smollm2() -> Iterator[tuple[Target, Any]]:
    with both(installed_smollm2()) as found:
        yield found


def check(grammar: str, pair: tuple[Target, Any], seed: int, n_tokens: int) -> int:
    """Follows random texts of the grammar and compares the allowed tokens. Returns the total number of
    allowed tokens.
    """
    target, vocab = pair
    ours, theirs = make_sampler(target, grammar=grammar), Theirs(vocab, grammar)
    rng, n_seen = random.Random(seed), 0
    text: list[int] = []
    whole = np.array([piece(vocab, t).decode("utf-8", "replace").find("\ufffd") < 0 for t in range(theirs.n)])
    ends = [t for t in range(theirs.n) if llama_cpp.llama_vocab_is_eog(vocab, t)]
    for _ in range(n_tokens):
        mine, other = np.array(ours.allowed()) & whole, theirs.allowed() & whole
        assert (mine == other).all(), (grammar, text, np.flatnonzero(mine != other)[:20])
        n_seen += int(mine.sum())
        mine[[0, 1, 2, *ends]] = False
        choices = np.flatnonzero(mine).tolist()
        if not choices:
            break
        # Mostly short tokens are chosen, because they reach more positions. Some tokens are parts of
        # characters.
        some = rng.sample(choices, min(len(choices), 8))
        token = min(some, key=lambda t: len(piece(vocab, t))) if rng.random() < 0.7 else some[0]
        text.append(token)
        ours.accept(token)
        theirs.accept(token)
    return n_seen


@pytest.mark.parametrize("name", GRAMMARS)
def test_the_same_tokens_are_allowed(name: str, smollm2: tuple[Target, Any]) -> None:
    assert sum(check(GRAMMARS[name], smollm2, seed, 14) for seed in range(2)) > 0


def piece(vocab: Any, token: int) -> bytes:
    buffer = ctypes.create_string_buffer(256)
    n = llama_cpp.llama_token_to_piece(vocab, token, buffer, 256, 0, True)
    return buffer.raw[: max(n, 0)]
