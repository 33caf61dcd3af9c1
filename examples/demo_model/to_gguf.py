# SPDX-License-Identifier: MIT
"""Writes the trained demo target with its tokenizer and chat template as a GGUF for llama.cpp."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import gguf
import numpy as np
import torch
from network import Shape
from tokenizer import CHAT_TEMPLATE, END, PRE_TOKENIZER, SPECIAL

__all__ = ["write_target"]


def write_target(checkpoint: Path, tokenizer: Path, out: Path, facts: Mapping[str, str]) -> None:
    """Writes `checkpoint`, a `target.pt`, with matrices in Q8_0. facts: values of `general.*` keys."""
    state = torch.load(checkpoint, weights_only=True, map_location="cpu")
    shape = Shape(**state["shape"])
    part = out.with_name(out.name + ".part")
    writer = gguf.GGUFWriter(part, "llama")
    for key, text in facts.items():
        writer.add_string(f"general.{key}", text)
    writer.add_file_type(gguf.LlamaFileType.MOSTLY_Q8_0)
    _add_shape(writer, shape)
    _add_tokenizer(writer, json.loads(tokenizer.read_text(encoding="utf-8")))
    q8_0 = gguf.GGMLQuantizationType.Q8_0
    for name, tensor in state["weights"].items():
        values = tensor.numpy().astype(np.float32)
        if values.ndim == 2:
            writer.add_tensor(_tensor_name(name), gguf.quantize(values, q8_0), raw_dtype=q8_0)
        else:
            writer.add_tensor(_tensor_name(name), values)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    part.replace(out)


def _tensor_name(name: str) -> str:
    return name if name.endswith(".weight") else f"{name}.weight"


def _add_shape(writer: gguf.GGUFWriter, shape: Shape) -> None:
    writer.add_context_length(shape.n_ctx)
    writer.add_embedding_length(shape.n_embd)
    writer.add_block_count(shape.n_layer)
    writer.add_feed_forward_length(shape.n_ff)
    writer.add_head_count(shape.n_head)
    writer.add_head_count_kv(shape.n_head_kv)
    writer.add_rope_dimension_count(shape.head_dim)
    writer.add_rope_freq_base(shape.rope_base)
    writer.add_layer_norm_rms_eps(shape.norm_eps)
    writer.add_vocab_size(shape.n_vocab)


def _add_tokenizer(writer: gguf.GGUFWriter, saved: dict[str, dict[str, dict[str, int]]]) -> None:
    ids = saved["model"]["vocab"]
    tokens = sorted(ids, key=lambda text: ids[text])
    special = set(SPECIAL)
    types = [gguf.TokenType.CONTROL if text in special else gguf.TokenType.NORMAL for text in tokens]
    merges = [pair if isinstance(pair, str) else " ".join(pair) for pair in saved["model"]["merges"]]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(PRE_TOKENIZER)
    writer.add_token_list(tokens)
    writer.add_token_types(types)
    writer.add_token_merges(merges)
    writer.add_bos_token_id(ids[SPECIAL[0]])
    writer.add_eos_token_id(ids[END])
    writer.add_add_bos_token(False)
    writer.add_chat_template(CHAT_TEMPLATE)
