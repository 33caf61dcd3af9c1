# SPDX-License-Identifier: MIT
"""What `eaglecpp.Llama` cannot do of `llama_cpp.Llama`, and why.

Every argument that would be ignored is refused instead with `UnsupportedError`; values that ask for nothing
special pass, so that code which spells out llama_cpp's defaults works.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any, NoReturn

from eaglecpp.errors import UnsupportedError

__all__ = ["refuse", "refuse_call", "refuse_others", "require_draft_path"]

# Arguments of llama_cpp.Llama that have no effect to give here: the values that ask for nothing special, and
# why others are refused.
_ONLY: dict[str, tuple[tuple[Any, ...], str]] = {
    "split_mode": ((1,), "layers are split over GPUs by llama.cpp's default"),
    "tensor_split": ((None,), "layers are split over GPUs by llama.cpp's default"),
    "vocab_only": ((False,), "use llama_cpp.Llama to load a vocabulary alone"),
    "kv_overrides": ((None, {}), "the file's keys are used as they are"),
    "rope_scaling_type": ((-1, None), "the file's RoPE scaling is used, as its drafter expects it"),
    "pooling_type": ((-1,), "embeddings are not supported"),
    "attention_type": ((-1,), "the model's attention type is used"),
    "yarn_ext_factor": ((-1.0,), "the file's YaRN settings are used"),
    "yarn_attn_factor": ((1.0,), "the file's YaRN settings are used"),
    "yarn_beta_fast": ((32.0,), "the file's YaRN settings are used"),
    "yarn_beta_slow": ((1.0,), "the file's YaRN settings are used"),
    "yarn_orig_ctx": ((0,), "the file's YaRN settings are used"),
    "embedding": ((False,), "embeddings are not supported; use llama_cpp.Llama"),
    "op_offload": ((None,), "llama.cpp decides"),
    "swa_full": ((None,), "the engine chooses the size of sliding-window caches for roll-back"),
    "lora_base": ((None,), "llama.cpp has no base model for LoRA any more"),
    "numa": ((False, 0), "NUMA is process-wide; set it with numactl"),
    "chat_handler": ((None,), "images and custom handlers need llama_cpp's own context; use llama_cpp.Llama"),
    "tokenizer": ((None,), "the drafter was trained on the tokenizer in the target's file"),
    "spm_infill": ((False,), "infill is not supported"),
    "logits_all": ((False, True), ""),  # log-probabilities need no such switch here
    "no_perf": ((False, True), ""),
}


def refuse(what: str, why: str) -> NoReturn:
    raise UnsupportedError(f"eaglecpp.Llama: {what} is not supported: {why}")


def refuse_others(others: Mapping[str, Any]) -> None:
    for name, value in others.items():
        if name not in _ONLY:
            raise TypeError(f"Llama() got an unexpected argument {name!r}")
        allowed, why = _ONLY[name]
        if not any(value is one or (value == one and type(value) is type(one)) for one in allowed):
            refuse(f"{name}={value!r}", why)


def refuse_call(suffix: str | None = None, logits_processor: Any = None, tfs_z: float = 1.0) -> None:
    if suffix is not None:
        refuse("suffix", "infill is not supported")
    if logits_processor:
        refuse(
            "logits_processor",
            "a Python function would have to see every drafted position of every round; use logit_bias, "
            "grammar or the sampling options, or llama_cpp.Llama",
        )
    if tfs_z != 1.0:
        refuse("tfs_z", "llama.cpp has no tail-free sampling any more (llama_cpp ignores it)")


def require_draft_path(draft_model: Any) -> None:
    if draft_model is not None and not isinstance(draft_model, str | os.PathLike):
        refuse(
            f"draft_model={type(draft_model).__name__}",
            "give the path of an EAGLE drafter GGUF; llama_cpp's draft model objects propose tokens without "
            "the target's features",
        )
