# SPDX-License-Identifier: MIT
"""A tiny LoRA for a tiny target, as the GGUF that llama.cpp and Ollama's ADAPTER take."""

from __future__ import annotations

from pathlib import Path

import gguf
import numpy as np

__all__ = ["write_lora"]

_TENSORS = ("blk.0.ffn_down.weight", "blk.1.attn_v.weight", "blk.7.ffn_up.weight")


def write_lora(path: Path, target: Path, *, rank: int = 4, size: float = 1.0, seed: int = 7) -> None:
    """Random factors for some matrices of `target`; `size` is that of what they add, relative to them."""
    rng = np.random.default_rng(seed)
    reader = gguf.GGUFReader(target)
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_type("adapter")
    writer.add_string("adapter.type", "lora")
    writer.add_float32("adapter.lora.alpha", float(rank))
    for tensor in reader.tensors:
        if tensor.name in _TENSORS:
            n_in, n_out = (int(n) for n in tensor.shape)
            std = size * float(np.std(tensor.data)) / rank**0.5
            writer.add_tensor(f"{tensor.name}.lora_a", rng.normal(0, 1, (rank, n_in)).astype(np.float32))
            writer.add_tensor(f"{tensor.name}.lora_b", rng.normal(0, std, (n_out, rank)).astype(np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
