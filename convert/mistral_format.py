# SPDX-License-Identifier: MIT
"""Checkpoints in Mistral's own layout (`params.json`, `consolidated*.safetensors`), translated to Hugging
Face's names.

Names and keys as vllm-project/vllm reads them (vllm/model_executor/models/mistral.py: mistral_mapping,
vllm/transformers_utils/configs/mistral.py). There the rows of q and k are ordered in pairs; they are
reordered into halves when they are read. A key that is not known may change the arithmetic and is refused.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from .config import integer, shown
from .errors import ConfigError, TensorError, UnsupportedError
from .rope import halves
from .tensor import TensorSource

ARCHITECTURE = "EagleMistralForCausalLM"
_WHERE = "params.json: "
_KEYS = {
    "dim": "hidden_size",
    "n_layers": "num_hidden_layers",
    "head_dim": "head_dim",
    "hidden_dim": "intermediate_size",
    "n_heads": "num_attention_heads",
    "n_kv_heads": "num_key_value_heads",
    "norm_eps": "rms_norm_eps",
    "vocab_size": "vocab_size",
    "rope_theta": "rope_theta",
    "max_position_embeddings": "max_position_embeddings",
    "max_seq_len": "max_position_embeddings",
}
_NEUTRAL: dict[str, tuple[Any, ...]] = {
    "use_biases": (False,),
    "causal": (True,),
    "sliding_window": (None,),
    "tied_embeddings": (False,),
    "moe": (None,),
    "yarn": (None,),
    "model_type": ("transformer",),
}
"""Keys that say nothing at these values."""
_LATENT = ("q_lora_rank", "kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim")
_NAMES = {
    "eagle_linear": "fc",
    "tok_embeddings": "embed_tokens",
    "output": "lm_head",
    "attention_norm": "input_layernorm",
    "ffn_norm": "post_attention_layernorm",
    "attention.wq": "self_attn.q_proj",
    "attention.wk": "self_attn.k_proj",
    "attention.wv": "self_attn.v_proj",
    "attention.wo": "self_attn.o_proj",
    "feed_forward.w1": "mlp.gate_proj",
    "feed_forward.w2": "mlp.down_proj",
    "feed_forward.w3": "mlp.up_proj",
}
_NAME = re.compile(
    rf"^(layers\.\d+\.)?({'|'.join(map(re.escape, _NAMES))})\.(weight|qscale_weight|qscale_act)$"
)


def from_mistral(
    params: Mapping[str, Any], tensors: Mapping[str, TensorSource]
) -> tuple[dict[str, Any], dict[str, TensorSource]]:
    """Config and tensors as a Hugging Face checkpoint has them.

    Raises ConfigError, TensorError, UnsupportedError.
    """
    if "eagle_linear.weight" not in tensors:
        raise UnsupportedError(
            "checkpoint in Mistral's layout without eagle_linear.weight: expected an EAGLE drafter, found "
            f"{len(tensors)} other tensors"
        )
    latent = [key for key in _LATENT if params.get(key) is not None]
    if latent:
        raise UnsupportedError(
            f"{_WHERE}{latent[0]}: drafter with multi-head latent attention in Mistral's layout (Mistral "
            "Large 3): not supported"
        )
    config: dict[str, Any] = {"architectures": [ARCHITECTURE]}
    for key, value in params.items():
        if key in _KEYS:
            config[_KEYS[key]] = value
        elif key == "quantization":
            config["quantization_config"] = _quantization(value)
        elif key not in _NEUTRAL:
            raise ConfigError(f"{_WHERE}{key}: unknown key; it may change the arithmetic")
        elif value not in _NEUTRAL[key]:
            raise UnsupportedError(
                f"{_WHERE}{key}: expected {_NEUTRAL[key][0]}, found {shown(value)}: not supported"
            )
    head_dim = integer(config, "head_dim", where=_WHERE)
    return config, dict(_renamed(name, source, head_dim) for name, source in tensors.items())


def _quantization(value: Any) -> dict[str, Any]:
    kind = value.get("qformat_weight") if isinstance(value, Mapping) else value
    if kind != "fp8_e4m3":
        raise UnsupportedError(f"{_WHERE}quantization: expected qformat_weight fp8_e4m3, found {shown(kind)}")
    return {"quant_method": "fp8"}


def _renamed(name: str, source: TensorSource, head_dim: int) -> tuple[str, TensorSource]:
    match = _NAME.match(name)
    if match is None:
        return name, source
    layer, role, kind = match.groups()
    ending = {"weight": "weight", "qscale_weight": "weight_scale", "qscale_act": "input_scale"}[kind]
    renamed = f"{layer or ''}{_NAMES[role]}.{ending}"
    if kind == "qscale_weight" and math.prod(source.shape) != 1:
        raise TensorError(f"tensor {name} {list(source.shape)}: expected one scale for the whole matrix")
    if kind == "weight" and role in ("attention.wq", "attention.wk"):
        return renamed, halves(replace(source, name=renamed), head_dim)
    return renamed, replace(source, name=renamed)
