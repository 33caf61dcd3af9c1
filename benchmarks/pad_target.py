# SPDX-License-Identifier: MIT
"""Makes a target bigger without changing its output, so that a small model costs as much as a large model.

    python benchmarks/pad_target.py SRC.gguf OUT.gguf --layers 24 --ffn 12288 [--type Q8_0 --type Q4_0]
           [--draft D.gguf --draft-out D2.gguf] [--check]

An inserted decoder layer is a copy of the trained layer before it with `attn_output` and `ffn_down` set to
zero, so it adds nothing to the residual stream. Wider feed-forward parts repeat their gate and up rows. The
`ffn_down` columns of the new hidden units are zero. The source is a GGUF of a dense decoder in any type.
Blocks of quantised weights are copied bit for bit. With `--type`, which needs an F32, F16 or BF16 source,
libllama itself quantises the padded file. The quantised file is named OUT with the type in its name. A
drafter for the padded target is the original drafter with other boundary ids, and `--draft` writes such a
copy. Tensors are streamed, so only a few tensors are in memory at a time.
"""

from __future__ import annotations

import argparse
import ctypes
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gguf
import llama_cpp
import numpy as np
from common import arguments, note
from gguf import GGMLQuantizationType, GGUFReader, GGUFValueType, GGUFWriter, ReaderTensor
from gguf.quants import quant_shape_to_byte_shape

RAW_TYPES = (GGMLQuantizationType.F32, GGMLQuantizationType.F16, GGMLQuantizationType.BF16)
# Tensors that add to the residual stream.
SILENCED = re.compile(r"\.(attn_output|ffn_down)\.(weight|bias)$")
WIDENED_ROWS = re.compile(r"\.ffn_(gate|up)\.(weight|bias)$")
REFUSED = re.compile(r"_exps\.|ffn_gate_inp|ssm_|attn_post_norm|post_ffw_norm|attn_q_a|attn_kv_a")


@dataclass(frozen=True)
class Plan:
    """Layers of the padded target. `source[i]`: the trained block that block i copies; `trained[i]`: True if
    block i is the trained block itself.
    """

    source: list[int]
    trained: list[bool]
    ffn: int

    def boundary(self, k: int) -> int:
        """Returns the boundary id in the padded target for boundary id k of the source. The last boundary id
        of the source becomes the last boundary id of the padded target.
        """
        places = [i for i, is_trained in enumerate(self.trained) if is_trained]
        return [*places, len(self.source)][k]


def field(reader: GGUFReader, key: str) -> Any:
    found = reader.get_field(key)
    if found is None:
        raise SystemExit(f"{key} is missing; expected the GGUF of a decoder")
    return found.contents()


def make_plan(reader: GGUFReader, n_layers: int | None, ffn: int | None) -> Plan:
    """Returns a plan that distributes the inserted layers evenly after the trained layers. Raises
    `SystemExit` for impossible sizes.
    """
    architecture = field(reader, "general.architecture")
    n_trained, ffn_from = (
        field(reader, f"{architecture}.block_count"),
        field(reader, f"{architecture}.feed_forward_length"),
    )
    n_layers, ffn = n_layers or n_trained, ffn or ffn_from
    if n_layers < n_trained or not isinstance(ffn_from, int) or ffn < ffn_from or ffn % 256:
        raise SystemExit(
            f"--layers {n_layers} --ffn {ffn}: expected at least {n_trained} layers and a feed-forward "
            f"that is a multiple of 256 and at least {ffn_from}"
        )
    for tensor in reader.tensors:
        if REFUSED.search(tensor.name):
            raise SystemExit(f"{tensor.name}: expected a tensor of a plain dense decoder")
    starts = [i * n_layers // n_trained for i in range(n_trained)]
    source = [max(j for j, start in enumerate(starts) if start <= i) for i in range(n_layers)]
    return Plan(source, [i in starts for i in range(n_layers)], ffn)


def padded_shape(tensor: ReaderTensor, plan: Plan) -> tuple[int, ...]:
    """Returns the shape of the padded tensor, slowest axis first. The size of the last axis is in bytes."""
    shape = [int(n) for n in reversed(tensor.shape)]
    if WIDENED_ROWS.search(tensor.name):
        shape[0] = plan.ffn
    elif tensor.name.endswith(".ffn_down.weight"):
        shape[1] = plan.ffn
    return quant_shape_to_byte_shape(shape, tensor.tensor_type)


def padded(tensor: ReaderTensor, plan: Plan, is_trained: bool) -> np.ndarray:
    """Returns a tensor of one padded block, as bytes. In every tensor type, zero bytes encode zeros."""
    shape = [int(n) for n in reversed(tensor.shape)]
    data = np.asarray(tensor.data).reshape(-1).view(np.uint8)
    data = data.reshape(quant_shape_to_byte_shape(shape, tensor.tensor_type))
    wide = np.zeros(padded_shape(tensor, plan), np.uint8)
    if WIDENED_ROWS.search(tensor.name):
        return np.resize(data, wide.shape)
    if not is_trained and SILENCED.search(tensor.name):
        return wide
    wide[..., : data.shape[-1]] = data
    return wide


def tensors(reader: GGUFReader, plan: Plan) -> Iterator[tuple[str, ReaderTensor, bool]]:
    """Yields each tensor's name in the padded file, its source tensor, and whether it belongs to a trained
    block.
    """
    blocks: dict[int, list[ReaderTensor]] = {}
    for tensor in reader.tensors:
        block = re.match(r"blk\.(\d+)\.", tensor.name)
        if block:
            blocks.setdefault(int(block[1]), []).append(tensor)
        else:
            yield tensor.name, tensor, True
    for i, source in enumerate(plan.source):
        for tensor in blocks[source]:
            yield re.sub(r"^blk\.\d+", f"blk.{i}", tensor.name), tensor, plan.trained[i]


def copy_fields(reader: GGUFReader, writer: GGUFWriter, changed: dict[str, Any]) -> None:
    """Copies all metadata to the writer, with its architecture in the keys. Values in `changed` replace the
    file's values.
    """
    own = field(reader, "general.architecture") + "."
    for name, found in reader.fields.items():
        if name.startswith("GGUF.") or name == "general.architecture":
            continue
        element = found.types[1] if found.types[0] == GGUFValueType.ARRAY else None
        value = changed.get(name, found.contents())
        name = f"{writer.arch}.{name.removeprefix(own)}" if name.startswith(own) else name
        writer.add_key_value(name, value, found.types[0], element)


def write(path: Path, writer: GGUFWriter, data: Callable[[], Iterator[np.ndarray]]) -> None:
    """Writes a GGUF: header and metadata, then the tensors one by one. The file has a temporary name until it
    is complete.
    """
    partial = path.with_name(path.name + ".part")
    writer.open_output_file(partial)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    for array in data():
        writer.write_tensor_data(np.ascontiguousarray(array))
    writer.close()
    partial.replace(path)


def pad(source: Path, out: Path, plan: Plan) -> None:
    """Writes the padded target in the source's types."""
    reader = GGUFReader(source)
    architecture = field(reader, "general.architecture")
    writer = GGUFWriter(out, architecture)
    changed = {
        f"{architecture}.block_count": len(plan.source),
        f"{architecture}.feed_forward_length": plan.ffn,
    }
    copy_fields(reader, writer, changed)
    for name, tensor, _ in tensors(reader, plan):
        shape = padded_shape(tensor, plan)
        n_bytes = int(np.prod(shape))
        writer.add_tensor_info(name, shape, np.dtype(np.uint8), n_bytes, raw_dtype=tensor.tensor_type)
    write(
        out,
        writer,
        lambda: (padded(tensor, plan, is_trained) for _, tensor, is_trained in tensors(reader, plan)),
    )


def move_drafter(source: Path, out: Path, plan: Plan) -> list[int]:
    """Copies a drafter with other layer ids, so that the copy reads the same trained layers in the padded
    target. Returns the new layer ids.
    """
    reader = GGUFReader(source)
    architecture = field(reader, "general.architecture")
    moved = [plan.boundary(k) for k in field(reader, f"{architecture}.target_layers")]
    writer = GGUFWriter(out, architecture)
    changed = {f"{architecture}.target_layers": moved, "eaglecpp.target.block_count": len(plan.source)}
    copy_fields(reader, writer, changed)
    for tensor in reader.tensors:
        writer.add_tensor_info(
            tensor.name,
            tensor.data.shape,
            tensor.data.dtype,
            tensor.data.nbytes,
            raw_dtype=tensor.tensor_type,
        )
    write(out, writer, lambda: (tensor.data for tensor in reader.tensors))
    return moved


def quantise(source: Path, out: Path, kind: str, n_threads: int) -> None:
    """Quantises a GGUF with libllama's own quantiser. kind: the tensor type."""
    params = llama_cpp.llama_model_quantize_default_params()
    params.ftype = int(gguf.LlamaFileType[f"MOSTLY_{kind}"])
    params.nthread, params.allow_requantize = n_threads, True
    partial = out.with_name(out.name + ".part")
    if llama_cpp.llama_model_quantize(str(source).encode(), str(partial).encode(), ctypes.byref(params)) != 0:
        raise SystemExit(f"libllama could not quantise {source} to {kind}")
    partial.replace(out)


def check(source: Path, out: Path, n_tokens: int = 64) -> None:
    """Compares the greedy tokens of the source and of the padded file after a prompt of mixed tokens. Raises
    `SystemExit` if the tokens differ.
    """
    import eaglecpp

    prompt = [int(t) for t in np.random.default_rng(1).integers(2, 300, 32)]
    outputs = []
    for path in (source, out):
        with eaglecpp.Engine.open(path, n_ctx=512) as engine:
            done = engine.generate(prompt, max_tokens=n_tokens, temperature=0.0, ignore_eos=True, n_probs=1)
            outputs.append((done.tokens, [t.logprob for t in done.logprobs]))
    (tokens, before), (padded_tokens, after) = outputs
    if tokens != padded_tokens:
        raise SystemExit(f"check failed: the padded target generates other tokens\n{tokens}\n{padded_tokens}")
    gap = max(abs(a - b) for a, b in zip(before, after, strict=True))
    print(f"check: {n_tokens} greedy tokens equal, largest log-probability difference {gap:.1e}")


def parse() -> argparse.Namespace:
    parser = arguments(__doc__)
    parser.add_argument("source", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--layers", type=int, default=None)
    parser.add_argument("--ffn", type=int, default=None)
    parser.add_argument("--type", action="append", default=[], help="also quantise to this type; repeatable")
    parser.add_argument("--draft", type=Path, default=None)
    parser.add_argument("--draft-out", type=Path, default=None)
    parser.add_argument("--check", action="store_true", help="compare greedy tokens of both files")
    parser.add_argument("--threads", type=int, default=2)
    args = parser.parse_args()
    if (args.draft is None) != (args.draft_out is None):
        parser.error("--draft needs --draft-out, and --draft-out needs --draft")
    return args


def main() -> None:
    args = parse()
    reader = GGUFReader(args.source)
    plan = make_plan(reader, args.layers, args.ffn)
    quantised_type = next((t.tensor_type for t in reader.tensors if t.tensor_type not in RAW_TYPES), None)
    if args.type and quantised_type:
        raise SystemExit(f"--type: {args.source} has {quantised_type.name}; pad the F32, F16 or BF16 file")
    pad(args.source, args.out, plan)
    moved = {k: plan.boundary(k) for k in range(sum(plan.trained) + 1)}
    print(f"{args.out}: {len(plan.source)} layers, feed-forward {plan.ffn}; boundary ids {moved}")
    if args.check:
        check(args.source, args.out)
    for kind in args.type:
        quantised = args.out.with_name(f"{args.out.stem}-{kind}.gguf")
        quantise(args.out, quantised, kind, args.threads)
        print(f"{quantised}: {quantised.stat().st_size / 2**20:.0f} MiB")
    if args.draft is not None:
        print(f"{args.draft_out}: target_layers {move_drafter(args.draft, args.draft_out, plan)}")
    note("done")


if __name__ == "__main__":
    main()
