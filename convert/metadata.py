# SPDX-License-Identifier: MIT
"""Builds the metadata of a drafter file: facts about the drafter, the target and the source, as typed GGUF
entries.

Types come from `keys.KEYS`, so a key that is not listed there cannot be written. The gguf package reads the
`general.*` entries (name, license, base model) from the model card, as in llama.cpp's converter.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import gguf
from gguf import GGUFValueType

from .checkpoint import Checkpoint
from .gguf_file import field_of
from .gguf_head import Field
from .keys import KEYS
from .spec import DraftSpec
from .target_info import TargetInfo

CONVERTER_VERSION = "2"
"""Version of the converter, increased when the same checkpoint would be converted to another file."""

GGUF_TYPES: dict[str, tuple[GGUFValueType, GGUFValueType | None]] = {
    "u32": (GGUFValueType.UINT32, None),
    "f32": (GGUFValueType.FLOAT32, None),
    "bool": (GGUFValueType.BOOL, None),
    "string": (GGUFValueType.STRING, None),
    "i32[]": (GGUFValueType.ARRAY, GGUFValueType.INT32),
    "f32[]": (GGUFValueType.ARRAY, GGUFValueType.FLOAT32),
    "bool[]": (GGUFValueType.ARRAY, GGUFValueType.BOOL),
    "string[]": (GGUFValueType.ARRAY, GGUFValueType.STRING),
}


def build_metadata(
    spec: DraftSpec, checkpoint: Checkpoint, target: TargetInfo, *, file_type: int, n_params: int, sha256: str
) -> dict[str, Field]:
    """Returns all entries of the file by name, except `general.architecture`, which the writer puts first."""
    general = _general(checkpoint, target, n_params)
    values = {
        "general.type": "model",
        "general.name": checkpoint.short_name,
        "general.size_label": gguf.size_label(n_params, n_params, 0, 0),
        "general.file_type": file_type,
        "general.quantization_version": gguf.GGML_QUANT_VERSION,
        "tokenizer.ggml.mask_token_id": spec.block.mask_token if spec.block else None,
        **{f"{{arch}}.{name}": value for name, value in _drafter(spec).items()},
        "eaglecpp.converter_version": CONVERTER_VERSION,
        "eaglecpp.source": checkpoint.name,
        "eaglecpp.source.sha256": sha256,
        "eaglecpp.family": spec.family,
        "eaglecpp.layer_ids": spec.layer_ids_rule,
        "eaglecpp.readings": list(spec.readings) or None,
        "eaglecpp.target.block_count": spec.target_block_count,
        "eaglecpp.held_out_rates": list(spec.held_out_rates) or None,
    }
    fields = {field.name: field for field in _typed(values, spec.architecture)}
    return {**fields, **general, **{f.name: f for f in target.tokenizer if f.name not in fields}}


def _drafter(spec: DraftSpec) -> dict[str, Any]:
    """Returns the drafter's sizes, rope and switches as entries; an unset switch is None. The key and value
    sizes of latent attention are written as for llama.cpp's architecture deepseek2, whose cache also stores
    the latent.
    """
    latent, rope, gemma, parallel = spec.latent, spec.rope, spec.gemma, spec.parallel
    block, none = spec.block, (None, None)
    is_yarn, slides = rope.scaling == "yarn", any(spec.sliding_layers)
    is_scaled = rope.scaling in ("linear", "yarn")
    values = {
        "block_count": spec.n_layers,
        "context_length": spec.context_length,
        "embedding_length": spec.hidden_size,
        "feed_forward_length": spec.intermediate_size,
        "attention.head_count": spec.n_heads,
        "attention.head_count_kv": spec.n_kv_heads if latent is None else 1,
        "attention.key_length": spec.head_dim if latent is None else latent.cached_dim,
        "attention.value_length": spec.head_dim if latent is None else latent.kv_rank,
        "attention.layer_norm_rms_epsilon": spec.rms_norm_eps,
        "vocab_size": spec.vocab_size,
        "target_layers": list(spec.aux_layers),
        "target_hidden_size": spec.target_hidden_size,
        "norm_before_residual": spec.norm_before_residual,
        "norm_before_fc": spec.norm_before_fc,
        "rope.freq_base": rope.theta,
        "rope.dimension_count": spec.rope_dim,
        "rope.scaling.type": rope.scaling if is_scaled else None,
        "rope.scaling.factor": rope.factor if is_scaled else None,
        "rope.scaling.original_context_length": rope.original_context if is_yarn else None,
        "rope.scaling.attn_factor": rope.attn_factor if is_yarn and rope.attn_factor != 1.0 else None,
        "rope.scaling.yarn_ext_factor": rope.ext_factor if is_yarn else None,
        "rope.scaling.yarn_beta_fast": rope.beta_fast if is_yarn else None,
        "rope.scaling.yarn_beta_slow": rope.beta_slow if is_yarn else None,
        "norm_output": spec.norm_output,
        "draft_vocab_size": spec.draft_vocab_size,
        "rope.type": spec.rope_type,
    }
    if latent is not None:
        values |= {
            "attention.kv_lora_rank": latent.kv_rank,
            "attention.q_lora_rank": latent.q_rank or None,
            "attention.key_length_mla": latent.key_dim,
            "attention.value_length_mla": latent.value_dim,
            "attention.scale": latent.scale,
        }
    values["fc_norm"] = spec.fc_norm
    if gemma is not None:
        values |= {
            "attention.scale": 1.0,
            "attention.value_norm": True,
            "hidden_activation": "gelu",
            "embedding_scale": spec.hidden_size**0.5,
            "final_logit_softcapping": gemma.softcap or None,
        }
    if block is not None:
        same = len(set(block.causal)) == 1
        (taps, group), (rank, top_k) = block.conv or none, block.selector or none
        values |= {
            "block_size": block.size,
            "sample_from_anchor": block.anchor_first,
            "attention.causal": block.causal[0] if same else None,
            "attention.causal_pattern": None if same else list(block.causal),
            "conv_kernel_size": taps,
            "conv_group_size": group,
            "selector_rank": rank,
            "selector_top_k": top_k,
            "embedding_scale": None if block.embedding_scale == 1.0 else block.embedding_scale,
            "final_logit_softcapping": block.softcap or None,
            "attention.value_scale": None if block.value_scale == 1.0 else block.value_scale,
            "target_head": block.target_head or None,
        }
    return values | {
        "mask_token_id": parallel.mask_token if parallel else None,
        "parallel_depth": parallel.depth if parallel else None,
        "head_norm": None if spec.head_norm else False,
        "logit_scale": None if spec.logit_scale == 1.0 else spec.logit_scale,
        "attention.sliding_window": spec.sliding_window if slides else None,
        "attention.sliding_window_pattern": list(spec.sliding_layers) if slides else None,
    }


def _typed(values: Mapping[str, Any], arch: str) -> list[Field]:
    """Converts values to typed GGUF entries, and leaves out keys that this architecture does not have."""
    specs = {key.name: key for key in KEYS}
    fields = []
    for name, value in values.items():
        spec = specs[name]
        if value is not None and arch in spec.archs:
            kind, sub = GGUF_TYPES[spec.type]
            if GGUFValueType.STRING in (kind, sub):
                value = [text.encode() for text in value] if isinstance(value, list) else value.encode()
            fields.append(Field(name.replace("{arch}", arch), kind, sub, value))
    return fields


def _general(checkpoint: Checkpoint, target: TargetInfo, n_params: int) -> dict[str, Field]:
    """Returns name, license, base model and tags from the model card, or from the source if it is a GGUF. If
    the model card is invalid, these entries are left out.
    """
    if checkpoint.general is not None:
        return checkpoint.general
    logging.getLogger("gguf").setLevel(logging.ERROR)
    directory = checkpoint.directory
    try:
        # The name is taken from the Hub id, because the snapshot's directory has a hash as its name.
        if checkpoint.from_hub:
            card = gguf.Metadata.load_model_card(directory)
            named = Path(checkpoint.short_name)
            meta = gguf.Metadata.apply_metadata_heuristic(gguf.Metadata(), card, None, named, n_params)
        else:
            meta = gguf.Metadata.load(None, directory, None, n_params)
        meta.name = meta.name or directory.name
        meta.size_label = meta.size_label or gguf.size_label(n_params, n_params, 0, 0)
        if not meta.base_models:
            meta.base_models = [{"name": target.name}]
        writer = gguf.GGUFWriter(None, "eagle3")
        writer.add_type("model")
        meta.set_gguf_meta_model(writer)
    except Exception:  # the model card is optional, and any exception may come from an untrusted file
        return {}
    return {
        name: field_of(name, entry)
        for name, entry in writer.kv_data[0].items()
        if name != "general.architecture"
    }
