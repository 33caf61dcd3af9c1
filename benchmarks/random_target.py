# SPDX-License-Identifier: MIT
"""Makes targets of random weights, to time tensor types and graphs for which there is no small trained model.

    python benchmarks/random_target.py SRC.gguf OUT_FOLDER IQ2_XXS IQ3_S ... [--family gemma] [--width 2048]
           [--layers 12]

Writes OUT_FOLDER/random-TYPE.gguf for each type, with all matrices in this type. SRC is any Llama model and
provides the vocabulary. ggml quantises 16 rows of each shape, and each matrix repeats these rows, because the
cost of a product does not depend on values.
"""

from __future__ import annotations

import ctypes
from pathlib import Path

import llama_cpp
import numpy as np
from common import arguments
from gguf import GGMLQuantizationType, GGUFReader, GGUFWriter
from gguf.quants import quant_shape_to_byte_shape
from pad_target import copy_fields, write

N_ROWS = 16
HEAD = 64


def matrix(shape: tuple[int, int], kind: GGMLQuantizationType) -> np.ndarray:
    """Returns a random matrix in a tensor type, as bytes. shape: slowest axis first."""
    path = next((Path(llama_cpp.__file__).parent / "lib").glob("libggml-base.*"))
    quantize = ctypes.CDLL(str(path)).ggml_quantize_chunk
    quantize.argtypes = [ctypes.c_int, *[ctypes.c_void_p] * 2, *[ctypes.c_int64] * 3, ctypes.c_void_p]
    rows = np.random.default_rng(1).normal(0.0, 0.02, (N_ROWS, shape[1])).astype(np.float32)
    importance = np.ones(shape[1], np.float32)  # some types need an importance matrix
    data = np.zeros(quant_shape_to_byte_shape(rows.shape, kind), np.uint8)
    quantize(kind, rows.ctypes.data, data.ctypes.data, 0, N_ROWS, shape[1], importance.ctypes.data)
    return np.resize(data, (shape[0], data.shape[1]))


def make(
    source: GGUFReader, out: Path, kind: GGMLQuantizationType, family: str, width: int, n_layers: int
) -> None:
    n_vocab = next(int(t.shape[1]) for t in source.tensors if t.name == "token_embd.weight")
    wide = width * 11 // 4 // 256 * 256
    shapes = {
        "attn_q": (width, width), "attn_k": (width // 4, width), "attn_v": (width // 4, width),
        "attn_output": (width, width), "ffn_gate": (wide, width), "ffn_up": (wide, width),
        "ffn_down": (width, wide),
    }  # fmt: skip
    made = {shape: matrix(shape, kind) for shape in {(n_vocab, width), *shapes.values()}}
    matrices = {"token_embd": made[n_vocab, width]}
    norms = ["output_norm"]
    for i in range(n_layers):
        matrices |= {f"blk.{i}.{name}": made[shape] for name, shape in shapes.items()}
        norms += [f"blk.{i}.attn_norm", f"blk.{i}.ffn_norm"]
    writer = GGUFWriter(out, family)
    sizes = {
        "embedding_length": width, "feed_forward_length": wide, "block_count": n_layers,
        "attention.head_count": width // HEAD, "attention.head_count_kv": width // HEAD // 4,
        "rope.dimension_count": HEAD,
    }  # fmt: skip
    copy_fields(source, writer, {f"llama.{key}": value for key, value in sizes.items()})
    if family == "qwen2vl":
        writer.add_rope_dimension_sections([HEAD // 4, HEAD // 8, HEAD // 8, 0])
    for name, data in matrices.items():
        writer.add_tensor_info(f"{name}.weight", data.shape, data.dtype, data.nbytes, raw_dtype=kind)
    ones = np.ones(width, np.float32)
    for name in norms:
        writer.add_tensor_info(f"{name}.weight", ones.shape, ones.dtype, ones.nbytes)
    write(out, writer, lambda: iter([*matrices.values(), *[ones] * len(norms)]))


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("source", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("types", nargs="+", type=lambda name: GGMLQuantizationType[name])
    parser.add_argument("--family", choices=("llama", "gemma", "qwen2vl"), default="llama")
    parser.add_argument("--width", type=int, default=2048)
    parser.add_argument("--layers", type=int, default=12)
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    for kind in args.types:
        path = args.out / f"random-{'' if args.family == 'llama' else args.family + '-'}{kind.name}.gguf"
        make(GGUFReader(args.source), path, kind, args.family, args.width, args.layers)
        print(f"{path}: {path.stat().st_size / 2**20:.0f} MiB")


if __name__ == "__main__":
    main()
