# SPDX-License-Identifier: MIT
"""The plain twin of `eaglecpp.Llama`: a `llama_cpp.Llama` of the same file, opened on first use.

A logits processor must see every logit, and frameworks use `_ctx`, `_model` and `scores`, which drafting
cannot provide. Such calls go to the twin, which decodes token by token like llama_cpp. The twin shares
memory-mapped weights with the engine. Code without such calls never opens the twin.
"""

from __future__ import annotations

from typing import Any

import llama_cpp.llama_cpp as native

# the original class stays available here even if a program replaces llama_cpp.Llama
from llama_cpp.llama import Llama as TheirLlama

from eaglecpp._extension import core

__all__ = ["ARGUMENTS", "TWIN", "TheirLlama", "open_twin"]

TWIN = (
    "_ctx", "_model", "_batch", "_candidates", "_sampler", "_mirostat_mu", "_lora_adapter", "_requires_eval",
    "_stack", "context_params", "model_params", "_is_recurrent", "_is_hybrid", "_logits_all",
    "_c_tensor_split", "tokenizer_",
)  # fmt: skip
"""llama_cpp's own attributes, which `Llama` takes from its twin."""

ARGUMENTS = ("kv_overrides", "lora_base", "lora_path", "lora_scale", "numa", "spm_infill", "tensor_split")
"""llama_cpp's attributes that are arguments of its constructor."""


def open_twin(arguments: dict[str, Any]) -> TheirLlama:
    """Opens the twin. If the processor claims AMX but AMX fails, the twin's weights are not repacked, because
    they would crash the process. llama_cpp has no argument for this.
    """
    amx, usual = core.system_info()["amx"], native.llama_model_default_params
    if amx["works"] or not amx["claimed"]:
        return TheirLlama(**arguments)

    def without_repacking() -> Any:
        params = usual()
        params.use_extra_bufts = False
        return params

    native.llama_model_default_params = without_repacking
    try:
        return TheirLlama(**arguments)
    finally:
        native.llama_model_default_params = usual
