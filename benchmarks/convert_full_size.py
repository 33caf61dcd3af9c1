# SPDX-License-Identifier: MIT
"""Time and peak memory of converting a full-size drafter: the shapes of an 8B target's, random weights.

Writes the checkpoint (safetensors, TorchSpec layout, bf16) and a minimal target with its vocabulary into a
temporary directory, converts in a child process per type, prints a table or `--json`, and removes
everything. The checkpoint is written in slices, so making it does not show in the figures.

    python benchmarks/convert_full_size.py --type Q8_0 --type Q4_K
"""

from __future__ import annotations

import json
import os
import platform
import struct
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, BinaryIO

import click
import gguf
import numpy as np

HIDDEN, FEATURES, VOCAB, DRAFT_VOCAB, FEED_FORWARD = 4096, 3, 128256, 32000, 14336
HEADS, KV_HEADS, HEAD_DIM, BLOCKS = 32, 8, 128, 32
SLICE = 8 << 20  # values made at a time

CHILD = """
import json, resource, sys, time
from eaglecpp.convert import convert_checkpoint
start = time.perf_counter()
report = convert_checkpoint(sys.argv[1], sys.argv[2], sys.argv[3], sys.argv[4])
seconds = time.perf_counter() - start
peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
worst = max(t.rel_rms_error for t in report.tensors)
print(json.dumps({"type": report.type, "seconds": seconds, "peak_bytes": peak, "out_bytes": report.size,
                  "worst_rel_rms_error": worst}))
"""


def shapes() -> dict[str, tuple[int, ...]]:
    """Tensors of the checkpoint. It carries its own embedding table, as drafters of wider targets must."""
    layer = "midlayer."
    return {
        "embed_tokens.weight": (VOCAB, HIDDEN),
        "fc.weight": (HIDDEN, FEATURES * HIDDEN),
        **{f"fc_norm.{i}.weight": (HIDDEN,) for i in range(FEATURES)},
        f"{layer}hidden_norm.weight": (HIDDEN,),
        f"{layer}input_layernorm.weight": (HIDDEN,),
        f"{layer}post_attention_layernorm.weight": (HIDDEN,),
        f"{layer}self_attn.q_proj.weight": (HEADS * HEAD_DIM, 2 * HIDDEN),
        f"{layer}self_attn.k_proj.weight": (KV_HEADS * HEAD_DIM, 2 * HIDDEN),
        f"{layer}self_attn.v_proj.weight": (KV_HEADS * HEAD_DIM, 2 * HIDDEN),
        f"{layer}self_attn.o_proj.weight": (HIDDEN, HEADS * HEAD_DIM),
        f"{layer}mlp.gate_proj.weight": (FEED_FORWARD, HIDDEN),
        f"{layer}mlp.up_proj.weight": (FEED_FORWARD, HIDDEN),
        f"{layer}mlp.down_proj.weight": (HIDDEN, FEED_FORWARD),
        "norm.weight": (HIDDEN,),
        "lm_head.weight": (DRAFT_VOCAB, HIDDEN),
    }


def config() -> dict[str, Any]:
    return {
        "architectures": ["LlamaForCausalLMEagle3"],
        "model_type": "llama",
        "hidden_size": HIDDEN,
        "target_hidden_size": HIDDEN,
        "intermediate_size": FEED_FORWARD,
        "num_attention_heads": HEADS,
        "num_key_value_heads": KV_HEADS,
        "head_dim": HEAD_DIM,
        "num_hidden_layers": 1,
        "vocab_size": VOCAB,
        "draft_vocab_size": DRAFT_VOCAB,
        "max_position_embeddings": 8192,
        "rms_norm_eps": 1e-5,
        "rope_theta": 500000.0,
        "hidden_act": "silu",
        "fc_norm": True,
        "norm_output": True,
        "eagle_config": {"eagle_aux_hidden_state_layer_ids": [1, BLOCKS // 2 - 1, BLOCKS - 4]},
    }


def write_checkpoint(directory: Path) -> int:
    """Writes the checkpoint; returns its size in bytes."""
    directory.mkdir()
    (directory / "config.json").write_text(json.dumps(config(), indent=1))
    sizes = {name: 2 * int(np.prod(shape)) for name, shape in shapes().items()} | {"d2t": 8 * DRAFT_VOCAB}
    header: dict[str, Any] = {}
    position = 0
    for name, size in sizes.items():
        kind, shape = ("I64", [DRAFT_VOCAB]) if name == "d2t" else ("BF16", list(shapes()[name]))
        header[name] = {"dtype": kind, "shape": shape, "data_offsets": [position, position + size]}
        position += size
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    path = directory / "model.safetensors"
    with path.open("wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for shape in shapes().values():
            write_random(file, int(np.prod(shape)))
        kept = np.arange(DRAFT_VOCAB, dtype=np.int64) * (VOCAB // DRAFT_VOCAB)
        kept[1] = 1  # two neighbours: a table of offsets that are all different could be absolute ids
        file.write((kept - np.arange(DRAFT_VOCAB)).astype("<i8").tobytes())
    return path.stat().st_size


def write_random(file: BinaryIO, count: int) -> None:
    """`count` normal bf16 values; one slice of them is made and written over and over."""
    values = np.random.default_rng(0).normal(0.0, 0.02, min(count, SLICE)).astype(np.float32)
    data = (values.view(np.uint32) >> 16).astype("<u2").tobytes()
    for _ in range(count // SLICE):
        file.write(data)
    file.write(data[: 2 * (count % SLICE)])


def write_target(path: Path) -> None:
    """A GGUF with the keys a conversion reads and no tensors."""
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_name("full-size target")
    writer.add_embedding_length(HIDDEN)
    writer.add_block_count(BLOCKS)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("llama-bpe")
    writer.add_token_list([f"token{i}" for i in range(VOCAB)])
    writer.add_token_types([1] * VOCAB)
    writer.add_token_merges([f"token{i} token{i + 1}" for i in range(2 * VOCAB)])
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    writer.close()


def measure(source: Path, target: Path, out: Path, kind: str) -> dict[str, Any]:
    """One conversion in a process of its own, so that its peak memory is its own."""
    child = subprocess.run(
        [sys.executable, "-P", "-c", CHILD, str(source), str(target), str(out), kind],
        capture_output=True,
        text=True,
        check=False,
    )
    if child.returncode:
        raise click.ClickException(f"conversion to {kind} failed: {child.stderr.strip().splitlines()[-1]}")
    out.unlink()
    facts: dict[str, Any] = json.loads(child.stdout)
    return facts


@click.command()
@click.option(
    "--type", "types", multiple=True, default=("Q8_0", "Q4_K"), show_default=True, help="Repeatable."
)
@click.option("--directory", type=click.Path(path_type=Path), help="Where to work; needs about 4 GB.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def main(types: tuple[str, ...], directory: Path | None, as_json: bool) -> None:
    """Time and peak memory of converting a full-size drafter."""
    with tempfile.TemporaryDirectory(dir=directory, prefix="convert-full-size-") as name:
        root = Path(name)
        start = time.perf_counter()
        size = write_checkpoint(root / "drafter")
        write_target(root / "target.gguf")
        made = time.perf_counter() - start
        results = [measure(root / "drafter", root / "target.gguf", root / "out.gguf", kind) for kind in types]
    machine = {"platform": platform.platform(), "cpus": os.cpu_count(), "python": platform.python_version()}
    if as_json:
        click.echo(json.dumps({"machine": machine, "checkpoint_bytes": size, "results": results}, indent=2))
        return
    click.echo(f"checkpoint {size / 1e9:.2f} GB bf16 (made in {made:.0f} s), {machine['cpus']} CPUs")
    click.echo(f"{'type':<8} {'seconds':>8} {'peak MiB':>9} {'file MB':>8} {'worst rel. RMS':>15}")
    for r in results:
        click.echo(
            f"{r['type']:<8} {r['seconds']:>8.1f} {r['peak_bytes'] / 2**20:>9.0f} "
            f"{r['out_bytes'] / 1e6:>8.0f} {r['worst_rel_rms_error']:>15.2e}"
        )


if __name__ == "__main__":
    main()
