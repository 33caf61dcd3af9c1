# SPDX-License-Identifier: MIT
"""A target whose names, metadata, template and generated text contain terminal control sequences."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from helpers.tiny import TargetSpec, target_weights, write_gguf
from helpers.tiny_split import rewrite
from helpers.tiny_tokenizer import Tokenizer, byte_symbols, tiny_tokenizer

EVIL = "\x1b]0;owned\x07\x1b[31m\x1b[2Jowned\x9b31m\r\x7f\u202e"
"""Sets the title, clears the screen, turns red in two ways, overwrites the line, reverses the text direction.
"""

_CONTROLS = ("\x1b]", "\x1b[31m", "\x1b[2J", "\x07", "\x9b", "\x7f", "\u202e", "owned\r")


def raw_controls(raw: str) -> list[str]:
    """Returns the parts of `EVIL` that reached a terminal. eaglecpp's own colours and cursor movements do not
    count.
    """
    return [text for text in _CONTROLS if text in raw]


def write_hostile_target(path: Path, architecture: str = "llama", template: str | None = None) -> Path:
    """Writes a tiny target that generates only `EVIL`."""
    spec, plain = TargetSpec(n_layers=4, chat_template=template is None), tiny_tokenizer()
    symbols = byte_symbols()
    evil = "".join(symbols[byte] for byte in EVIL.encode())
    tokenizer = Tokenizer([*plain.tokens, evil], plain.merges)
    weights = target_weights(spec, tokenizer)
    weights["lm_head.weight"][-1] = 0.0
    # Because of the constant component's weight, this token is always the most likely token.
    weights["lm_head.weight"][-1, 0] = 1000.0
    sound = path.with_suffix(".sound")
    write_gguf(sound, spec, tokenizer, weights, "F32", architecture)
    names = ("name", "author", "version", "license", "license.name", "description", "url")
    keys: dict[str, Any] = {f"general.{name}": EVIL for name in names}
    keys |= {f"evil.{EVIL}": "a key", "general.tags": [EVIL, EVIL]}
    keys |= {} if template is None else {"tokenizer.chat_template": template}
    return rewrite(sound, path, changed=keys)
