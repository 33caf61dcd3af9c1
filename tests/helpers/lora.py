# SPDX-License-Identifier: MIT
"""Writes a tiny LoRA for a tiny target, as a GGUF for llama.cpp and for Ollama's ADAPTER."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import gguf
import numpy as np
from numpy.typing import NDArray

from helpers.gguf_writer import finish

Factors = dict[str, NDArray[np.generic]]
_TENSORS = ("blk.0.ffn_down.weight", "blk.1.attn_v.weight", "blk.7.ffn_up.weight")


def write_lora(
    path: Path,
    target: Path,
    *,
    size: float = 1.0,
    only: str = "",
    change: Callable[[Factors], object] = lambda factors: None,
) -> None:
    """Writes a LoRA with random factors for some matrices of `target`, or for the matrix `only`.

    size: size of the LoRA's change relative to the weights. change: function that is called with the factors
    before they are written.
    """
    rng, rank = np.random.default_rng(7), 4
    reader = gguf.GGUFReader(target)
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_type("adapter")
    writer.add_string("adapter.type", "lora")
    writer.add_float32("adapter.lora.alpha", float(rank))
    factors: Factors = {}
    for tensor in reader.tensors:
        if tensor.name in ((only,) if only else _TENSORS):
            n_in, n_out = (int(n) for n in tensor.shape)
            std = size * float(np.std(tensor.data)) / rank**0.5
            factors[f"{tensor.name}.lora_a"] = rng.normal(0, 1, (rank, n_in)).astype(np.float32)
            factors[f"{tensor.name}.lora_b"] = rng.normal(0, std, (n_out, rank)).astype(np.float32)
    change(factors)
    finish(writer, factors)
