# SPDX-License-Identifier: MIT
"""The engine's parts as separate objects, for study, tests and training data.

- `DraftFile(path)`: a drafter GGUF, validated; `.info`. Loads no weights.
- `Drafter(path)`: teacher-forced forward on numpy arrays: `commit`, `append`, `extend`, `truncate`, `kv`.
- `Target(options, layers)`: hidden states and logits of token lists and of trees.
- `Sampler(SamplingParams, target)`: the target's sampler on given logits.

Arrays are C-contiguous float32, slowest axis first. Each method's docstring gives the exact shapes. Use
`eaglecpp.Engine` to generate text.
"""

from __future__ import annotations

from typing import Any

from eaglecpp._extension import core
from eaglecpp._extension import versions as versions
from eaglecpp.log import drain

DraftFile = core.DraftFile
Drafter = core.Drafter
EngineOptions = core.EngineOptions
Sampler = core.Sampler
SamplingParams = core.SamplingParams
Target = core.Target


def system_info() -> dict[str, Any]:
    """Returns llama.cpp's view of this machine: `devices` (name, description, kind, memory_total and
    memory_free in bytes), `amx` (whether the CPU's flags report AMX, and whether AMX works when tried),
    `n_cores` (physical cores of this process) and `errors` (llama.cpp's reasons why a device cannot be used,
    reported once per process).
    """
    info = core.system_info()
    return info | {"errors": [text.strip() for text in drain()]}


def gpus() -> list[dict[str, Any]]:
    """Returns the GPUs among `system_info`'s devices. Layers are placed there unless `n_gpu_layers` is 0."""
    return [device for device in system_info()["devices"] if device["kind"] == "gpu"]
