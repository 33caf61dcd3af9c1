# SPDX-License-Identifier: MIT
"""The default context length: from the model and the free memory."""

from __future__ import annotations

from pathlib import Path

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


@pytest.mark.parametrize(
    ("n_free", "n_ctx"),
    [(100, 32768), (24, 32768), (23, 16384), (12, 16384), (8, 8192), (1, 4096)],
)
def test_a_quarter_of_the_free_memory_decides(tmp_path: Path, n_free: int, n_ctx: int) -> None:
    model = write_model(tmp_path / "m.gguf")
    choice = choose_n_ctx(model, n_free=n_free * GIB + model.stat().st_size)
    assert (choice.n_ctx, choice.n_train) == (n_ctx, 131072)
    assert "GiB" in choice.why


def test_a_model_that_reads_texts_at_once_keeps_no_cache(tmp_path: Path) -> None:
    model = make_bert(tmp_path / "m.gguf", BertSpec(n_ctx=8192))
    assert choose_n_ctx(model, n_free=0).n_ctx == 8192
    assert kv_bytes_per_token(head_keys(model), "f16", "f16") == 0


def test_a_smaller_cache_type_makes_room(tmp_path: Path) -> None:
    model = write_model(tmp_path / "m.gguf")
    assert choose_n_ctx(model, n_free=20 * GIB).n_ctx == 16384
    assert choose_n_ctx(model, type_k="q8_0", type_v="q8_0", n_free=20 * GIB).n_ctx == 32768
    assert choose_n_ctx(model, n_ubatch=64, n_free=20 * GIB).n_ctx == 32768


def test_the_usual_cache_is_of_halves(tmp_path: Path) -> None:
    model = write_model(tmp_path / "m.gguf")
    room = {
        kind: choose_n_ctx(model, type_k=kind, type_v=kind, n_free=24 * GIB + model.stat().st_size).n_ctx
        for kind in ("auto", "f16", "f32")
    }
    assert room == {"auto": 32768, "f16": 32768, "f32": 16384}


def test_heads_may_be_given_per_layer(tmp_path: Path) -> None:
    model = write_model(tmp_path / "m.gguf", n_kv_heads=[8] * 16 + [0] * 16)
    assert choose_n_ctx(model, n_free=20 * GIB).n_ctx == 32768


def test_latent_attention_keeps_no_values(tmp_path: Path) -> None:
    usual, latent = (write_model(tmp_path / f"{mla}.gguf", mla=mla) for mla in (False, True))
    assert choose_n_ctx(usual, n_free=8 * GIB + usual.stat().st_size).n_ctx == 8192
    assert choose_n_ctx(latent, n_free=8 * GIB + latent.stat().st_size).n_ctx == 16384


@pytest.mark.parametrize(("n_train", "n_ctx"), [(2048, 2048), (4096, 4096), (6000, 6000), (20000, 20000)])
def test_no_longer_than_the_model_was_trained_for(tmp_path: Path, n_train: int, n_ctx: int) -> None:
    choice = choose_n_ctx(write_model(tmp_path / "m.gguf", n_train), n_free=100 * GIB)
    assert (choice.n_ctx, choice.why) == (n_ctx, "everything the model was trained for")


def test_the_weights_come_off_the_free_memory(tmp_path: Path) -> None:
    model = write_model(tmp_path / "m.gguf")
    with model.open("r+b") as file:
        file.truncate(80 * GIB)  # sparse
    assert choose_n_ctx(model, n_free=100 * GIB).n_ctx == 16384


def test_what_is_not_known_means_4096(tmp_path: Path) -> None:
    assert choose_n_ctx(write_model(tmp_path / "m.gguf", None), n_free=100 * GIB).n_ctx == 4096
    assert choose_n_ctx(write_model(tmp_path / "n.gguf"), n_free=None).n_ctx == 4096


@pytest.mark.parametrize("damage", [b"", b"GGUF", b"notes, no weights" * 9, b"GGUF\3\0\0\0" + b"\xff" * 60])
def test_a_file_that_is_no_model_is_left_to_the_engine(tmp_path: Path, damage: bytes) -> None:
    path = tmp_path / "x.gguf"
    path.write_bytes(damage)
    assert choose_n_ctx(path, n_free=GIB).n_ctx == 4096
    assert choose_n_ctx(tmp_path / "missing.gguf", n_free=GIB).n_ctx == 4096


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
        assert choose_n_ctx(path, n_free=GIB).n_ctx == 4096


def test_conversations_share_the_memory_that_all_files_leave(tmp_path: Path) -> None:
    model = write_model(tmp_path / "m.gguf")
    alone = choose_n_ctx(model, n_free=20 * GIB)
    assert choose_n_ctx(model, n_free=20 * GIB, n_sequences=2).n_ctx < alone.n_ctx
    assert choose_n_ctx(model, n_free=20 * GIB, n_weights=10 * GIB).n_ctx < alone.n_ctx
