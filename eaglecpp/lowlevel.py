# SPDX-License-Identifier: MIT
"""The parts of the engine one by one, for study, tests and training data.

- `DraftFile(path)`: a drafter GGUF, validated; `.info`, `.tensors`. Loads no weights.
- `Drafter(path)`: teacher-forced forward on numpy arrays: `commit`, `append`, `extend`,
  `truncate`, `kv`.
- `Target(options, layers)`: features and logits of token lists and of trees.
- `Sampler(SamplingParams, target)`: the target's sampler on given logits.

Arrays are C-contiguous float32, slowest axis first; the exact shapes are in the docstrings of each method.
Use `eaglecpp.Engine` to generate text.
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
    """What llama.cpp sees of this machine: `devices` (name, description, kind, memory_total and memory_free
    in bytes), `amx` (claimed by the CPU flags, works when tried), `n_cores` (physical, of this process),
    `errors` (why a device cannot be used, in llama.cpp's words; said once per process).
    """
    info = core.system_info()
    return info | {"errors": [text.strip() for text in drain()]}


def gpus() -> list[dict[str, Any]]:
    """Those of `system_info`'s devices that are GPUs. Layers lie there unless `n_gpu_layers` is 0."""
    return [device for device in system_info()["devices"] if device["kind"] == "gpu"]
