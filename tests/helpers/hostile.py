# SPDX-License-Identifier: MIT
"""A target whose every text would do something to a terminal: names, metadata, template, and what it says."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import gguf
import numpy as np

from helpers.gguf_writer import finish
from helpers.tiny import TargetSpec, add_sizes, gguf_tensors, target_weights
from helpers.tiny_tokenizer import Tokenizer, byte_symbols, tiny_tokenizer

__all__ = ["EVIL", "raw_controls", "write_hostile_target"]

EVIL = "\x1b]0;owned\x07\x1b[31m\x1b[2Jowned\x9b31m\r\x7f\u202e"
"""Sets the title, clears the screen, turns red in two ways, overwrites the line, turns the text round."""

_CONTROLS = ("\x1b]", "\x1b[31m", "\x1b[2J", "\x07", "\x9b", "\x7f", "\u202e", "owned\r")


def raw_controls(raw: str) -> list[str]:
    """What of `EVIL` is in what a terminal got. Colours and cursor movements of our own are not in it."""
    return [text for text in _CONTROLS if text in raw]


def write_hostile_target(path: Path, architecture: str = "llama", template: str | None = None) -> Path:
    """A tiny target that says nothing but `EVIL`."""
    spec, plain = TargetSpec(n_layers=4), tiny_tokenizer()
    symbols = byte_symbols()
    evil = "".join(symbols[byte] for byte in EVIL.encode())
    tokenizer = Tokenizer([*plain.tokens, evil], plain.merges)
    weights = target_weights(spec, tokenizer)
    weights["lm_head.weight"][-1] = 0.0
    weights["lm_head.weight"][-1, 0] = 1000.0  # the constant component: always the likeliest token
    writer = gguf.GGUFWriter(path, architecture)
    for name in ("name", "author", "version", "license", "license.name", "description", "url"):
        writer.add_string(f"general.{name}", EVIL)
    writer.add_string(f"evil.{EVIL}", "a key")
    writer.add_array("general.tags", [EVIL, EVIL])
    add_sizes(writer, spec, len(tokenizer.tokens))
    writer.add_head_count_kv(spec.n_kv_heads)
    writer.add_rope_dimension_count(spec.head_dim)
    tokenizer.add_to(writer, with_template=template is None)
    if template is not None:
        writer.add_chat_template(template)
    for name, value in gguf_tensors(replace(spec, chat_template=False), weights).items():
        writer.add_tensor(name, np.ascontiguousarray(value))
    finish(writer)
    return path
