# SPDX-License-Identifier: MIT
"""Reads a Hugging Face checkpoint directory into fp32 tensors with canonical names.

Takes a directory with `config.json` and `.safetensors` (sharded or not) or `.bin` weights; gives the
flattened config and the tensors as `layers.{i}.*`, `fc.weight`, `norm.weight`, `lm_head.weight`,
`embed_tokens.weight`, `d2t`. Shares no code with `eaglecpp.convert`, which it checks, and does not validate.
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
    """Drops a leading `model.`; `midlayer.` becomes `layers.0.` and `midlayer.{i}.` becomes `layers.{i}.`."""
    name = name.removeprefix("model.")
    name = re.sub(r"^midlayer\.(?=\d)", "layers.", name)
    name = re.sub(r"^midlayer\.", "layers.0.", name)
    for i, level in enumerate(("low", "mid", "high")):
        name = name.replace(f"aux_norm_{level}.weight", f"fc_norm.{i}.weight")
    return name


def load_config(directory: Path) -> dict[str, Any]:
    """Returns `config.json`, with a nested `transformer_layer_config` as the base of the top-level keys."""
    config: dict[str, Any] = json.loads((directory / "config.json").read_text(encoding="utf-8"))
    return {**(config.get("transformer_layer_config") or {}), **config}


def load_weights(directory: Path) -> Weights:
    """Returns all tensors of the directory: floating ones as fp32, integer and bool ones unchanged."""
    raw: Weights = {}
    for path in sorted(directory.glob("*.safetensors")):
        raw.update(load_file(path))
    for path in sorted(directory.glob("*.bin")):
        raw.update(torch.load(path, map_location="cpu", weights_only=True))
    return {
        canonical_name(name): tensor.float() if tensor.is_floating_point() else tensor
        for name, tensor in raw.items()
    }
