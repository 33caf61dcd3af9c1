# SPDX-License-Identifier: MIT
"""Every GGUF key and tensor that our drafter files can contain: the single source of truth.

`docs/gguf-format.md` explains it, `native/gguf/keys.h` mirrors it (a conformance test compares the two),
`mapping.py` and `verify.py` work from it. Declarative on purpose: to add a switch, add a row here and the
value in `metadata.py`.

Three architectures share the names. `eagle3` is what llama.cpp's own converter writes and its loader runs
(ggml-org/llama.cpp: conversion/llama.py, src/models/eagle3.cpp). `eagle31` is everything that loader would
compute wrongly. `eagle` is EAGLE-1 and EAGLE-2, whose fc takes the token's embedding along with the feature.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

__all__ = ["EAGLE", "EAGLE3", "EAGLE31", "KEYS", "TENSORS", "KeySpec", "TensorSpec"]

EAGLE = "eagle"
EAGLE3 = "eagle3"
EAGLE31 = "eagle31"
ALL = (EAGLE, EAGLE3, EAGLE31)

Presence = Literal["required", "always", "optional"]
When = Literal[
    "always", "optional", "fc_norm", "norm_before_fc", "qk_norm", "reduced_vocab", "rope_freqs", "q_rank",
    "no_q_rank", "own_values", "gemma", "parallel",
]  # fmt: skip
Attention = Literal["", "full", "latent"]
Role = Literal["fc", "head", "embedding", "matrix", "norm", "bias", "freqs", "map"]


@dataclass(frozen=True)
class KeySpec:
    """One metadata key.

    name: `{arch}` stands for the file's architecture. type: u32, f32, bool, string, i32[], f32[], bool[].
    presence: `required`: a reader refuses a file without it. `always`: we always write it, but files of
    llama.cpp's converter may lack it and readers use `default`. `optional`: written where `meaning` says so.
    """

    name: str
    type: str
    presence: Presence
    archs: tuple[str, ...]
    meaning: str
    default: str = ""


@dataclass(frozen=True)
class TensorSpec:
    """One tensor, or one per layer (`{i}`) or per aux feature (`{a}`).

    source: name in the canonical checkpoint layout (`mapping.py`). shape: slowest axis first; symbols as in
    drafter checkpoints: H, Ht, A, V, Vd, I, hd, Q = heads * hd, KV = kv heads * hd,
    U = 2H in layer 0 (not in `eagle`), else H, F = A * Ht, in `eagle` 2H.
    when: `always`, `optional` (its presence is the switch), or the switch that demands it.
    ql, kl, dn, dr, dv = ranks and head widths of latent attention, O = heads * dv, or Q without it.
    role: row of the type table in `quantize.py`. attention: the kind that has it, "" = both. part: `keys` or
    `values`, the rows of kv_b_proj that this tensor takes of each head, the keys' transposed.
    """

    name: str
    source: str
    shape: tuple[str, ...]
    role: Role
    when: When
    archs: tuple[str, ...]
    meaning: str
    first_layer_only: bool = False
    attention: Attention = ""
    part: Literal["", "keys", "values"] = ""


def _k(
    name: str, type: str, presence: Presence, meaning: str, default: str = "", archs: tuple[str, ...] = ALL
) -> KeySpec:
    return KeySpec(name, type, presence, archs, meaning, default)


_3 = (EAGLE3, EAGLE31)  # what EAGLE-1 and 2 have nothing of
_31 = (EAGLE31,)
_OURS = (EAGLE, EAGLE31)

KEYS: tuple[KeySpec, ...] = (
    _k("general.architecture", "string", "required", "eagle, eagle3 or eagle31"),
    _k("general.type", "string", "always", "model", "model"),
    _k("general.name", "string", "always", "name of the drafter"),
    _k("general.size_label", "string", "always", "number of weights, rounded, such as 425M"),
    _k("general.file_type", "u32", "always", "llama.cpp's number of the requested type (LlamaFileType)"),
    _k("general.quantization_version", "u32", "always", "version of ggml's block formats", "2"),
    _k("{arch}.block_count", "u32", "required", "decoder layers, counted from the tensors"),
    _k("{arch}.context_length", "u32", "required", "positions the drafter was configured for"),
    _k("{arch}.embedding_length", "u32", "required", "H, width of the drafter"),
    _k("{arch}.feed_forward_length", "u32", "required", "I, width of the feed-forward part"),
    _k("{arch}.attention.head_count", "u32", "required", "query heads"),
    _k("{arch}.attention.head_count_kv", "u32", "required", "key and value heads; latent attention: 1"),
    _k("{arch}.attention.key_length", "u32", "always",
       "hd, head width; latent attention: kl + dr, what a position leaves in the cache",
       "embedding_length / head_count"),
    _k("{arch}.attention.value_length", "u32", "always", "as key_length; latent attention: kl",
       "embedding_length / head_count"),
    _k("{arch}.attention.kv_lora_rank", "u32", "optional", "kl, width of the latent; latent attention",
       archs=_31),
    _k("{arch}.attention.q_lora_rank", "u32", "optional",
       "ql; latent attention whose queries are of low rank", archs=_31),
    _k("{arch}.attention.key_length_mla", "u32", "optional", "dn + dr, width of a key; latent attention",
       archs=_31),
    _k("{arch}.attention.value_length_mla", "u32", "optional", "dv, width of a value; latent attention",
       archs=_31),
    _k("{arch}.attention.scale", "f32", "optional", "factor on the scores; latent attention and Gemma 4's",
       "1 / sqrt(key_length)", archs=_31),
    _k("{arch}.attention.layer_norm_rms_epsilon", "f32", "required", "epsilon of every norm"),
    _k("{arch}.vocab_size", "u32", "always", "V, tokens of the target", "length of tokenizer.ggml.tokens"),
    _k("{arch}.target_layers", "i32[]", "required",
       "aux layers: boundary ids in concatenation order; eagle: n + 1"),
    _k("{arch}.target_hidden_size", "u32", "required", "Ht, width of the target"),
    _k("{arch}.norm_before_residual", "bool", "always", "residual of layer 0 is the normed feature", "false",
       archs=_3),
    _k("{arch}.norm_before_fc", "bool", "always", "one norm over all features together before fc", "false",
       archs=_3),
    _k("{arch}.fc_norm", "bool", "required", "one norm per feature before fc", archs=_31),
    _k("{arch}.norm_output", "bool", "required",
       "post-norm state is fed to the next draft step; eagle: there are norms at all", archs=_OURS),
    _k("{arch}.head_norm", "bool", "optional",
       "false: there is no last norm, the head reads the state as it is; when false", "true", archs=_31),
    _k("{arch}.draft_vocab_size", "u32", "required", "Vd, rows of the draft head", archs=_OURS),
    _k("{arch}.logit_scale", "f32", "optional", "factor on the logits; when not 1", "1", archs=_OURS),
    _k("{arch}.rope.freq_base", "f32", "always", "theta of the rotary embedding", "10000"),
    _k("{arch}.rope.dimension_count", "u32", "always", "rotated values per head: all; latent attention: dr",
       "key_length"),
    _k("{arch}.rope.type", "string", "required", "norm: q and k rows in pairs; neox: as in HF", archs=_OURS),
    _k("{arch}.rope.scaling.type", "string", "optional", "linear or yarn; when scaled", "none"),
    _k("{arch}.rope.scaling.factor", "f32", "optional", "stretch of the context; linear and yarn", "1"),
    _k("{arch}.rope.scaling.original_context_length", "u32", "optional", "yarn", "context_length"),
    _k("{arch}.rope.scaling.attn_factor", "f32", "optional",
       "yarn: attn_factor of ggml_rope_ext, which multiplies it by 1 + 0.1 ln(factor); when not 1", "1"),
    _k("{arch}.rope.scaling.yarn_ext_factor", "f32", "optional", "yarn: ext_factor of ggml_rope_ext", "1"),
    _k("{arch}.rope.scaling.yarn_beta_fast", "f32", "optional", "yarn", "32"),
    _k("{arch}.rope.scaling.yarn_beta_slow", "f32", "optional", "yarn", "1"),
    _k("{arch}.attention.value_norm", "bool", "optional",
       "values are normed, without weights; without attn_v they are the keys before their norm; Gemma 4's",
       "false", archs=_31),
    _k("{arch}.hidden_activation", "string", "optional", "silu or gelu (with tanh); Gemma 4's", "silu",
       archs=_31),
    _k("{arch}.embedding_scale", "f32", "optional", "factor on token embeddings; Gemma 4's", "1", archs=_31),
    _k("{arch}.final_logit_softcapping", "f32", "optional", "bound of the logits, by tanh; Gemma 4's",
       archs=_31),
    _k("{arch}.mask_token_id", "u32", "optional",
       "token of the rows that are drafted all at once; P-EAGLE", archs=_31),
    _k("{arch}.parallel_depth", "u32", "optional", "tokens that one pass gives at the most; P-EAGLE",
       archs=_31),
    _k("{arch}.attention.sliding_window", "u32", "optional",
       "a row sees this many rows, itself included; when a layer slides", archs=_OURS),
    _k("{arch}.attention.sliding_window_pattern", "bool[]", "optional",
       "per layer: true = sliding; when a layer slides", archs=_OURS),
    _k("tokenizer.ggml.model", "string", "required", "tokenizer of the target, all tokenizer.* keys copied"),
    _k("tokenizer.ggml.tokens", "string[]", "required", "the target's tokens; V entries"),
    _k("eaglecpp.converter_version", "string", "always", "version of the rules in this package"),
    _k("eaglecpp.source", "string", "always", "name or hub id of the checkpoint"),
    _k("eaglecpp.source.sha256", "string", "always",
       "of the weight file; for shards, of their listing in the format of sha256sum"),
    _k("eaglecpp.family", "string", "always", "checkpoint layout that was recognised"),
    _k("eaglecpp.layer_ids", "string", "always",
       "rule of target_layers: default, boundary, post+1, given, final"),
    _k("eaglecpp.readings", "string[]", "optional",
       "NAME=VALUE (reason) of what the checkpoint left open and of what was given; when there is any"),
    _k("eaglecpp.target.block_count", "u32", "always", "n, decoder blocks of the target"),
    _k("eaglecpp.held_out_rates", "f32[]", "optional",
       "acceptance per depth on held-out texts, of the chains that got there; when its training measured it"),
)  # fmt: skip


def _t(
    name: str, source: str, shape: tuple[str, ...], role: Role, when: When, meaning: str,
    archs: tuple[str, ...] = ALL, first: bool = False, attention: Attention = "",
    part: Literal["", "keys", "values"] = "",
) -> TensorSpec:  # fmt: skip
    return TensorSpec(name, source, shape, role, when, archs, meaning, first, attention, part)


_L = "layers.{i}."
TENSORS: tuple[TensorSpec, ...] = (
    _t("fc.weight", "fc.weight", ("H", "F"), "fc", "always",
       "fuses the features; in eagle [embedding ; feature]"),
    _t("fc.bias", "fc.bias", ("H",), "bias", "optional", "", _OURS),
    _t("fc_norm.{a}.weight", "fc_norm.{a}.weight", ("Ht",), "norm", "fc_norm", "norm of feature a", _31),
    _t("enc.output_norm.weight", "input_norm.weight", ("A*Ht",), "norm", "norm_before_fc", "", _3),
    _t("mask_feature.weight", "mask_hidden", ("A*Ht",), "norm", "parallel",
       "in place of the features of rows that are drafted all at once; P-EAGLE", _31),
    _t("d2t", "d2t", ("Vd",), "map", "reduced_vocab", "I64: target id of each draft id, increasing"),
    _t("token_embd.weight", "embed_tokens.weight", ("V", "H"), "embedding", "optional", "else the target's"),
    _t("output_norm.weight", "norm.weight", ("H",), "norm", "always",
       "final norm; in eagle with norm_output; not with head_norm false"),
    _t("output.weight", "lm_head.weight", ("Vd", "H"), "head", "optional", "else the target's"),
    _t("blk.{i}.attn_norm.weight", _L + "input_layernorm.weight", ("H",), "norm", "always",
       "layer 0: norm of the token embedding; later layers, and layer 0 of eagle with norm_output: norm "
       "before attention"),
    _t("blk.{i}.attn_norm_2.weight", _L + "hidden_norm.weight", ("H",), "norm", "always",
       "norm of the feature", _3, first=True),
    _t("blk.{i}.attn_q.weight", _L + "self_attn.q_proj.weight", ("Q", "U"), "matrix", "no_q_rank", ""),
    _t("blk.{i}.attn_k.weight", _L + "self_attn.k_proj.weight", ("KV", "U"), "matrix", "always", "",
       attention="full"),
    _t("blk.{i}.attn_v.weight", _L + "self_attn.v_proj.weight", ("KV", "U"), "matrix", "own_values", "",
       attention="full"),
    _t("blk.{i}.attn_q.bias", _L + "self_attn.q_proj.bias", ("Q",), "bias", "optional", "", _OURS,
       attention="full"),
    _t("blk.{i}.attn_k.bias", _L + "self_attn.k_proj.bias", ("KV",), "bias", "optional", "", _OURS,
       attention="full"),
    _t("blk.{i}.attn_v.bias", _L + "self_attn.v_proj.bias", ("KV",), "bias", "optional", "", _OURS,
       attention="full"),
    _t("blk.{i}.attn_q_norm.weight", _L + "self_attn.q_norm.weight", ("hd",), "norm", "qk_norm", "", _31,
       attention="full"),
    _t("blk.{i}.attn_k_norm.weight", _L + "self_attn.k_norm.weight", ("hd",), "norm", "qk_norm", "", _31,
       attention="full"),
    _t("blk.{i}.attn_q_a.weight", _L + "self_attn.q_a_proj.weight", ("ql", "U"), "matrix", "q_rank", "", _31,
       attention="latent"),
    _t("blk.{i}.attn_q_a_norm.weight", _L + "self_attn.q_a_layernorm.weight", ("ql",), "norm", "q_rank", "",
       _31, attention="latent"),
    _t("blk.{i}.attn_q_b.weight", _L + "self_attn.q_b_proj.weight", ("Q", "ql"), "matrix", "q_rank",
       "each head: dn values, then dr that rotate in pairs", _31, attention="latent"),
    _t("blk.{i}.attn_kv_a_mqa.weight", _L + "self_attn.kv_a_proj_with_mqa.weight", ("kl+dr", "U"), "matrix",
       "always", "the latent, then the key's part that rotates", _31, attention="latent"),
    _t("blk.{i}.attn_kv_a_norm.weight", _L + "self_attn.kv_a_layernorm.weight", ("kl",), "norm", "always",
       "of the latent", _31, attention="latent"),
    _t("blk.{i}.attn_k_b.weight", _L + "self_attn.kv_b_proj.weight", ("nh", "kl", "dn"), "matrix", "always",
       "keys of each head from the latent, transposed", _31, attention="latent", part="keys"),
    _t("blk.{i}.attn_v_b.weight", _L + "self_attn.kv_b_proj.weight", ("nh", "dv", "kl"), "matrix", "always",
       "values of each head from the latent", _31, attention="latent", part="values"),
    _t("blk.{i}.attn_output.weight", _L + "self_attn.o_proj.weight", ("H", "O"), "matrix", "always", ""),
    _t("blk.{i}.attn_output.bias", _L + "self_attn.o_proj.bias", ("H",), "bias", "optional", "", _OURS,
       attention="full"),
    _t("blk.{i}.post_attention_norm.weight", _L + "post_attention_norm.weight", ("H",), "norm", "gemma",
       "norm of what attention gives", _31),
    _t("blk.{i}.post_ffw_norm.weight", _L + "post_feedforward_norm.weight", ("H",), "norm", "gemma",
       "norm of what the feed-forward part gives", _31),
    _t("blk.{i}.ffn_norm.weight", _L + "post_attention_layernorm.weight", ("H",), "norm", "always", ""),
    _t("blk.{i}.ffn_gate.weight", _L + "mlp.gate_proj.weight", ("I", "H"), "matrix", "always", ""),
    _t("blk.{i}.ffn_up.weight", _L + "mlp.up_proj.weight", ("I", "H"), "matrix", "always", ""),
    _t("blk.{i}.ffn_down.weight", _L + "mlp.down_proj.weight", ("H", "I"), "matrix", "always", ""),
    _t("blk.{i}.ffn_gate.bias", _L + "mlp.gate_proj.bias", ("I",), "bias", "optional", "", _OURS),
    _t("blk.{i}.ffn_up.bias", _L + "mlp.up_proj.bias", ("I",), "bias", "optional", "", _OURS),
    _t("blk.{i}.ffn_down.bias", _L + "mlp.down_proj.bias", ("H",), "bias", "optional", "", _OURS),
    _t("rope_freqs.weight", "", ("hd/2",), "freqs", "rope_freqs",
       "llama3 scaling, heads rotated in part: divisors of the rotary frequencies, computed from the config"),
)  # fmt: skip
