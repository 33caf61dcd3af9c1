# SPDX-License-Identifier: MIT
"""Features of `llama_cpp.Llama` that `eaglecpp.Llama` lacks, and the reason for each.

Arguments of llama_cpp that would have no effect raise `UnsupportedError`. llama_cpp's default values are
accepted, so that code which passes these values works. Arguments that llama_cpp itself does not know are
ignored with one warning (llama_cpp ignores them silently), because llama_cpp's server and LangChain pass
arguments that llama_cpp dropped long ago.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any, NoReturn

from eaglecpp.errors import UnsupportedError

_log = logging.getLogger("eaglecpp.llama")

_YARN = {"ext_factor": -1.0, "attn_factor": 1.0, "beta_fast": 32.0, "beta_slow": 1.0, "orig_ctx": 0}
# Arguments of llama_cpp.Llama that have no effect here. Each has the accepted values and the reason why other
# values are refused.
_ONLY: dict[str, tuple[tuple[Any, ...], str]] = {
    "split_mode": ((1,), "layers are split over GPUs by llama.cpp's default"),
    "tensor_split": ((None,), "layers are split over GPUs by llama.cpp's default"),
    "kv_overrides": ((None, {}), "the keys in the file are used unchanged"),
    "rope_scaling_type": ((-1, None), "the file's RoPE scaling is used, as its drafter expects it"),
    "pooling_type": ((-1, 0, 1, 2, 3, 4), "llama.cpp has no such pooling"),
    "attention_type": ((-1,), "the model's attention type is used"),
    **{f"yarn_{name}": ((value,), "the file's YaRN settings are used") for name, value in _YARN.items()},
    # The context for embeddings is opened when it is first used. Log-probabilities are always available.
    **dict.fromkeys(("embedding", "logits_all", "no_perf", "spm_infill"), ((False, True), "")),
    "op_offload": ((None,), "llama.cpp decides"),
    "swa_full": ((None,), "the engine chooses the size of sliding-window caches for roll-back"),
    "lora_base": ((None,), "llama.cpp no longer has a base model for LoRA"),
    "numa": ((False, 0), "NUMA is process-wide; set it with numactl"),
    "tokenizer": ((None,), "the drafter was trained on the tokenizer in the target's file"),
    "vocab_only": ((False,), "drafting needs the weights; use llama_cpp.Llama"),
}


def refuse(what: str, why: str) -> NoReturn:
    raise UnsupportedError(f"eaglecpp.Llama: {what} is not supported: {why}")


def refuse_others(others: Mapping[str, Any]) -> None:
    unknown = sorted(name for name in others if name not in _ONLY)
    if unknown:
        _log.warning(
            "Llama(): unknown arguments are ignored, as llama_cpp ignores them: %s", ", ".join(unknown)
        )
    for name, value in others.items():
        if name not in _ONLY:
            continue
        allowed, why = _ONLY[name]
        if not any(value is other or (value == other and type(value) is type(other)) for other in allowed):
            refuse(f"{name}={value!r}", why)
