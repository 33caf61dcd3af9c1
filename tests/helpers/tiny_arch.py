# SPDX-License-Identifier: MIT
"""Tiny targets whose caches are unusual: a sliding window (`gemma3`) and a recurrent state beside attention
(`lfm2`), each with a drafter that predicts it, and a recurrent state that cannot go back (`mamba`).

Made like `helpers.tiny.make_pair`, of whose weights they are variations: the residual stream stays mostly the
token embedding, so the hand-built drafter is right about half the time. GGUF only; random weights, no tokens
of meaning.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import gguf
import numpy as np

from eaglecpp.convert import convert_checkpoint
from helpers.tiny import GGUF_NAMES, Pair, TargetSpec, TinyTarget, Weights, copying_drafter, target_weights
from helpers.tiny import write_checkpoint as write_weights
from helpers.tiny_tokenizer import Tokenizer, tiny_tokenizer

__all__ = ["WINDOW", "ArchPair", "make_hybrid", "make_recurrent", "make_windowed"]

WINDOW = 13
_ATTENTION_LAYERS = (1, 4, 6)  # of the hybrid; the others are short convolutions
_L_CACHE = 3
_CONV, _STATE, _RANK = 4, 8, 4  # of the recurrent one


@dataclass(frozen=True)
class ArchPair:
    """Both files, F32."""

    target: Path
    draft: Path


def make_windowed(directory: Path) -> ArchPair:
    """`gemma3`: five of six layers see only the last `WINDOW` positions."""
    spec = TargetSpec(arch="gemma3")

    def keys(writer: gguf.GGUFWriter) -> None:
        writer.add_sliding_window(WINDOW)
        writer.add_head_count_kv(spec.n_kv_heads)

    def tensors(weights: Weights) -> Weights:
        out = _renamed(weights)
        # the graph multiplies the embedding by sqrt(n_embd) and norms what a block adds
        out["token_embd.weight"] = weights["model.embed_tokens.weight"] / spec.n_embd**0.5
        small = np.full(spec.n_embd, spec.mixing / spec.n_layers**0.5, np.float32)
        for i in range(spec.n_layers):
            out |= {f"blk.{i}.post_attention_norm.weight": small, f"blk.{i}.post_ffw_norm.weight": small}
            out |= _unit_norms(i, spec.head_dim)
        return out

    return _make(directory, spec, keys, tensors)


def make_hybrid(directory: Path) -> ArchPair:
    """`lfm2`: short convolutions with a recurrent state, and three layers of attention."""
    spec = TargetSpec(arch="lfm2", n_kv_heads=4, head_dim=16)

    def keys(writer: gguf.GGUFWriter) -> None:
        writer.add_shortconv_l_cache(_L_CACHE)
        writer.add_head_count_kv([spec.n_kv_heads * (i in _ATTENTION_LAYERS) for i in range(spec.n_layers)])

    def tensors(weights: Weights) -> Weights:
        rng, width = np.random.default_rng(spec.seed + 7), spec.n_embd
        out = _renamed(weights)
        out["token_embd_norm.weight"] = out.pop("output_norm.weight")
        for i in range(spec.n_layers):
            if i in _ATTENTION_LAYERS:
                out |= _unit_norms(i, spec.head_dim)
                continue
            for role in ("attn_q", "attn_k", "attn_v", "attn_output"):
                del out[f"blk.{i}.{role}.weight"]
            added = spec.mixing / spec.n_layers**0.5
            for role, shape, std in (
                ("conv", (width, _L_CACHE), 0.7),
                ("in_proj", (3 * width, width), 1.0 / width**0.5),
                ("out_proj", (width, width), added / width**0.5),
            ):
                out[f"blk.{i}.shortconv.{role}.weight"] = rng.normal(0.0, std, shape).astype(np.float32)
        return out

    return _make(directory, spec, keys, tensors)


def make_recurrent(directory: Path) -> Path:
    """`mamba`: nothing but recurrent states, of which llama.cpp keeps no copies to go back to."""
    spec, tokenizer = TargetSpec(arch="mamba"), tiny_tokenizer()
    inner = 2 * spec.n_embd

    def keys(writer: gguf.GGUFWriter) -> None:
        writer.add_ssm_conv_kernel(_CONV)
        writer.add_ssm_inner_size(inner)
        writer.add_ssm_state_size(_STATE)
        writer.add_ssm_time_step_rank(_RANK)

    rng = np.random.default_rng(spec.seed + 8)
    weights = _renamed(target_weights(spec, tokenizer))
    tensors = {name: value for name, value in weights.items() if not name.startswith("blk.")}
    for i in range(spec.n_layers):
        added = spec.mixing / spec.n_layers**0.5
        tensors[f"blk.{i}.attn_norm.weight"] = weights[f"blk.{i}.attn_norm.weight"]
        tensors[f"blk.{i}.ssm_a"] = -np.tile(np.arange(1.0, _STATE + 1), (inner, 1)).astype(np.float32)
        tensors[f"blk.{i}.ssm_d"] = np.ones(inner, np.float32)
        for role, shape, std in (
            ("in.weight", (2 * inner, spec.n_embd), 1.0 / spec.n_embd**0.5),
            ("conv1d.weight", (inner, _CONV), 0.5),
            ("conv1d.bias", (inner,), 0.1),
            ("x.weight", (_RANK + 2 * _STATE, inner), 1.0 / inner**0.5),
            ("dt.weight", (inner, _RANK), 0.5),
            ("dt.bias", (inner,), 0.5),
            ("out.weight", (spec.n_embd, inner), added / inner**0.5),
        ):
            tensors[f"blk.{i}.ssm_{role}"] = rng.normal(0.0, std, shape).astype(np.float32)
    path = directory / "target-mamba.gguf"
    _write(path, spec, tokenizer, keys, tensors)
    return path


def _make(
    directory: Path,
    spec: TargetSpec,
    keys: Callable[[gguf.GGUFWriter], None],
    tensors: Callable[[Weights], Weights],
) -> ArchPair:
    tokenizer = tiny_tokenizer()
    weights = target_weights(spec, tokenizer)
    target = directory / f"target-{spec.arch}.gguf"
    _write(target, spec, tokenizer, keys, tensors(weights))
    pair = _drafter(directory, TinyTarget(spec, directory, target, weights), tokenizer)
    draft = directory / f"draft-{spec.arch}.gguf"
    convert_checkpoint(pair.checkpoint, target=target, out=draft, type="F32", aux_layers=pair.layers)
    return ArchPair(target, draft)


def _drafter(directory: Path, target: TinyTarget, tokenizer: Tokenizer) -> Pair:
    spec, layers = target.spec, [2, 4, 5]
    plain = [i for i in range(len(tokenizer.tokens)) if tokenizer.is_plain(i)]
    weights = dict(copying_drafter(target, layers, plain))
    maps = {
        "d2t": np.array(plain) - np.arange(len(plain)),
        "t2d": np.isin(np.arange(target.n_vocab), plain),
    }
    config = TargetSpec.of("llama", n_kv_heads=spec.n_kv_heads, head_dim=spec.head_dim).config(target.n_vocab)
    config |= {
        "architectures": ["LlamaForCausalLMEagle3"],
        "num_hidden_layers": 1,
        "intermediate_size": 2 * spec.n_embd,
        "draft_vocab_size": len(plain),
        "target_hidden_size": spec.n_embd,
        "eagle_aux_hidden_state_layer_ids": layers,
    }
    checkpoint = write_weights(directory / f"draft-{spec.arch}", config, weights | maps)
    return Pair(target, checkpoint, layers)


def _renamed(weights: Weights) -> Weights:
    """Under GGUF names, q and k rows as they are: both architectures rotate halves."""
    top = {"model.embed_tokens": "token_embd", "lm_head": "output", "model.norm": "output_norm"}
    out: Weights = {}
    for name, value in weights.items():
        stem, kind = name.rsplit(".", 1)
        if stem in top:
            out[f"{top[stem]}.{kind}"] = value
            continue
        _, _, layer, role = stem.split(".", 3)
        out[f"blk.{layer}.{GGUF_NAMES[role]}.{kind}"] = value
    return out


def _unit_norms(layer: int, head_dim: int) -> Weights:
    return {f"blk.{layer}.attn_{x}_norm.weight": np.ones(head_dim, np.float32) for x in "qk"}


def _write(
    path: Path,
    spec: TargetSpec,
    tokenizer: Tokenizer,
    keys: Callable[[gguf.GGUFWriter], None],
    tensors: Weights,
) -> None:
    writer = gguf.GGUFWriter(path, spec.arch)
    writer.add_context_length(spec.n_ctx)
    writer.add_embedding_length(spec.n_embd)
    writer.add_block_count(spec.n_layers)
    writer.add_feed_forward_length(spec.n_ff)
    writer.add_head_count(spec.n_heads)
    writer.add_key_length(spec.head_dim)
    writer.add_value_length(spec.head_dim)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_freq_base(10000.0)
    writer.add_vocab_size(len(tokenizer.tokens))
    writer.add_file_type(int(gguf.LlamaFileType.ALL_F32))
    tokenizer.add_to(writer, False)
    keys(writer)
    for name, value in tensors.items():
        writer.add_tensor(name, np.ascontiguousarray(value, np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
