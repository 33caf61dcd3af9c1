# SPDX-License-Identifier: MIT
"""Tiny drafter checkpoints in the layout of every trainer and exporter that the converter reads.

`write_checkpoint(directory, family, shape)` takes a `DraftShape` (canonical names, boundary ids), and writes
the drafter in the layout of the family: prefixes of names, nested configs, the key of the layer ids and their
numbering. `edit` and `drop` damage the checkpoint on purpose. Weights are stored as safetensors, or in a .bin
that torch writes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from eaglecpp.convert import ConvertReport
from helpers.random_block import BlockShape
from helpers.random_drafter import DraftShape
from helpers.tiny import write_files

Config = dict[str, Any]
Weights = dict[str, Any]
Convert = Callable[..., ConvertReport]
"""Type of the fixture `convert`."""

_SWITCHES = ("fc_norm", "norm_output", "norm_before_fc", "norm_before_residual", "attention_bias", "mlp_bias")
_IDS = "eagle_aux_hidden_state_layer_ids"


def _plain(config: Config) -> Config:
    """Removes the keys of switches that are off, because trainers without these switches do not write the
    keys.
    """
    return {key: value for key, value in config.items() if key not in _SWITCHES or value}


def _midlayer(weights: Weights) -> Weights:
    return {name.replace("layers.0.", "midlayer."): value for name, value in weights.items()}


def _without(weights: Weights, *names: str) -> Weights:
    return {name: value for name, value in weights.items() if name not in names}


def _post(config: Config) -> list[int]:
    return [k - 1 for k in config[_IDS]]


def _class(config: Config, latent: str = "Eagle3DeepseekV2ForCausalLM") -> list[str]:
    return [latent if "kv_lora_rank" in config else "LlamaForCausalLMEagle3"]


def _eagle(config: Config, weights: Weights) -> tuple[Config, Weights]:
    config = {**_plain(config), "architectures": ["LlamaForCausalLM"]}
    return {k: v for k, v in config.items() if k != _IDS}, _midlayer(weights)


def _specforge(config: Config, weights: Weights) -> tuple[Config, Weights]:
    config = {
        **_plain(config),
        "architectures": _class(config, "DeepseekV3ForCausalLMEagle3"),
        "eagle_config": {_IDS: _post(config)},
    }
    return {k: v for k, v in config.items() if k != _IDS}, _midlayer(_without(weights, "embed_tokens.weight"))


def _vllm(config: Config, weights: Weights) -> tuple[Config, Weights]:
    return config, weights


def _speculators(config: Config, weights: Weights) -> tuple[Config, Weights]:
    own = (*_SWITCHES[:4], "draft_vocab_size", "target_hidden_size", _IDS)
    nested = {k: v for k, v in config.items() if k not in own and k != "architectures"}
    top = {k: config[k] for k in own}
    return {
        **top,
        "architectures": ["Eagle3DraftModel"],
        "speculators_model_type": "eagle3",
        "speculators_config": {"verifier": {"name_or_path": "owner/target"}},
        "transformer_layer_config": {**nested, "tie_word_embeddings": True},
    }, weights


def _modelopt(config: Config, weights: Weights) -> tuple[Config, Weights]:
    eagle_config = {
        _IDS: _post(config),
        "use_aux_hidden_state": True,
        "use_input_layernorm_in_first_layer": True,
        "use_last_layernorm": True,
        "use_mtp_layernorm": False,
        "next_layer_regular": True,
        "parallel_draft_step": 1,
        "parallel_draft_heads_num_layers": None,
    }
    config = {**_plain(config), "architectures": _class(config), "eagle_config": eagle_config}
    return {k: v for k, v in config.items() if k != _IDS}, _without(weights, "embed_tokens.weight", "t2d")


def _torchspec(config: Config, weights: Weights) -> tuple[Config, Weights]:
    eagle_config = {_IDS: _post(config), "use_aux_hidden_state": True}
    config = {**_plain(config), "architectures": _class(config), "eagle_config": eagle_config}
    return {k: v for k, v in config.items() if k != _IDS}, _midlayer(weights)


def _kimi(config: Config, weights: Weights) -> tuple[Config, Weights]:
    """Layout of TorchSpec's export for vLLM, which has boundary ids instead of TorchSpec's own ids."""
    eagle_config = {_IDS: config[_IDS], "use_aux_hidden_state": True, "use_mtp_layernorm": False}
    config = {**_plain(config), "eagle_config": eagle_config, "_torchspec_version": "0.2.0"}
    return {k: v for k, v in config.items() if k != _IDS}, weights


def _automodel(config: Config, weights: Weights) -> tuple[Config, Weights]:
    outside = ("lm_head.weight", "d2t", "t2d", "mask_hidden")
    config = {**_plain(config), "architectures": ["LlamaEagle3DraftModel"]}
    return config, {name if name in outside else f"model.{name}": value for name, value in weights.items()}


def _deepspec(config: Config, weights: Weights) -> tuple[Config, Weights]:
    ids = {
        "target_layer_ids": _post(config),
        "ttt_length": 7,
        "step_loss_decay": 0.8,
        "layer_types": ["full_attention"],
    }
    config = {**_plain(config), "architectures": ["Qwen3Eagle3Model"], "model_type": "qwen3", **ids}
    return {k: v for k, v in config.items() if k != _IDS}, weights


FAMILIES: dict[str, Callable[[Config, Weights], tuple[Config, Weights]]] = {
    "eagle": _eagle,
    "specforge": _specforge,
    "vllm": _vllm,
    "speculators": _speculators,
    "modelopt": _modelopt,
    "torchspec": _torchspec,
    "kimi": _kimi,
    "automodel": _automodel,
    "deepspec": _deepspec,
}


def write_checkpoint(
    directory: Path,
    family: str = "vllm",
    shape: DraftShape | BlockShape | None = None,
    *,
    edit: Mapping[str, Any] | None = None,
    add: Mapping[str, Any] | None = None,
    drop: Iterable[str] = (),
    save: Callable[[Path, Weights], None] | None = None,
) -> Path:
    """Writes a checkpoint in the layout of a family, and returns its directory.

    edit: config values that replace the family's (None removes the key). add, drop: tensors to add and to
    leave out, by the family's names. save: function that stores the weights (default: one model.safetensors).
    """
    shape = shape or DraftShape()
    config, weights = shape.config(), shape.weights()
    # EAGLE-1, Gemma and block drafters have their own layouts.
    if isinstance(shape, DraftShape) and not (shape.eagle1 or shape.gemma):
        config, weights = FAMILIES[family](config, weights)
    weights = {**_without(weights, *drop), **(add or {})}
    return write_files(directory, {**config, **(edit or {})}, weights, save)


def save_bin(directory: Path, weights: Weights) -> None:
    """Writes `pytorch_model.bin` with torch, with matrices in bfloat16. Skips the test if torch is
    missing.
    """
    torch: Any = pytest.importorskip("torch")

    def tensor(value: Any) -> Any:
        made = torch.from_numpy(np.array(value))
        return made.to(torch.bfloat16) if made.is_floating_point() else made

    torch.save({name: tensor(value) for name, value in weights.items()}, directory / "pytorch_model.bin")
