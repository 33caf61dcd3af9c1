# SPDX-License-Identifier: MIT
"""Writes a copy of the demo pair whose vocabulary has tokens for infilling. Text without these tokens is
tokenized as before.
"""

from __future__ import annotations

from pathlib import Path

import gguf

from helpers.http_server import DRAFT, TARGET
from helpers.tiny_split import rewrite

TOKENS = ("<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>", "<|repo_name|>", "<|file_sep|>")
"""Replace the last tokens of the vocabulary, which are rarely used. llama.cpp recognises them by these texts.
"""


def write_infill_pair(folder: Path, n_tokens: int = len(TOKENS)) -> tuple[Path, Path]:
    """Writes a copy of the demo target and its drafter, with the first `n_tokens` tokens of `TOKENS` in the
    vocabulary.
    """
    return _written(TARGET, folder, TOKENS[:n_tokens]), _written(DRAFT, folder, TOKENS[:n_tokens])


def _written(source: Path, folder: Path, tokens: tuple[str, ...]) -> Path:
    reader, n = gguf.GGUFReader(source), len(tokens)
    kept = {
        name: reader.fields[f"tokenizer.ggml.{name}"].contents()[:-n]
        for name in ("tokens", "token_type", "merges")
    }
    kept["tokens"] += tokens
    kept["token_type"] += [int(gguf.TokenType.CONTROL)] * n
    changed = {f"tokenizer.ggml.{name}": values for name, values in kept.items()}
    return rewrite(source, folder / source.name, changed=changed)
