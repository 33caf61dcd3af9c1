# SPDX-License-Identifier: MIT
"""Writes projectors (mmproj) for tiny targets as GGUF with random weights, like llama.cpp's converter, and
small images. The image rows of Gemma 3 attend in both directions. The image rows of Janus Pro are read like
text. Qwen2-VL takes images of any shape, and targets with M-RoPE number its image rows by line and column.
"""

from __future__ import annotations

import struct
import zlib
from pathlib import Path
from typing import Any

import gguf
import numpy as np

from helpers.gguf_writer import finish

IMAGE, PATCH, MERGE = 32, 4, 2
"""Side of an image and of a patch in pixels; patches along the side of one row of Gemma's."""
N_ROWS = {"gemma3": (IMAGE // PATCH // MERGE) ** 2, "janus_pro": (IMAGE // PATCH) ** 2}
"""Rows of an image, whatever its size."""


def make_projector(path: Path, n_embd: int, kind: str = "gemma3", **keys: Any) -> Path:
    """Writes a projector with random weights. n_embd: width of the target's embeddings. kind: "gemma3",
    "janus_pro", "qwen2vl_merger", or "hunyuanvl" (a projector that loads but cannot encode). keys:
    metadata that replaces the default, by names without the prefix `clip.vision.`.
    """
    rng = np.random.default_rng(3)
    wide, inner, n_patches = 32, 64, (IMAGE // PATCH) ** 2

    def normal(*shape: int) -> np.ndarray:
        return rng.normal(0.0, 1.0 / shape[-1] ** 0.5, shape).astype(np.float32)

    writer = gguf.GGUFWriter(path, "clip")
    writer.add_bool("clip.has_vision_encoder", True)
    writer.add_string("clip.projector_type", kind)
    writer.add_bool("clip.use_gelu", True)
    writer.add_float32("clip.vision.attention.layer_norm_epsilon", 1e-6)
    values = {
        "image_size": IMAGE, "patch_size": PATCH, "embedding_length": wide, "feed_forward_length": inner,
        "block_count": 1, "attention.head_count": 4, "projection_dim": n_embd,
        "projector.scale_factor": MERGE,
    }  # fmt: skip
    for name, value in (values | keys).items():
        writer.add_uint32(f"clip.vision.{name}", value)
    writer.add_array("clip.vision.image_mean", [0.5, 0.5, 0.5])
    writer.add_array("clip.vision.image_std", [0.5, 0.5, 0.5])
    tensors = {"v.patch_embd.weight": normal(wide, 3, PATCH, PATCH)}
    if kind == "qwen2vl_merger":
        # These weights are for the second of two frames of a video.
        tensors["v.patch_embd.weight.1"] = normal(wide, 3, PATCH, PATCH)
    else:
        tensors |= {"v.patch_embd.bias": normal(wide), "v.position_embd.weight": normal(n_patches, wide)}
    for name in ("v.post_ln", "v.blk.0.ln1", "v.blk.0.ln2"):
        tensors |= {f"{name}.weight": np.ones(wide, np.float32), f"{name}.bias": normal(wide)}
    for name in ("attn_q", "attn_k", "attn_v", "attn_out"):
        tensors |= {f"v.blk.0.{name}.weight": normal(wide, wide), f"v.blk.0.{name}.bias": normal(wide)}
    up, down = (
        ("ffn_down", "ffn_up") if kind == "gemma3" else ("ffn_up", "ffn_down")
    )  # llama.cpp swaps these two tensors of Gemma 3's feed-forward layer
    tensors |= {f"v.blk.0.{up}.weight": normal(inner, wide), f"v.blk.0.{up}.bias": normal(inner)}
    tensors |= {f"v.blk.0.{down}.weight": normal(wide, inner), f"v.blk.0.{down}.bias": normal(wide)}
    if kind == "gemma3":
        tensors |= {"mm.soft_emb_norm.weight": np.ones(wide, np.float32),
                    "mm.input_projection.weight": normal(wide, n_embd)}  # fmt: skip
    else:
        last, n_in = ("mm.1", wide) if kind == "janus_pro" else ("mm.2", MERGE**2 * wide)
        tensors |= {"mm.0.weight": normal(inner, n_in), "mm.0.bias": normal(inner)}
        tensors |= {f"{last}.weight": normal(n_embd, inner), f"{last}.bias": normal(n_embd)}
    if kind == "hunyuanvl":
        one = ("pre_norm.weight", "post_norm.weight", "image_begin", "image_end", "model.fc.bias")
        tensors |= {f"mm.{name}": normal(n_embd) for name in one}
        tensors |= {"mm.model.fc.weight": normal(n_embd, n_embd), "v.image_newline": normal(n_embd)}
    finish(writer, tensors)
    return path


def make_image(seed: int = 0, width: int = IMAGE, height: int = IMAGE) -> bytes:
    """Returns a PNG of random pixels."""
    pixels = np.random.default_rng(seed).integers(0, 256, (height, 3 * width), np.uint8)
    rows = b"".join(b"\0" + row.tobytes() for row in pixels)

    def part(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    head = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return (
        b"\x89PNG\r\n\x1a\n" + part(b"IHDR", head) + part(b"IDAT", zlib.compress(rows)) + part(b"IEND", b"")
    )
