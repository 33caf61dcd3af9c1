# SPDX-License-Identifier: MIT
"""The plain twin of `eaglecpp.Llama`: a `llama_cpp.Llama` of the same file, opened when something needs it.

A logits processor has to see every logit, and frameworks reach into `_ctx`, `_model`, `scores`: drafting has
no place there. Such calls go to the twin, which decodes token by token, exactly as llama_cpp does; with
memory-mapped weights both share them. Code that never asks for any of this never pays for it.
"""

from __future__ import annotations

from llama_cpp.llama import Llama as TheirLlama  # whoever puts ours in its place writes to `llama_cpp.Llama`

__all__ = ["ARGUMENTS", "TWIN", "TheirLlama"]

TWIN = (
    "_ctx", "_model", "_batch", "_candidates", "_sampler", "_mirostat_mu", "_lora_adapter", "_requires_eval",
    "_stack", "context_params", "model_params", "_is_recurrent", "_is_hybrid", "_logits_all",
    "_c_tensor_split", "tokenizer_",
)  # fmt: skip
"""Attributes of llama_cpp's own; `Llama` has them from its twin."""

ARGUMENTS = ("kv_overrides", "lora_base", "lora_path", "lora_scale", "numa", "spm_infill", "tensor_split")
"""Attributes of llama_cpp's that are arguments of its constructor."""
