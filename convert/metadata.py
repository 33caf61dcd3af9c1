# SPDX-License-Identifier: MIT
"""Builds the metadata of a drafter file: facts about the drafter, the target and the source, as typed GGUF
entries.

Types come from `keys.KEYS`, so a key that is not listed there cannot be written. The gguf package reads the
`general.*` entries (name, license, base model) from the model card, as in llama.cpp's converter.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from functools import reduce
from pathlib import Path
from typing import Any

import gguf
from gguf import GGUFValueType

from .checkpoint import Checkpoint
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
        "eaglecpp.converter_version": CONVERTER_VERSION,
        "eaglecpp.source": checkpoint.name,
        "eaglecpp.source.sha256": sha256,
        **{key.name: reduce(_part, key.field.split("."), spec) for key in KEYS if key.field},
        **{f"{{arch}}.{name}": value for name, value in _computed(spec).items()},
    }
    fields = {field.name: field for field in _typed(values, spec.architecture)}
    return {**fields, **general, **{f.name: f for f in target.tokenizer if f.name not in fields}}


def _part(value: Any, name: str) -> Any:
    """Returns an attribute, or an entry of a tuple; None without a value."""
    return None if value is None else value[int(name)] if name.isdigit() else getattr(value, name)


def _computed(spec: DraftSpec) -> dict[str, Any]:
    """Returns the entries that are not a field of the `DraftSpec`. The key and value sizes of latent
    attention are written as for llama.cpp's architecture deepseek2, whose cache also stores the latent.
    """
    latent, block, gemma = spec.latent, spec.block, spec.gemma
    values: dict[str, Any] = {
        "attention.head_count_kv": spec.n_kv_heads if latent is None else 1,
        "attention.key_length": spec.head_dim if latent is None else latent.cached_dim,
        "attention.value_length": spec.head_dim if latent is None else latent.kv_rank,
    }
    if any(spec.sliding_layers):
        values["attention.sliding_window_pattern"] = spec.sliding_layers
    if gemma is not None:
        values |= {
            "attention.scale": 1.0,
            "attention.value_norm": True,
            "hidden_activation": "gelu",
            "embedding_scale": spec.hidden_size**0.5,
            "final_logit_softcapping": gemma.softcap,
        }
    if block is not None:
        same = len(set(block.causal)) == 1
        values |= (
            {"attention.causal": block.causal[0]} if same else {"attention.causal_pattern": block.causal}
        )
    return values


def _typed(values: Mapping[str, Any], arch: str) -> list[Field]:
    """Converts values to typed GGUF entries, in the order of `KEYS`. Leaves out defaults, and keys that this
    architecture does not have.
    """
    assert values.keys() <= {key.name for key in KEYS}
    fields = []
    for key in KEYS:
        value = values.get(key.name)
        if value not in (None, key.default) and arch in key.archs:
            kind, sub = GGUF_TYPES[key.type]
            value = list(value) if isinstance(value, tuple) else value
            if GGUFValueType.STRING in (kind, sub):
                value = [text.encode() for text in value] if isinstance(value, list) else value.encode()
            fields.append(Field(key.name.replace("{arch}", arch), kind, sub, value))
    return fields


def _general(checkpoint: Checkpoint, target: TargetInfo, n_params: int) -> dict[str, Field]:
    """Returns name, license, base model and tags from the model card, or from the source if it is a GGUF. If
    the model card is invalid, these entries are left out.
    """
    if checkpoint.general is not None:
        return checkpoint.general
    logging.getLogger("gguf").setLevel(logging.ERROR)
    directory, named = checkpoint.directory, Path(checkpoint.short_name)
    try:
        # The name is taken from the Hub id, because the snapshot's directory has a hash as its name.
        if checkpoint.from_hub:
            card = gguf.Metadata.load_model_card(directory)
            meta = gguf.Metadata.apply_metadata_heuristic(gguf.Metadata(), card, None, named, n_params)
        else:
            meta = gguf.Metadata.load(None, directory, None, n_params)
        meta.name = meta.name or directory.name
        meta.size_label = meta.size_label or gguf.size_label(n_params, n_params, 0, 0)
        meta.base_models = meta.base_models or [{"name": target.name}]
        writer = gguf.GGUFWriter(None, "eagle3")
        writer.add_type("model")
        meta.set_gguf_meta_model(writer)
    except Exception:  # the model card is optional, and any exception may come from an untrusted file
        return {}
    array, text = GGUFValueType.ARRAY, GGUFValueType.STRING  # all arrays of a model card have texts
    return {
        name: Field(name, one.type, text if one.type == array else None, _encoded(one.value, one.type))
        for name, one in writer.kv_data[0].items()
        if name != "general.architecture"
    }


def _encoded(value: Any, kind: GGUFValueType) -> Any:
    """Encodes the texts of a model card. YAML reads a text such as 2024 as a number."""
    if kind == GGUFValueType.ARRAY:
        return [_encoded(one, GGUFValueType.STRING) for one in value]
    return str(value).encode("utf-8", "replace") if kind == GGUFValueType.STRING else value
