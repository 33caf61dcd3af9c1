# SPDX-License-Identifier: MIT
"""Mistral's EAGLE drafters: EAGLE-1's fusion before ordinary decoder layers, with all their norms.

The state after the final norm is what the head reads and what is fed to the next step (vllm-project/vllm:
vllm/model_executor/models/mistral_eagle.py). Embeddings and head are the target's.
"""

from __future__ import annotations

from typing import Any

from .base import Dialect, Seen


class MistralEagle(Dialect):
    name = "mistral"
    title = "Mistral EAGLE"
    classes = ("EagleMistralForCausalLM",)
    fuses_embedding = True

    def flatten(self, seen: Seen) -> dict[str, Any]:
        return {**seen.config, "norm_output": True}
