# SPDX-License-Identifier: MIT
"""Tiny targets that differ in nothing but their tokenizer: byte-level BPE with any of llama.cpp's
pre-tokenizers, SentencePiece, and BPE in SentencePiece's alphabet.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import gguf

from helpers.tiny import TargetSpec, target_weights, write_gguf
from helpers.tiny_tokenizer import WORDS, tiny_tokenizer

__all__ = ["SPECIALS", "write_bpe", "write_spaced_bpe", "write_spm"]

SPECIALS = ("<|im_start|>", "<|im_end|>", "<|im_end", "<|endoftext|>", "[INST]", "\n\n", "  ", "    ", "<b>")
"""Of which some are parts of others. The last four are added as text, which is always looked for."""
N_CONTROL = 5


@dataclass
class _Vocabulary:
    """As `tiny_tokenizer.Tokenizer`, for `write_gguf`."""

    kind: str
    pre: str
    tokens: list[str]
    types: list[int]
    scores: list[float] = field(default_factory=list)
    merges: list[str] = field(default_factory=list)
    name: str = ""
    add_bos: bool = True

    def is_plain(self, token: int) -> bool:
        return True

    def add_to(self, writer: gguf.GGUFWriter, with_template: bool) -> None:
        writer.add_tokenizer_model(self.kind)
        if self.pre:
            writer.add_tokenizer_pre(self.pre)
        writer.add_token_list(self.tokens)
        writer.add_token_types(self.types)
        if self.scores:
            writer.add_token_scores(self.scores)
        if self.merges:
            writer.add_token_merges(self.merges)
        writer.add_bos_token_id(1)
        writer.add_eos_token_id(2)
        writer.add_unk_token_id(0)
        writer.add_add_bos_token(self.add_bos)
        if self.name:
            writer.kv_data[0]["general.name"].value = self.name


def _written(path: Path, vocabulary: _Vocabulary) -> Path:
    spec = TargetSpec()
    made: Any = vocabulary
    write_gguf(path, spec, made, target_weights(spec, made), "F32")
    return path


def _specials() -> tuple[list[str], list[int]]:
    control, own = int(gguf.TokenType.CONTROL), int(gguf.TokenType.USER_DEFINED)
    heads = ["<unk>", "<s>", "</s>"]
    types = [int(gguf.TokenType.UNKNOWN), control, control]
    types += [control if i < N_CONTROL else own for i in range(len(SPECIALS))]
    return [*heads, *SPECIALS], types


def write_bpe(path: Path, pre: str, specials: tuple[str, ...] = ()) -> Path:
    """Byte-level, with more control tokens where they are given."""
    made = tiny_tokenizer()
    tokens, types = _specials()
    tokens += [*specials, *made.tokens[4:]]
    types += [int(gguf.TokenType.CONTROL)] * len(specials)
    types += [int(gguf.TokenType.NORMAL)] * (len(tokens) - len(types))
    merges = [" ".join(pair) for pair in made.merges]
    for first, second in (("Ġ", "Ġ"), ("ĠĠ", "ĠĠ"), ("a", "a"), ("aa", "aa"), ("Ċ", "Ċ"), ("1", "2")):
        tokens.append(first + second)
        types.append(int(gguf.TokenType.NORMAL))
        merges.append(f"{first} {second}")
    return _written(path, _Vocabulary("gpt2", pre, tokens, types, merges=merges, add_bos=False))


def _spaced() -> tuple[list[str], list[int], list[str]]:
    """Tokens, types and merges in SentencePiece's alphabet."""
    tokens, types = _specials()
    tokens += [f"<0x{b:02X}>" for b in range(256)]
    types += [int(gguf.TokenType.BYTE)] * 256
    merges: list[str] = []
    tokens += ["▁", *(chr(c) for c in range(33, 127)), "é", "中"]
    for word in WORDS.split():
        text = "▁"
        for letter in word:
            if text + letter not in tokens:
                tokens.append(text + letter)
                merges.append(f"{text} {letter}")
            text += letter
    for first, second in (("▁", "▁"), ("▁▁", "▁▁"), ("a", "a"), ("aa", "aa")):
        if first + second not in tokens:
            tokens.append(first + second)
        merges.append(f"{first} {second}")
    types += [int(gguf.TokenType.NORMAL)] * (len(tokens) - len(types))
    return tokens, types, merges


def write_spm(path: Path, name: str = "") -> Path:
    """SentencePiece. name: of the model; "phi-3" makes special tokens take the white space behind them."""
    tokens, types, _ = _spaced()
    scores = [-float(i) for i in range(len(tokens))]
    return _written(path, _Vocabulary("llama", "", tokens, types, scores=scores, name=name))


def write_spaced_bpe(path: Path) -> Path:
    """As Gemma 4's."""
    tokens, types, merges = _spaced()
    return _written(path, _Vocabulary("gpt2", "gemma4", tokens, types, merges=merges, add_bos=False))
