# SPDX-License-Identifier: MIT
"""Reads a Hugging Face checkpoint directory into fp32 tensors with canonical names.

The directory has `config.json`, and weights in `.safetensors` (sharded or not) or `.bin` files. The functions
return the flattened config, and the tensors as `layers.{i}.*`, `fc.weight`, `norm.weight`, `lm_head.weight`,
`embed_tokens.weight`, `d2t`. This module shares no code with `eaglecpp.convert`, because tests compare the
two readers. It does not validate checkpoints.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file

Weights = dict[str, torch.Tensor]


def canonical_name(name: str) -> str:
    """Returns the canonical name of a tensor. A leading `model.` is dropped, `midlayer.` becomes `layers.0.`,
    and `midlayer.{i}.` becomes `layers.{i}.`.
    """
    name = name.removeprefix("model.")
    name = re.sub(r"^midlayer\.(?=\d)", "layers.", name)
    name = re.sub(r"^midlayer\.", "layers.0.", name)
    for i, level in enumerate(("low", "mid", "high")):
        name = name.replace(f"aux_norm_{level}.weight", f"fc_norm.{i}.weight")
    return name


def load_config(directory: Path) -> dict[str, Any]:
    """Returns the contents of `config.json`. Keys of a nested `transformer_layer_config` move to the top
    level, unless the top level has the same key.
    """
    config: dict[str, Any] = json.loads((directory / "config.json").read_text(encoding="utf-8"))
    return {**(config.get("transformer_layer_config") or {}), **config}


def load_weights(directory: Path) -> Weights:
    """Returns all tensors of a directory: floats as fp32, integers and bools unchanged."""
    raw: Weights = {}
    for path in sorted(directory.glob("*.safetensors")):
        raw.update(load_file(path))
    for path in sorted(directory.glob("*.bin")):
        raw.update(torch.load(path, map_location="cpu", weights_only=True))
    return {
        canonical_name(name): tensor.float() if tensor.is_floating_point() else tensor
        for name, tensor in raw.items()
    }
