# SPDX-License-Identifier: MIT
"""Tiny targets that differ only in their tokenizer: byte-level BPE with any of llama.cpp's pre-tokenizers,
SentencePiece, and BPE in SentencePiece's alphabet.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gguf

from helpers.tiny import TargetSpec, target_weights, write_gguf
from helpers.tiny_tokenizer import Tokenizer, add_words, tiny_tokenizer

SPECIALS = ("<|im_start|>", "<|im_end|>", "<|im_end", "<|endoftext|>", "[INST]", "\n\n", "  ", "    ", "<b>")
"""Special tokens, some of them parts of others. The last four are user-defined text, which the tokenizer
always looks for.
"""
N_CONTROL = 5


def _written(path: Path, tokens: list[str], types: list[int], **more: Any) -> Path:
    """Writes a target for which all tokens are likely, except the special tokens."""
    ids = {"bos": 1, "eos": 2, "unknown": 0}
    vocabulary = Tokenizer(tokens, more.pop("merges", []), types=tuple(types), ids=ids, **more)
    spec = TargetSpec()
    write_gguf(path, spec, vocabulary, target_weights(spec, vocabulary), "F32")
    return path


def _specials() -> tuple[list[str], list[int]]:
    control, own = int(gguf.TokenType.CONTROL), int(gguf.TokenType.USER_DEFINED)
    heads = ["<unk>", "<s>", "</s>"]
    types = [int(gguf.TokenType.UNKNOWN), control, control]
    types += [control if i < N_CONTROL else own for i in range(len(SPECIALS))]
    return [*heads, *SPECIALS], types


def write_bpe(path: Path, pre: str, specials: tuple[str, ...] = ()) -> Path:
    """Writes a target with byte-level BPE and these additional control tokens."""
    made = tiny_tokenizer()
    tokens, types = _specials()
    tokens += [*specials, *made.tokens[4:]]
    types += [int(gguf.TokenType.CONTROL)] * len(specials)
    types += [int(gguf.TokenType.NORMAL)] * (len(tokens) - len(types))
    merges = [*made.merges]
    for first, second in (("Ġ", "Ġ"), ("ĠĠ", "ĠĠ"), ("a", "a"), ("aa", "aa"), ("Ċ", "Ċ"), ("1", "2")):
        tokens.append(first + second)
        types.append(int(gguf.TokenType.NORMAL))
        merges.append((first, second))
    return _written(path, tokens, types, pre=pre, merges=merges, add_bos=False)


def _spaced() -> tuple[list[str], list[int], list[tuple[str, str]]]:
    """Returns the tokens, types and merges of a BPE in SentencePiece's alphabet."""
    tokens, types = _specials()
    tokens += [f"<0x{b:02X}>" for b in range(256)]
    types += [int(gguf.TokenType.BYTE)] * 256
    tokens += ["▁", *(chr(c) for c in range(33, 127)), "é", "中"]
    merges = add_words(tokens, "▁")
    for first, second in (("▁", "▁"), ("▁▁", "▁▁"), ("a", "a"), ("aa", "aa")):
        if first + second not in tokens:
            tokens.append(first + second)
        merges.append((first, second))
    types += [int(gguf.TokenType.NORMAL)] * (len(tokens) - len(types))
    return tokens, types, merges


def write_spm(path: Path, name: str = "") -> Path:
    """Writes a target with a SentencePiece tokenizer. name: name of the model. If it is "phi-3", special
    tokens swallow the white space that follows them.
    """
    tokens, types, _ = _spaced()
    scores = tuple(-float(i) for i in range(len(tokens)))
    return _written(path, tokens, types, kind="llama", pre="", scores=scores, name=name)


def write_spaced_bpe(path: Path) -> Path:
    """Writes a target with BPE like Gemma 4's."""
    tokens, types, merges = _spaced()
    return _written(path, tokens, types, pre="gemma4", merges=merges, add_bos=False)
