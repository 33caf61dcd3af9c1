# SPDX-License-Identifier: MIT
"""The key-value part of a drafter file: DraftSpec, target and source as typed GGUF entries.

Types come from `keys.KEYS`, so a key that is not listed there cannot be written. The `general.*` entries
(name, license, base model) are read from the model card by the gguf package, as llama.cpp's converter does.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import gguf
from gguf import GGUFValueType

from .checkpoint import Checkpoint
from .gguf_file import Field, field_of
from .keys import EAGLE3, KEYS
from .spec import DraftSpec, LatentSpec
from .target_info import TargetInfo

__all__ = ["CONVERTER_VERSION", "GGUF_TYPES", "build_metadata"]

CONVERTER_VERSION = "2"
"""Raised when the same checkpoint would be written differently."""

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
    """All entries of the file by name, `general.architecture` excepted (the writer puts it first)."""
    general = _general(checkpoint, target, n_params)
    values = {
        "general.type": "model",
        "general.name": checkpoint.short_name,
        "general.size_label": gguf.size_label(n_params, n_params, 0, 0),
        "general.file_type": file_type,
        "general.quantization_version": gguf.GGML_QUANT_VERSION,
        **_sizes(spec),
        **_rope(spec),
        **(_switches(spec) if spec.architecture != EAGLE3 else {}),
        "eaglecpp.converter_version": CONVERTER_VERSION,
        "eaglecpp.source": checkpoint.name,
        "eaglecpp.source.sha256": sha256,
        "eaglecpp.family": spec.family,
        "eaglecpp.layer_ids": spec.layer_ids_rule,
        **({"eaglecpp.readings": list(spec.readings)} if spec.readings else {}),
        "eaglecpp.target.block_count": spec.target_block_count,
        **({"eaglecpp.held_out_rates": list(spec.held_out_rates)} if spec.held_out_rates else {}),
    }
    fields = {field.name: field for field in _typed(values, spec.architecture)}
    return {**fields, **general, **{field.name: field for field in target.tokenizer}}


def _sizes(spec: DraftSpec) -> dict[str, Any]:
    latent = spec.latent
    return {
        "{arch}.block_count": spec.n_layers,
        "{arch}.context_length": spec.context_length,
        "{arch}.embedding_length": spec.hidden_size,
        "{arch}.feed_forward_length": spec.intermediate_size,
        "{arch}.attention.head_count": spec.n_heads,
        "{arch}.attention.head_count_kv": spec.n_kv_heads if latent is None else 1,
        "{arch}.attention.key_length": spec.head_dim if latent is None else latent.cached_dim,
        "{arch}.attention.value_length": spec.head_dim if latent is None else latent.kv_rank,
        "{arch}.attention.layer_norm_rms_epsilon": spec.rms_norm_eps,
        "{arch}.vocab_size": spec.vocab_size,
        "{arch}.target_layers": list(spec.aux_layers),
        "{arch}.target_hidden_size": spec.target_hidden_size,
    } | (
        {}
        if spec.fuses_embedding
        else {
            "{arch}.norm_before_residual": spec.norm_before_residual,
            "{arch}.norm_before_fc": spec.norm_before_fc,
        }
    )


def _rope(spec: DraftSpec) -> dict[str, Any]:
    rope = spec.rope
    values: dict[str, Any] = {
        "{arch}.rope.freq_base": rope.theta,
        "{arch}.rope.dimension_count": spec.rope_dim,
    }
    if rope.scaling in ("linear", "yarn"):
        values["{arch}.rope.scaling.type"] = rope.scaling
        values["{arch}.rope.scaling.factor"] = rope.factor
    if rope.scaling == "yarn":
        optional = {
            "original_context_length": rope.original_context,
            "attn_factor": rope.attn_factor if rope.attn_factor != 1.0 else None,
            "yarn_ext_factor": rope.ext_factor,
            "yarn_beta_fast": rope.beta_fast,
            "yarn_beta_slow": rope.beta_slow,
        }
        values |= {
            f"{{arch}}.rope.scaling.{key}": value for key, value in optional.items() if value is not None
        }
    return values


def _switches(spec: DraftSpec) -> dict[str, Any]:
    """What an `eagle3` file cannot say."""
    values: dict[str, Any] = {
        "{arch}.norm_output": spec.norm_output,
        "{arch}.draft_vocab_size": spec.draft_vocab_size,
        "{arch}.rope.type": spec.rope_type,
        **(_latent(spec.latent) if spec.latent else {}),
    }
    if not spec.fuses_embedding:
        values["{arch}.fc_norm"] = spec.fc_norm
    if spec.gemma is not None:
        values |= {
            "{arch}.attention.scale": 1.0,
            "{arch}.attention.value_norm": True,
            "{arch}.hidden_activation": "gelu",
            "{arch}.embedding_scale": spec.hidden_size**0.5,
        }
        if spec.gemma.softcap:
            values["{arch}.final_logit_softcapping"] = spec.gemma.softcap
    if spec.parallel is not None:
        values["{arch}.mask_token_id"] = spec.parallel.mask_token
        values["{arch}.parallel_depth"] = spec.parallel.depth
    if not spec.head_norm:
        values["{arch}.head_norm"] = False
    if spec.logit_scale != 1.0:
        values["{arch}.logit_scale"] = spec.logit_scale
    if any(spec.sliding_layers):
        values["{arch}.attention.sliding_window"] = spec.sliding_window
        values["{arch}.attention.sliding_window_pattern"] = list(spec.sliding_layers)
    return values


def _latent(latent: LatentSpec) -> dict[str, Any]:
    """Keys and values as llama.cpp's deepseek2 has them, whose cache holds the latent too."""
    return {
        "{arch}.attention.kv_lora_rank": latent.kv_rank,
        **({"{arch}.attention.q_lora_rank": latent.q_rank} if latent.q_rank else {}),
        "{arch}.attention.key_length_mla": latent.key_dim,
        "{arch}.attention.value_length_mla": latent.value_dim,
        "{arch}.attention.scale": latent.scale,
    }


def _typed(values: Mapping[str, Any], arch: str) -> list[Field]:
    specs = {key.name: key for key in KEYS if arch in key.archs}
    fields = []
    for name, value in values.items():
        kind, sub = GGUF_TYPES[specs[name].type]
        texts = GGUFValueType.STRING in (kind, sub)
        stored = _encoded(value) if texts else value
        fields.append(Field(name.replace("{arch}", arch), kind, sub, stored))
    return fields


def _encoded(value: Any) -> Any:
    return [text.encode() for text in value] if isinstance(value, list) else value.encode()


def _general(checkpoint: Checkpoint, target: TargetInfo, n_params: int) -> dict[str, Field]:
    """Name, license, base model, tags from the model card, whose faults cost only these entries; or a GGUF's
    own.
    """
    if checkpoint.general is not None:
        return checkpoint.general
    logging.getLogger("gguf").setLevel(logging.ERROR)
    directory = checkpoint.directory
    try:
        if checkpoint.from_hub:  # the snapshot's directory is named by a hash; the name is in the hub id
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
    except Exception:  # the card is free text by strangers and decorates the file only
        return {}
    return {
        name: field_of(name, entry)
        for name, entry in writer.kv_data[0].items()
        if name != "general.architecture"
    }
