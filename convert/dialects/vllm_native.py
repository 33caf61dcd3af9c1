# SPDX-License-Identifier: MIT
"""Checkpoints written for vLLM's own class (`Eagle3LlamaForCausalLM`), among them AngelSlim's.

`midlayer.*` or `layers.0.*`, optionally behind `model.`. The class says nothing about who trained it, so
explicit ids stay ambiguous unless they explain themselves.
"""

from __future__ import annotations

from .base import Dialect, Seen

__all__ = ["VllmNative"]


class VllmNative(Dialect):
    name = "vllm"
    title = "vLLM (Eagle3LlamaForCausalLM)"

    def matches(self, seen: Seen) -> bool:
        return seen.architecture == "Eagle3LlamaForCausalLM"
