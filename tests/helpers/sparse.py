# SPDX-License-Identifier: MIT
"""Writes models of real sizes, whose files consist of a header and a hole. The models are for the counting
device in its idle mode, which does not compute. On this device, such a model causes the same waits and copies
as a real model.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import gguf
import numpy as np
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType, GGUFWriter

from helpers.tiny import TargetSpec, add_sizes

WIDTH, N_FF, N_HEADS, N_KV_HEADS, HEAD = 4096, 14336, 32, 8, 128
N_LAYERS, N_VOCAB, N_VOCAB_DRAFT = 32, 128256, 32000
SPEC = TargetSpec("llama", N_LAYERS, WIDTH, N_HEADS, N_KV_HEADS, HEAD, N_FF, n_ctx=40960)
BLOCK, RANK, GROUP = 8, 256, 16
F32, Q4_0 = GGMLQuantizationType.F32, GGMLQuantizationType.Q4_0


def _begun(path: Path, architecture: str, n_layers: int) -> GGUFWriter:
    """Returns a writer of a model's file, which has the sizes and the tokenizer."""
    writer = GGUFWriter(path, architecture)
    add_sizes(writer, replace(SPEC, n_layers=n_layers), N_VOCAB)
    writer.add_head_count_kv(N_KV_HEADS)
    writer.add_tokenizer_model("llama")
    writer.add_token_list([f"t{i}" for i in range(N_VOCAB)])
    writer.add_token_scores([0.0] * N_VOCAB)
    writer.add_token_types([gguf.TokenType.NORMAL] * N_VOCAB)
    return writer


def _write(path: Path, writer: GGUFWriter, tensors: dict[str, tuple[int, ...]]) -> None:
    sizes = []
    for name, shape in tensors.items():
        kind = F32 if len(shape) == 1 or name.endswith("conv_base") else Q4_0
        block, block_bytes = GGML_QUANT_SIZES[kind]
        sizes.append(int(np.prod(shape)) // int(block) * int(block_bytes))
        if name == "d2t":
            kind, sizes[-1] = GGMLQuantizationType.I64, 8 * shape[0]
        writer.add_tensor_info(name, shape, np.dtype(np.float32), sizes[-1], kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    assert writer.fout is not None
    file = writer.fout[0]
    writer.write_padding(file, file.tell())
    for name, n_bytes in zip(tensors, sizes, strict=True):
        if name == "d2t":
            file.write(np.arange(N_VOCAB_DRAFT, dtype=np.int64).tobytes())
        else:
            file.seek(n_bytes, 1)
        writer.write_padding(file, n_bytes)
    file.truncate()
    writer.close()
    assert path.stat().st_blocks * 512 < 100 << 20, "this file system does not support sparse files"


def _layer(name: str, n_in: int) -> dict[str, tuple[int, ...]]:
    return {
        f"{name}.attn_norm.weight": (WIDTH,),
        f"{name}.ffn_norm.weight": (WIDTH,),
        f"{name}.attn_q.weight": (N_HEADS * HEAD, n_in),
        f"{name}.attn_k.weight": (N_KV_HEADS * HEAD, n_in),
        f"{name}.attn_v.weight": (N_KV_HEADS * HEAD, n_in),
        f"{name}.attn_output.weight": (WIDTH, N_HEADS * HEAD),
        f"{name}.ffn_gate.weight": (N_FF, WIDTH),
        f"{name}.ffn_up.weight": (N_FF, WIDTH),
        f"{name}.ffn_down.weight": (WIDTH, N_FF),
    }


def _target_layers(n_layers: int) -> list[int]:
    """Returns the layers whose hidden states a drafter reads."""
    return [2, n_layers // 2, n_layers - 3]


def write_target(path: Path, n_layers: int = N_LAYERS) -> None:
    """Writes a target of the llama architecture whose layers have the sizes of an 8B model."""
    writer = _begun(path, "llama", n_layers)
    writer.add_rope_dimension_count(HEAD)
    tensors: dict[str, tuple[int, ...]] = {
        "token_embd.weight": (N_VOCAB, WIDTH),
        "output_norm.weight": (WIDTH,),
        "output.weight": (N_VOCAB, WIDTH),
    }
    for i in range(n_layers):
        tensors |= _layer(f"blk.{i}", WIDTH)
    _write(path, writer, tensors)


def write_drafter(path: Path, n_layers: int = N_LAYERS) -> None:
    """Writes an EAGLE-3 drafter for a target of `write_target`. The drafter uses the target's embeddings, and
    has its own draft vocabulary.
    """
    writer = _begun(path, "eagle3", 1)
    writer.add_array("eagle3.target_layers", _target_layers(n_layers))
    writer.add_uint32("eagle3.target_hidden_size", WIDTH)
    tensors: dict[str, tuple[int, ...]] = {
        "fc.weight": (WIDTH, 3 * WIDTH),
        "output_norm.weight": (WIDTH,),
        "output.weight": (N_VOCAB_DRAFT, WIDTH),
        "blk.0.attn_norm_2.weight": (WIDTH,),
        "d2t": (N_VOCAB_DRAFT,),
        **_layer("blk.0", 2 * WIDTH),
    }
    _write(path, writer, tensors)


def write_block_drafter(path: Path, kind: str) -> None:
    """Writes a "dflash", "dspark" or "dflash2" drafter of two layers for a target of `write_target`. The
    drafter uses the target's embeddings and head.
    """
    writer = _begun(path, "dflash", 2)
    writer.add_array("dflash.target_layers", _target_layers(N_LAYERS))
    writer.add_uint32("dflash.target_hidden_size", WIDTH)
    writer.add_uint32("dflash.block_size", BLOCK)
    writer.add_bool("dflash.sample_from_anchor", kind == "dspark")
    writer.add_mask_token_id(4)
    tensors: dict[str, tuple[int, ...]] = {
        "fc.weight": (WIDTH, 3 * WIDTH),
        "enc.output_norm.weight": (WIDTH,),
        "output_norm.weight": (WIDTH,),
        **_layer("blk.0", WIDTH),
        **_layer("blk.1", WIDTH),
    }
    if kind == "dspark":
        tensors |= {f"markov_w{i}.weight": (N_VOCAB, RANK) for i in (1, 2)}
        tensors |= {"conf_proj.weight": (1, WIDTH + RANK), "conf_proj.bias": (1,)}
    if kind == "dflash2":
        for key, value in (("selector_rank", RANK), ("selector_top_k", 16), ("conv_kernel_size", 2)):
            writer.add_uint32(f"dflash.{key}", value)
        writer.add_uint32("dflash.conv_group_size", GROUP)
        tensors |= {f"selector_{side}.weight": (N_VOCAB, RANK) for side in ("predecessor", "successor")}
        tensors["selector_hidden.weight"] = (RANK, WIDTH)
        for i, sublayer in ((i, sublayer) for i in range(2) for sublayer in ("attn", "ffn")):
            tensors[f"blk.{i}.{sublayer}_conv_base"] = (2, 2, WIDTH)
            tensors[f"blk.{i}.{sublayer}_conv_proj.weight"] = (4 * WIDTH // GROUP, WIDTH)
    _write(path, writer, tensors)
