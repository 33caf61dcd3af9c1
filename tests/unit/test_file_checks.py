# SPDX-License-Identifier: MIT
"""Settings that llama.cpp loads, and that end or hang the process as soon as ggml computes with them."""

from __future__ import annotations

from pathlib import Path

import gguf
import numpy as np
import pytest

from eaglecpp import Engine
from eaglecpp.errors import GgufError
from helpers.tiny import TargetSpec, target_weights, write_gguf
from helpers.tiny_tokenizer import tiny_tokenizer

SPEC = TargetSpec.of("qwen2", n_layers=2)
Settings = dict[str, int | float | list[int]]
SECTIONS: Settings = {"rope.dimension_sections": [4, 2, 2, 0]}


def write(path: Path, arch: str, settings: Settings) -> Path:
    tokenizer = tiny_tokenizer()
    write_gguf(path, SPEC, tokenizer, target_weights(SPEC, tokenizer), "F32", arch, settings)
    return path


@pytest.mark.parametrize(("arch", "settings"), [("qwen2", {}), ("qwen2vl", SECTIONS)])
def test_sane_settings_compute(tmp_path: Path, arch: str, settings: Settings) -> None:
    with Engine.open(write(tmp_path / "target.gguf", arch, settings), n_ctx=64) as engine:
        assert len(engine.generate("ab", max_tokens=2).tokens) == 2


@pytest.mark.parametrize(
    ("arch", "settings", "found"),
    [
        ("qwen2vl", {"rope.dimension_sections": [0, 0, 0, 0]}, "is 0, 0, 0, 0, expected four sizes"),
        ("qwen2vl", {"rope.dimension_sections": [0, 0, 0, 8]}, "is 0, 0, 0, 8, expected four sizes"),
        ("qwen2vl", {"rope.dimension_sections": [-4, -4, 8, 0]}, "is -4, -4, 8, 0, expected four sizes"),
        ("qwen2vl", {"rope.dimension_sections": [2**30, 2**30, 2, 0]}, "expected four sizes"),
        ("qwen2", {"rope.dimension_count": 0}, "is 0, expected an even number from 2 to the head's 16"),
        ("qwen2", {"rope.dimension_count": 15}, "is 15, expected an even number"),
        ("qwen2", {"rope.dimension_count": 32}, "is 32, expected an even number"),
        ("qwen2", {"rope.dimension_count_swa": 32}, "is 32, expected an even number"),
        ("qwen2", {"attention.key_length_swa": 8}, "is 16, expected an even number from 2 to the head's 8"),
        ("qwen2", {"attention.layer_norm_rms_epsilon": -1.0}, "is -1, expected 0 or more"),
        ("qwen2", {"attention.layer_norm_rms_epsilon": float("nan")}, "is nan, expected 0 or more"),
    ],
)
def test_hostile_settings_are_refused_at_opening(
    tmp_path: Path, arch: str, settings: Settings, found: str
) -> None:
    path = write(tmp_path / "target.gguf", arch, settings)
    with pytest.raises(GgufError, match=rf"target\.gguf: key '{arch}\..*{found}"):
        Engine.open(path, n_ctx=64)


@pytest.mark.parametrize("number", [-1, 4])
def test_numbers_of_experts_that_are_not_there_are_refused(tmp_path: Path, number: int) -> None:
    """ggml would write beside its table."""
    path = tmp_path / "target.gguf"
    writer = gguf.GGUFWriter(path, "deepseek4")
    writer.add_expert_count(4)
    writer.add_tensor("blk.0.ffn_gate_tid2eid.weight", np.array([[0, 1], [2, number]], np.int32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    with pytest.raises(GgufError, match=rf"_tid2eid.weight' names expert {number}, expected one of 4"):
        Engine.open(path, n_ctx=64)


@pytest.mark.parametrize(
    ("arch", "there", "missing"),
    [
        ("hy_v3", ["ffn_gate_inp.weight", "ffn_down_exps.weight"], "ffn_up_exps.weight"),
        ("mimo2", ["ffn_gate_inp.weight", "ffn_gate_up_exps.weight"], "ffn_down_exps.weight"),
        ("qwen35", ["ssm_out.weight", "attn_gate.weight"], "attn_qkv.weight"),
        ("qwen3next", ["ssm_out.weight", "attn_qkv.weight"], "attn_gate.weight"),
        ("nemotron_h_moe", ["ssm_conv1d.weight"], "ssm_conv1d.bias"),
    ],
)
def test_a_tensor_that_llama_cpp_would_miss_is_asked_for(
    tmp_path: Path, arch: str, there: list[str], missing: str
) -> None:
    """Its loader takes these for optional, its graph computes with them."""
    path = tmp_path / "target.gguf"
    writer = gguf.GGUFWriter(path, arch)
    for name in there:
        writer.add_tensor(f"blk.3.{name}", np.zeros((2, 2, 2), np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    with pytest.raises(GgufError, match=rf"'blk.3.{there[0]}' needs 'blk.3.{missing}' beside it"):
        Engine.open(path, n_ctx=64)
