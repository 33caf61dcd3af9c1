# SPDX-License-Identifier: MIT
"""`make_sayer` writes a tiny target that generates a fixed text for any prompt. `make_thinker` writes a
target that thinks "we" between Gemma 4's control tokens for thoughts, and then answers "ys". The template of
this target is `THOUGHTFUL`.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from helpers import tiny, tiny_tokenizer
from helpers.tiny_tokenizer import EOS
from helpers.tiny_tokenizer import tiny_tokenizer as make_tokenizer

THOUGHTFUL = (  # this template leaves out the thoughts of earlier turns
    "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}"
    "{% if enable_thinking is not defined or enable_thinking %}<|channel>thought\n{% endif %}"
)


def make_thinker(path: Path) -> Path:
    """Writes a target that thinks "we" and answers "ys"."""
    marks = ("<|channel>", "<channel|>")
    return make_sayer(path, "\n", ["w", "e", marks[1], "y", "s"], marks)


def make_sayer(path: Path, after: str, says: Sequence[str], control: Sequence[str]) -> Path:
    """Writes a target that answers a prompt that ends with the character `after` with the tokens `says`, and
    then ends the answer. The tokens `says` must all differ. control: texts of two control tokens that replace
    ChatML's.
    """
    spec = tiny.TargetSpec(n_layers=2, mixing=0.05, chat_template=False)
    tokenizer = make_tokenizer()
    weights = tiny.target_weights(spec, tokenizer)
    tokenizer.tokens[2:4] = control
    symbol = tiny_tokenizer.byte_symbols()
    ids = [tokenizer.tokens.index(symbol[ord(text)] if len(text) == 1 else text) for text in (after, *says)]
    assert len(set(ids)) == len(ids)
    embedding = weights["model.embed_tokens.weight"]
    head = np.zeros_like(embedding)
    for token, successor in zip(ids, [*ids[1:], EOS], strict=True):
        head[successor] = 4 * embedding[token]
    head[:, 0] = 0
    weights["lm_head.weight"] = head
    tiny.write_gguf(path, spec, tokenizer, weights, "F32")
    return path
