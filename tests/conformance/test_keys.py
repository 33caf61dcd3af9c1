# SPDX-License-Identifier: MIT
"""Checks that the converter writes the same names of keys and tensors that the native reader reads."""

from __future__ import annotations

import re
from pathlib import Path

from eaglecpp.convert import keys

# The converter does not declare the names of these keys, because it copies the keys from the target.
DRAFT = Path(__file__).parents[2] / "native" / "draft"
FROM_THE_TARGET = {"tokenizer.ggml.token_type"}


def native_names() -> set[str]:
    """Returns the names of keys in the native reader, and the names of tensors in the native graphs."""
    text = "".join((DRAFT / name).read_text(encoding="utf-8") for name in ("draft_file.cpp", "graph.cpp"))
    layers = re.findall(r'linear\([^;{]*?"([a-z_{}.]+)"', text)
    return {f"{layer}.{part}" for layer in layers for part in ("weight", "bias")} | set(
        re.findall(r'"([a-z0-9_{}]+(?:\.[a-z0-9_{}]+)+|d2t)"', text)
    ) - set(layers)


def test_the_reader_knows_every_key_of_the_drafter() -> None:
    written = {key.name for key in keys.KEYS if key.name.startswith("{arch}.")}
    assert written == {name for name in native_names() if name.startswith("{arch}.")}


def test_the_reader_knows_every_tensor() -> None:
    written = {tensor.name.replace("{a}", "{i}") for tensor in keys.TENSORS}
    endings = (".weight", ".bias", "_conv_base")
    tensors = {name for name in native_names() if name.endswith(endings) or name == "d2t"}
    assert written == tensors


def test_the_reader_uses_only_keys_that_the_converter_writes() -> None:
    written = {key.name for key in keys.KEYS} | {t.name.replace("{a}", "{i}") for t in keys.TENSORS}
    assert native_names() - written == FROM_THE_TARGET
