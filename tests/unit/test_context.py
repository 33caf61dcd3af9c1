# SPDX-License-Identifier: MIT
"""Tests the default context length, which depends on the model and the free memory."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest

from eaglecpp import Engine
from eaglecpp.errors import InvalidValueError
from eaglecpp.opening.context import choose_n_ctx, head_keys, kv_bytes_per_token
from eaglecpp.opening.find import find_here
from eaglecpp.opening.plan import make_plan
from helpers.gguf_writer import finish
from helpers.script import run_script
from helpers.tiny_bert import BertSpec, make_bert
from helpers.tiny_tokenizer import tiny_tokenizer

GIB = 2**30


def write_model(
    path: Path,
    n_train: int | None = 131072,
    n_kv_heads: int | list[int] = 8,
    mla: bool = False,
    n_interval: int = 0,
) -> Path:
    """Writes the header of an 8B Llama. In memory, a token of the context needs 128 KiB for keys and values,
    1 KiB for the mask, and 64 KiB for scores.
    """
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_name("big")
    writer.add_tags(["text-generation"])  # files of the Hub also begin with an array of strings
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
    if n_interval:
        writer.add_full_attention_interval(n_interval)
    if mla:
        writer.add_key_length_mla(192)
        writer.add_value_length_mla(128)
    writer.add_tensor("token_embd.weight", np.zeros((2, 32), np.float32))
    finish(writer)
    return path


def write_gpt2(path: Path, n_ctx: int) -> Path:
    """Writes a tiny model of one layer with a table of positions."""
    rng, tokenizer, n_embd, n_ff = np.random.default_rng(1), tiny_tokenizer(), 64, 128
    writer = gguf.GGUFWriter(path, "gpt2")
    writer.add_context_length(n_ctx)
    writer.add_embedding_length(n_embd)
    writer.add_block_count(1)
    writer.add_feed_forward_length(n_ff)
    writer.add_head_count(4)
    writer.add_layer_norm_eps(1e-5)
    tokenizer.add_to(writer, False)
    rows = {"token_embd": (len(tokenizer.tokens), n_embd), "position_embd": (n_ctx, n_embd)}
    rows |= {"blk.0.attn_qkv": (3 * n_embd, n_embd), "blk.0.attn_output": (n_embd, n_embd)}
    rows |= {"blk.0.ffn_up": (n_ff, n_embd), "blk.0.ffn_down": (n_embd, n_ff)}
    for name, shape in rows.items():
        writer.add_tensor(f"{name}.weight", rng.standard_normal(shape).astype(np.float32) / 8)
        if name.startswith("blk"):
            writer.add_tensor(f"{name}.bias", np.zeros(shape[0], np.float32))
    for name in ("output_norm", "blk.0.attn_norm", "blk.0.ffn_norm"):
        writer.add_tensor(f"{name}.weight", np.ones(n_embd, np.float32))
        writer.add_tensor(f"{name}.bias", np.zeros(n_embd, np.float32))
    finish(writer)
    return path


F32, Q8_0 = ({"type_k": kind, "type_v": kind} for kind in ("f32", "q8_0"))


@pytest.mark.parametrize(
    ("model", "n_free", "options", "n_ctx"),
    [
        *[({}, *one) for one in ((100, {}, 131072), (65, {}, 131072), (64, {}, 65536), (24, {}, 32768))],
        ({}, 8, {}, 8192),
        ({}, 1, {}, 4096),
        ({}, 24, F32, 16384),
        # attention scores need memory; with "auto", the scores are F32
        ({}, 24, {"flash_attn": "off"}, 16384),
        ({}, 40, {}, 65536),
        ({}, 40, Q8_0, 131072),
        ({}, 66, {"n_ubatch": 4096}, 65536),
        ({}, 20, {"n_sequences": 2}, 16384),
        ({}, 20, {"n_weights": 10 * GIB}, 16384),
        ({"n_kv_heads": [8] * 16 + [0] * 16}, 40, {}, 131072),
        ({"mla": True}, 40, {}, 131072),  # latent attention stores no values
        # Three of four layers have a recurrent state instead of keys and values.
        ({"n_interval": 4}, 20, {}, 131072),
        *[({"n_train": n}, 100, {}, n) for n in (2048, 4096, 6000, 20000)],
        ({"n_train": None}, 100, {}, 4096),
    ],
)
def test_the_context_takes_a_quarter_of_the_free_memory_up_to_the_training_length(
    tmp_path: Path, model: dict[str, Any], n_free: int, options: dict[str, Any], n_ctx: int
) -> None:
    path = write_model(tmp_path / "m.gguf", **model)
    chosen, why = choose_n_ctx(path, None, options, options.get("n_weights", 0), n_free * GIB)
    assert chosen == n_ctx
    assert (why == "everything the model was trained for") == (n_ctx == model.get("n_train", 131072))


PROGRAM = """
import os
os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
from eaglecpp.lowlevel import system_info
print(system_info()["n_cores"])
"""


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="the system has no CPU sets")
def test_only_the_cpus_of_this_process_count() -> None:
    assert run_script(PROGRAM).stdout == "1\n"


def test_a_drafters_cache_counts_as_part_of_the_context(tmp_path: Path) -> None:
    target, draft = write_model(tmp_path / "m.gguf"), write_model(tmp_path / "d.gguf")
    assert choose_n_ctx(target, None, {}, 0, 70 * GIB)[0] == 131072
    assert choose_n_ctx(target, draft, {}, 0, 70 * GIB)[0] == 65536


@pytest.mark.parametrize(
    ("options", "is_said"),
    [
        ({"n_ctx": -1}, False),
        ({"n_ctx": 131072}, False),
        ({"n_ctx": 131073}, True),
        ({"n_ctx": 262144, "rope_freq_scale": 0.5}, False),
    ],
)
def test_a_context_beyond_training_is_reported_unless_positions_are_scaled(
    tmp_path: Path, options: dict[str, Any], is_said: bool
) -> None:
    plan = make_plan(find_here(write_model(tmp_path / "m.gguf")), options=options)
    assert any("was trained for 131072 tokens" in text for text in plan.notices) == is_said


def test_a_context_beyond_a_table_of_positions_is_refused(tmp_path: Path) -> None:
    """Tests that a context beyond the table of positions is refused, because ggml would end the process when
    a graph looks up a missing row.
    """
    path = write_gpt2(tmp_path / "m.gguf", n_ctx=32)
    with Engine.open(path, n_ctx=32) as engine:
        assert engine.generate("ab", max_tokens=40, ignore_eos=True).finish_reason == "length"
    with pytest.raises(InvalidValueError, match=r"n_ctx is 33, but this model has only 32 positions"):
        Engine.open(path, n_ctx=33)


def test_an_encoder_model_keeps_no_cache(tmp_path: Path) -> None:
    model = make_bert(tmp_path / "m.gguf", BertSpec(n_ctx=8192))
    assert choose_n_ctx(model, None, {}, 0, 0)[0] == 8192
    assert kv_bytes_per_token(head_keys(model), "f16", "f16") == 0


@pytest.mark.parametrize("damage", [b"", b"GGUF", b"notes, no weights" * 9, b"GGUF\3\0\0\0" + b"\xff" * 60])
def test_an_invalid_file_is_left_to_the_engine(tmp_path: Path, damage: bytes) -> None:
    path = tmp_path / "x.gguf"
    path.write_bytes(damage)
    assert choose_n_ctx(path, None, {}, 0, GIB)[0] == 4096
    assert choose_n_ctx(tmp_path / "missing.gguf", None, {}, 0, GIB)[0] == 4096
