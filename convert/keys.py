# SPDX-License-Identifier: MIT
"""Table of all GGUF keys and tensors in drafter files.

`docs/gguf-format.md` documents the keys and tensors, and `native/draft/draft_file.cpp` reads them. A
conformance test compares the native reader with this table. `mapping.py` and `metadata.py` use the table. To
add a switch, add a row here. Files have the keys in this order.

Five architectures share the names of keys and tensors. `eagle3` is the format of llama.cpp's own converter
and loader (ggml-org/llama.cpp: conversion/llama.py, src/models/eagle3.cpp). `eagle31` is for drafters that
llama.cpp's loader would compute wrongly. `eagle` is for EAGLE-1 and EAGLE-2, whose fc also reads the token's
embedding. A block drafter (DFlash, DSpark, DFlash2) has the architecture `dflash` if llama.cpp runs it
correctly (src/models/dflash.cpp), else `dflash_ex`.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

EAGLE = "eagle"
EAGLE3 = "eagle3"
EAGLE31 = "eagle31"
DFLASH = "dflash"
DFLASH_EX = "dflash_ex"
BLOCKS = (DFLASH, DFLASH_EX)
ALL = (EAGLE, EAGLE3, EAGLE31, *BLOCKS)

Presence = Literal["required", "always", "optional"]
When = Literal[
    "always", "optional", "fc_norm", "norm_before_fc", "qk_norm", "reduced_vocab", "rope_freqs", "q_rank",
    "no_q_rank", "own_values", "gemma", "parallel", "markov", "confidence", "selector", "conv", "gated",
]  # fmt: skip
Attention = Literal["", "full", "latent"]
TensorRole = Literal["fc", "head", "embedding", "matrix", "norm", "bias", "freqs", "map"]


@dataclass(frozen=True)
class KeySpec:
    """One metadata key.

    name: `{arch}` stands for the file's architecture. type: u32, f32, bool, string, i32[], f32[], bool[].
    presence: `required`: readers reject a file without it. `always`: eaglecpp always writes the key, but
    files of llama.cpp's converter may lack it, so readers have a default. `optional`: written only if it
    differs from the default. stock_default: readers have a default for llama.cpp's own `dflash` files, even
    if required. field: where a `DraftSpec` has the value, "" = `metadata.py` computes it. default: the value
    that is not written.
    """

    name: str
    type: str
    presence: Presence
    archs: tuple[str, ...] = ALL
    field: str = ""
    default: Any = None
    stock_default: bool = False


@dataclass(frozen=True)
class TensorSpec:
    """One tensor, or a tensor per layer (`{i}`) or per aux feature (`{a}`).

    source: name in the canonical checkpoint layout (`mapping.py`).
    shape: slowest axis first. Symbols: H, Ht, A, V, Vd, I, hd as in drafter checkpoints, Q = heads * hd,
    KV = kv heads * hd, U = 2H in layer 0 of EAGLE-3, else H, F = A * Ht, in `eagle` 2H. Block drafters: R =
    rank of the Markov head, r = rank of the selector, T = taps of a convolution, G = groups of a convolution.
    Latent attention: ql, kl, dn, dr, dv = ranks and head widths. O = heads * dv, or Q without latent
    attention; nh = heads.
    when: `always`, `optional` (its presence is the switch), or the switch that requires the tensor.
    role: row of the type table in `quantize.py`. attention: the kind of attention that has the tensor, "" =
    both kinds.
    part: `keys` or `values`: this tensor has these rows of each head of kv_b_proj; keys are transposed.
    """

    name: str
    source: str
    shape: tuple[str, ...]
    role: TensorRole
    when: When
    archs: tuple[str, ...] = ALL
    first_layer_only: bool = False
    attention: Attention = ""
    part: Literal["", "keys", "values"] = ""


_3 = (EAGLE3, EAGLE31)  # layouts with tensors and keys that EAGLE-1 and EAGLE-2 lack
_31 = (EAGLE31,)
_OURS = (EAGLE, EAGLE31)
_MORE = (EAGLE31, *BLOCKS)
_EX = (DFLASH_EX,)
_BIASED = (*_OURS, *_EX)

KEYS: tuple[KeySpec, ...] = (
    KeySpec("general.architecture", "string", "required"),
    KeySpec("general.type", "string", "always"),
    KeySpec("general.name", "string", "always"),
    KeySpec("general.size_label", "string", "always"),
    KeySpec("general.file_type", "u32", "always"),
    KeySpec("general.quantization_version", "u32", "always"),
    KeySpec("tokenizer.ggml.mask_token_id", "u32", "required", BLOCKS, "block.mask_token"),
    KeySpec("{arch}.block_count", "u32", "required", ALL, "n_layers"),
    KeySpec("{arch}.context_length", "u32", "required", ALL, "context_length"),
    KeySpec("{arch}.embedding_length", "u32", "required", ALL, "hidden_size"),
    KeySpec("{arch}.feed_forward_length", "u32", "required", ALL, "intermediate_size"),
    KeySpec("{arch}.attention.head_count", "u32", "required", ALL, "n_heads"),
    KeySpec("{arch}.attention.head_count_kv", "u32", "required"),
    KeySpec("{arch}.attention.key_length", "u32", "always"),
    KeySpec("{arch}.attention.value_length", "u32", "always"),
    KeySpec("{arch}.attention.layer_norm_rms_epsilon", "f32", "required", ALL, "rms_norm_eps"),
    KeySpec("{arch}.vocab_size", "u32", "always", ALL, "vocab_size"),
    KeySpec("{arch}.target_layers", "i32[]", "required", ALL, "aux_layers"),
    KeySpec("{arch}.target_hidden_size", "u32", "required", ALL, "target_hidden_size", stock_default=True),
    KeySpec("{arch}.norm_before_residual", "bool", "always", _3, "norm_before_residual"),
    KeySpec("{arch}.norm_before_fc", "bool", "always", _3, "norm_before_fc"),
    KeySpec("{arch}.rope.freq_base", "f32", "always", ALL, "rope.theta"),
    KeySpec("{arch}.rope.dimension_count", "u32", "always", ALL, "rope_dim"),
    KeySpec("{arch}.rope.scaling.type", "string", "optional", ALL, "rope.by_ggml.scaling"),
    KeySpec("{arch}.rope.scaling.factor", "f32", "optional", ALL, "rope.by_ggml.factor"),
    KeySpec("{arch}.rope.scaling.original_context_length", "u32", "optional", ALL,
            "rope.by_ggml.original_context"),
    KeySpec("{arch}.rope.scaling.attn_factor", "f32", "optional", ALL, "rope.attn_factor", 1.0),
    KeySpec("{arch}.rope.scaling.yarn_ext_factor", "f32", "optional", ALL, "rope.ext_factor"),
    KeySpec("{arch}.rope.scaling.yarn_beta_fast", "f32", "optional", ALL, "rope.beta_fast"),
    KeySpec("{arch}.rope.scaling.yarn_beta_slow", "f32", "optional", ALL, "rope.beta_slow"),
    KeySpec("{arch}.norm_output", "bool", "required", _OURS, "norm_output"),
    KeySpec("{arch}.draft_vocab_size", "u32", "required", (*_OURS, *BLOCKS), "draft_vocab_size",
            stock_default=True),
    KeySpec("{arch}.rope.type", "string", "required", _BIASED, "rope_type"),
    KeySpec("{arch}.attention.kv_lora_rank", "u32", "optional", _31, "latent.kv_rank"),
    KeySpec("{arch}.attention.q_lora_rank", "u32", "optional", _31, "latent.q_rank", 0),
    KeySpec("{arch}.attention.key_length_mla", "u32", "optional", _31, "latent.key_dim"),
    KeySpec("{arch}.attention.value_length_mla", "u32", "optional", _31, "latent.value_dim"),
    KeySpec("{arch}.attention.scale", "f32", "optional", _MORE, "latent.scale"),
    KeySpec("{arch}.fc_norm", "bool", "required", _31, "fc_norm"),
    KeySpec("{arch}.attention.value_norm", "bool", "optional", _MORE),
    KeySpec("{arch}.hidden_activation", "string", "optional", _MORE),
    KeySpec("{arch}.block_size", "u32", "required", BLOCKS, "block.size", stock_default=True),
    KeySpec("{arch}.sample_from_anchor", "bool", "always", BLOCKS, "block.anchor_first"),
    KeySpec("{arch}.attention.causal", "bool", "optional", BLOCKS),
    KeySpec("{arch}.attention.causal_pattern", "bool[]", "optional", _EX),
    KeySpec("{arch}.conv_kernel_size", "u32", "optional", BLOCKS, "block.conv.0"),
    KeySpec("{arch}.conv_group_size", "u32", "optional", BLOCKS, "block.conv.1"),
    KeySpec("{arch}.selector_rank", "u32", "optional", BLOCKS, "block.selector.0"),
    KeySpec("{arch}.selector_top_k", "u32", "optional", BLOCKS, "block.selector.1"),
    KeySpec("{arch}.embedding_scale", "f32", "optional", _MORE, "block.embedding_scale", 1.0),
    KeySpec("{arch}.final_logit_softcapping", "f32", "optional", _MORE, "block.softcap", 0.0),
    KeySpec("{arch}.attention.value_scale", "f32", "optional", BLOCKS, "block.value_scale", 1.0),
    KeySpec("{arch}.target_head", "bool", "optional", _EX, "block.target_head", False),
    KeySpec("{arch}.mask_token_id", "u32", "optional", _31, "parallel.mask_token"),
    KeySpec("{arch}.parallel_depth", "u32", "optional", _31, "parallel.depth"),
    KeySpec("{arch}.head_norm", "bool", "optional", _31, "head_norm", True),
    KeySpec("{arch}.logit_scale", "f32", "optional", (*_OURS, *BLOCKS), "logit_scale", 1.0),
    KeySpec("{arch}.attention.sliding_window", "u32", "optional", (*_OURS, *BLOCKS), "sliding_window"),
    KeySpec("{arch}.attention.sliding_window_pattern", "bool[]", "optional", (*_OURS, *BLOCKS)),
    KeySpec("tokenizer.ggml.model", "string", "required"),
    KeySpec("tokenizer.ggml.tokens", "string[]", "required"),
    KeySpec("eaglecpp.converter_version", "string", "always"),
    KeySpec("eaglecpp.source", "string", "always"),
    KeySpec("eaglecpp.source.sha256", "string", "always"),
    KeySpec("eaglecpp.family", "string", "always", ALL, "family"),
    KeySpec("eaglecpp.layer_ids", "string", "always", ALL, "layer_ids_rule"),
    KeySpec("eaglecpp.readings", "string[]", "optional", ALL, "readings", ()),
    KeySpec("eaglecpp.target.block_count", "u32", "always", ALL, "target_block_count"),
    KeySpec("eaglecpp.held_out_rates", "f32[]", "optional", ALL, "held_out_rates", ()),
)  # fmt: skip


_t, _L = TensorSpec, "layers.{i}."
_full, _latent = partial(_t, attention="full"), partial(_t, archs=_31, attention="latent")
TENSORS: tuple[TensorSpec, ...] = (
    _t("fc.weight", "fc.weight", ("H", "F"), "fc", "always"),
    _t("fc.bias", "fc.bias", ("H",), "bias", "optional", _OURS),
    _t("fc_norm.{a}.weight", "fc_norm.{a}.weight", ("Ht",), "norm", "fc_norm", _31),
    _t("enc.output_norm.weight", "input_norm.weight", ("A*Ht",), "norm", "norm_before_fc", _3),
    _t("enc.output_norm.weight", "hidden_norm.weight", ("H",), "norm", "always", BLOCKS),
    _t("enc.aux_norm.weight", "aux_norm.weight", ("A", "Ht"), "norm", "gated", BLOCKS),
    _t("mask_feature.weight", "mask_hidden", ("A*Ht",), "norm", "parallel", _31),
    _t("d2t", "d2t", ("Vd",), "map", "reduced_vocab"),
    _t("token_embd.weight", "embed_tokens.weight", ("V", "H"), "embedding", "optional"),
    _t("output_norm.weight", "norm.weight", ("H",), "norm", "always"),
    _t("output.weight", "lm_head.weight", ("Vd", "H"), "head", "optional"),
    _t("markov_w1.weight", "markov_head.markov_w1.weight", ("V", "R"), "embedding", "markov", BLOCKS),
    _t("markov_w2.weight", "markov_head.markov_w2.weight", ("Vd", "R"), "head", "markov", BLOCKS),
    _t("conf_proj.weight", "confidence_head.proj.weight", ("1", "H+R"), "norm", "confidence", BLOCKS),
    _t("conf_proj.bias", "confidence_head.proj.bias", ("1",), "bias", "optional", BLOCKS),
    *(
        _t(f"selector_{x}.weight", f"candidate_selector.{x}_codebook", ("V", "r"), "embedding", "selector",
           BLOCKS)
        for x in ("predecessor", "successor")
    ),
    _t("selector_hidden.weight", "candidate_selector.hidden_projection.weight", ("r", "H"), "matrix",
       "selector", BLOCKS),
    _t("blk.{i}.attn_norm.weight", _L + "input_layernorm.weight", ("H",), "norm", "always"),
    _t("blk.{i}.attn_norm_2.weight", _L + "hidden_norm.weight", ("H",), "norm", "always", _3,
       first_layer_only=True),
    _t("blk.{i}.attn_q.weight", _L + "self_attn.q_proj.weight", ("Q", "U"), "matrix", "no_q_rank"),
    _full("blk.{i}.attn_k.weight", _L + "self_attn.k_proj.weight", ("KV", "U"), "matrix", "always"),
    _full("blk.{i}.attn_v.weight", _L + "self_attn.v_proj.weight", ("KV", "U"), "matrix", "own_values"),
    *(
        _full(f"blk.{{i}}.attn_{x}.bias", f"{_L}self_attn.{x}_proj.bias", (n,), "bias", "optional", _BIASED)
        for x, n in (("q", "Q"), ("k", "KV"), ("v", "KV"))
    ),
    *(
        _full(f"blk.{{i}}.attn_{x}_norm.weight", f"{_L}self_attn.{x}_norm.weight", ("hd",), "norm", "qk_norm",
              _MORE)
        for x in "qk"
    ),
    _latent("blk.{i}.attn_q_a.weight", _L + "self_attn.q_a_proj.weight", ("ql", "U"), "matrix", "q_rank"),
    _latent("blk.{i}.attn_q_a_norm.weight", _L + "self_attn.q_a_layernorm.weight", ("ql",), "norm", "q_rank"),
    _latent("blk.{i}.attn_q_b.weight", _L + "self_attn.q_b_proj.weight", ("Q", "ql"), "matrix", "q_rank"),
    _latent("blk.{i}.attn_kv_a_mqa.weight", _L + "self_attn.kv_a_proj_with_mqa.weight", ("kl+dr", "U"),
            "matrix", "always"),
    _latent("blk.{i}.attn_kv_a_norm.weight", _L + "self_attn.kv_a_layernorm.weight", ("kl",), "norm",
            "always"),
    _latent("blk.{i}.attn_k_b.weight", _L + "self_attn.kv_b_proj.weight", ("nh", "kl", "dn"), "matrix",
            "always", part="keys"),
    _latent("blk.{i}.attn_v_b.weight", _L + "self_attn.kv_b_proj.weight", ("nh", "dv", "kl"), "matrix",
            "always", part="values"),
    _t("blk.{i}.attn_output.weight", _L + "self_attn.o_proj.weight", ("H", "O"), "matrix", "always"),
    _full("blk.{i}.attn_output.bias", _L + "self_attn.o_proj.bias", ("H",), "bias", "optional", _BIASED),
    _t("blk.{i}.attn_sinks.weight", _L + "self_attn.sinks", ("nh",), "norm", "optional", BLOCKS),
    _t("blk.{i}.attn_gate.weight", _L + "self_attn.g_proj.weight", ("nh", "H"), "matrix", "gated", BLOCKS),
    _t("blk.{i}.post_attention_norm.weight", _L + "post_attention_norm.weight", ("H",), "norm", "gemma",
       _MORE),
    _t("blk.{i}.post_ffw_norm.weight", _L + "post_feedforward_norm.weight", ("H",), "norm", "gemma", _MORE),
    _t("blk.{i}.layer_output_scale.weight", _L + "layer_scalar", ("1",), "norm", "optional", BLOCKS),
    *(
        row
        for x, source in (("attn", "attention_conv"), ("ffn", "mlp_conv"))
        for row in (
            _t(f"blk.{{i}}.{x}_conv_base", f"{_L}{source}.base_kernel", ("2", "T", "H"), "norm", "conv",
               BLOCKS),
            _t(f"blk.{{i}}.{x}_conv_proj.weight", f"{_L}{source}.kernel_projection.weight", ("2*T*G", "H"),
               "matrix", "conv", BLOCKS),
        )
    ),
    _t("blk.{i}.ffn_norm.weight", _L + "post_attention_layernorm.weight", ("H",), "norm", "always"),
    _t("blk.{i}.ffn_gate.weight", _L + "mlp.gate_proj.weight", ("I", "H"), "matrix", "always"),
    _t("blk.{i}.ffn_up.weight", _L + "mlp.up_proj.weight", ("I", "H"), "matrix", "always"),
    _t("blk.{i}.ffn_down.weight", _L + "mlp.down_proj.weight", ("H", "I"), "matrix", "always"),
    _t("blk.{i}.ffn_gate.bias", _L + "mlp.gate_proj.bias", ("I",), "bias", "optional", _OURS),
    _t("blk.{i}.ffn_up.bias", _L + "mlp.up_proj.bias", ("I",), "bias", "optional", _OURS),
    _t("blk.{i}.ffn_down.bias", _L + "mlp.down_proj.bias", ("H",), "bias", "optional", _OURS),
    _t("rope_freqs.weight", "", ("hd/2",), "freqs", "rope_freqs"),
)  # fmt: skip
