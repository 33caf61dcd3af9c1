# SPDX-License-Identifier: MIT
"""The default context length: from the model and the free memory."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest

from eaglecpp.opening.context import choose_n_ctx, head_keys, kv_bytes_per_token
from helpers.gguf_writer import finish
from helpers.tiny_bert import BertSpec, make_bert

GIB = 2**30


def write_model(
    path: Path, n_train: int | None = 131072, n_kv_heads: int | list[int] = 8, mla: bool = False
) -> Path:
    """The head of an 8B Llama: 128 KiB of keys and values per token, 64 KiB of scores."""
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_name("big")
    writer.add_tags(
        ["text-generation"]
    )  # as nearly every file on the Hub has: an array of strings comes first
    if n_train is not None:
        writer.add_context_length(n_train)
    writer.add_embedding_length(4096)
    writer.add_block_count(32)
    writer.add_head_count(32)
    writer.add_head_count_kv(n_kv_heads)
    writer.add_tokenizer_model("gpt2")
    writer.add_token_list(["a", "b"])
    writer.add_array("tokenizer.ggml.merges", ["a b"] * 1000)
    writer.add_key_length(128)
    if mla:
        writer.add_key_length_mla(192)
        writer.add_value_length_mla(128)
    writer.add_tensor("token_embd.weight", np.zeros((2, 32), np.float32))
    finish(writer)
    return path


F32, Q8_0 = ({"type_k": kind, "type_v": kind} for kind in ("f32", "q8_0"))


@pytest.mark.parametrize(
    ("model", "n_free", "options", "n_ctx"),
    [
        *[({}, *one) for one in ((100, {}, 32768), (24, {}, 32768), (23, {}, 16384), (12, {}, 16384))],
        ({}, 8, {}, 8192),
        ({}, 1, {}, 4096),
        ({}, 24, F32, 16384),
        ({}, 24, {"flash_attn": "off"}, 16384),  # then "auto" is F32
        ({}, 20, {}, 16384),
        ({}, 20, Q8_0, 32768),
        ({}, 20, {"n_ubatch": 64}, 32768),
        ({}, 20, {"n_sequences": 2}, 8192),
        ({}, 20, {"n_weights": 10 * GIB}, 8192),
        ({"n_kv_heads": [8] * 16 + [0] * 16}, 20, {}, 32768),
        ({"mla": True}, 8, {}, 16384),  # keeps no values
        *[({"n_train": n}, 100, {}, n) for n in (2048, 4096, 6000, 20000)],
        ({"n_train": None}, 100, {}, 4096),
    ],
)
def test_a_quarter_of_the_free_memory_decides_up_to_what_the_model_was_trained_for(
    tmp_path: Path, model: dict[str, Any], n_free: int, options: dict[str, Any], n_ctx: int
) -> None:
    path = write_model(tmp_path / "m.gguf", **model)
    chosen, why = choose_n_ctx(path, options, options.get("n_weights", 0), n_free * GIB)
    assert chosen == n_ctx
    assert (why == "everything the model was trained for") == (n_ctx == model.get("n_train", 131072))


def test_a_model_that_reads_texts_at_once_keeps_no_cache(tmp_path: Path) -> None:
    model = make_bert(tmp_path / "m.gguf", BertSpec(n_ctx=8192))
    assert choose_n_ctx(model, {}, 0, 0)[0] == 8192
    assert kv_bytes_per_token(head_keys(model), "f16", "f16") == 0


@pytest.mark.parametrize("damage", [b"", b"GGUF", b"notes, no weights" * 9, b"GGUF\3\0\0\0" + b"\xff" * 60])
def test_a_file_that_is_no_model_is_left_to_the_engine(tmp_path: Path, damage: bytes) -> None:
    path = tmp_path / "x.gguf"
    path.write_bytes(damage)
    assert choose_n_ctx(path, {}, 0, GIB)[0] == 4096
    assert choose_n_ctx(tmp_path / "missing.gguf", {}, 0, GIB)[0] == 4096


def test_keys_are_found_before_and_behind_long_lists(tmp_path: Path) -> None:
    """Nearly every file on the Hub begins with lists of strings: its tags and languages."""
    keys = head_keys(write_model(tmp_path / "m.gguf"))
    assert keys["llama.block_count"] == 32
    assert keys["llama.attention.key_length"] == 128
    assert keys["general.name"] == "big"
    assert "tokenizer.ggml.merges" not in keys, "long lists are passed over"


def test_truncated_heads_give_what_they_have(tmp_path: Path) -> None:
    data = write_model(tmp_path / "m.gguf").read_bytes()
    path = tmp_path / "cut.gguf"
    for size in range(0, 600, 7):
        path.write_bytes(data[:size])
        assert choose_n_ctx(path, {}, 0, GIB)[0] == 4096
