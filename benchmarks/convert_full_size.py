# SPDX-License-Identifier: MIT
"""Time and peak memory of converting a full-size drafter: the shapes of an 8B target's, or of Kimi K2's with
latent attention, random weights.

Writes the checkpoint (safetensors, TorchSpec layout, bf16) and a minimal target with its vocabulary into a
temporary directory, converts in a child process per type, prints a table or `--json`, and removes
everything. The checkpoint is written in slices, so making it does not affect the results.

    python benchmarks/convert_full_size.py --type Q8_0 --type Q4_K
    python benchmarks/convert_full_size.py --drafter kimi
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
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import click
import gguf
import numpy as np

FEATURES = 3
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


@dataclass(frozen=True)
class Sizes:
    """Of a drafter; heads: shapes and config of its attention."""

    hidden: int
    vocab: int
    draft_vocab: int
    feed_forward: int
    n_blocks: int
    attention: dict[str, tuple[int, ...]]
    heads: dict[str, Any]
    rope: dict[str, Any]

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Tensors of the checkpoint. It has its own embedding table, as drafters of wider targets must."""
        layer, width = "midlayer.", self.hidden
        return {
            "embed_tokens.weight": (self.vocab, width),
            "fc.weight": (width, FEATURES * width),
            **{f"fc_norm.{i}.weight": (width,) for i in range(FEATURES)},
            f"{layer}hidden_norm.weight": (width,),
            f"{layer}input_layernorm.weight": (width,),
            f"{layer}post_attention_layernorm.weight": (width,),
            **{f"{layer}self_attn.{name}.weight": shape for name, shape in self.attention.items()},
            f"{layer}mlp.gate_proj.weight": (self.feed_forward, width),
            f"{layer}mlp.up_proj.weight": (self.feed_forward, width),
            f"{layer}mlp.down_proj.weight": (width, self.feed_forward),
            "norm.weight": (width,),
            "lm_head.weight": (self.draft_vocab, width),
        }

    def config(self) -> dict[str, Any]:
        return {
            **self.heads,
            **self.rope,
            "hidden_size": self.hidden,
            "target_hidden_size": self.hidden,
            "intermediate_size": self.feed_forward,
            "num_hidden_layers": 1,
            "vocab_size": self.vocab,
            "draft_vocab_size": self.draft_vocab,
            "max_position_embeddings": 8192,
            "rms_norm_eps": 1e-5,
            "hidden_act": "silu",
            "fc_norm": True,
            "norm_output": True,
            "eagle_config": {
                "eagle_aux_hidden_state_layer_ids": [1, self.n_blocks // 2 - 1, self.n_blocks - 4],
                "use_aux_hidden_state": True,
            },
        }


DRAFTERS = {
    "8b": Sizes(
        4096, 128256, 32000, 14336, 32,
        {"q_proj": (4096, 8192), "k_proj": (1024, 8192), "v_proj": (1024, 8192), "o_proj": (4096, 4096)},
        {"architectures": ["LlamaForCausalLMEagle3"], "model_type": "llama", "num_attention_heads": 32,
         "num_key_value_heads": 8, "head_dim": 128},
        {"rope_theta": 500000.0},
    ),
    # lightseekorg/kimi-k2.6-eagle3.1-mla (TorchSpec: configs/draft_models/kimi_k25_eagle3_mla.json)
    "kimi": Sizes(
        7168, 163840, 163840, 18432, 61,
        {"q_a_proj": (1536, 14336), "q_a_layernorm": (1536,), "q_b_proj": (12288, 1536),
         "kv_a_proj_with_mqa": (576, 14336), "kv_a_layernorm": (512,), "kv_b_proj": (16384, 512),
         "o_proj": (7168, 8192)},
        {"architectures": ["Eagle3DeepseekV2ForCausalLM"], "model_type": "kimi_k2", "num_attention_heads": 64,
         "num_key_value_heads": 64, "q_lora_rank": 1536, "kv_lora_rank": 512, "qk_nope_head_dim": 128,
         "qk_rope_head_dim": 64, "v_head_dim": 128},
        {"rope_theta": 50000.0, "rope_scaling": {
            "type": "yarn", "factor": 64.0, "original_max_position_embeddings": 4096, "beta_fast": 1.0,
            "beta_slow": 1.0, "mscale": 1.0, "mscale_all_dim": 1.0}},
    ),
}  # fmt: skip


def write_checkpoint(directory: Path, sizes: Sizes) -> int:
    """Writes the checkpoint; returns its size in bytes."""
    directory.mkdir()
    (directory / "config.json").write_text(json.dumps(sizes.config(), indent=1))
    shapes, n_draft = sizes.shapes(), sizes.draft_vocab
    n_bytes = {name: 2 * int(np.prod(shape)) for name, shape in shapes.items()}
    if n_draft < sizes.vocab:
        n_bytes["d2t"] = 8 * n_draft
    header: dict[str, Any] = {}
    position = 0
    for name, size in n_bytes.items():
        kind, shape = ("I64", [n_draft]) if name == "d2t" else ("BF16", list(shapes[name]))
        header[name] = {"dtype": kind, "shape": shape, "data_offsets": [position, position + size]}
        position += size
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    path = directory / "model.safetensors"
    with path.open("wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for shape in shapes.values():
            write_random(file, int(np.prod(shape)))
        if "d2t" in n_bytes:
            kept = np.arange(n_draft, dtype=np.int64) * (sizes.vocab // n_draft)
            kept[1] = 1  # two neighbours: a table of offsets that are all different could be absolute ids
            file.write((kept - np.arange(n_draft)).astype("<i8").tobytes())
    return path.stat().st_size


def write_random(file: BinaryIO, count: int) -> None:
    """`count` normal bf16 values; one slice of them is made and written over and over."""
    values = np.random.default_rng(0).normal(0.0, 0.02, min(count, SLICE)).astype(np.float32)
    data = (values.view(np.uint32) >> 16).astype("<u2").tobytes()
    for _ in range(count // SLICE):
        file.write(data)
    file.write(data[: 2 * (count % SLICE)])


def write_target(path: Path, sizes: Sizes) -> None:
    """A GGUF with the keys a conversion reads and no tensors."""
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_name("full-size target")
    writer.add_embedding_length(sizes.hidden)
    writer.add_block_count(sizes.n_blocks)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("llama-bpe")
    writer.add_token_list([f"token{i}" for i in range(sizes.vocab)])
    writer.add_token_types([1] * sizes.vocab)
    writer.add_token_merges([f"token{i} token{i + 1}" for i in range(2 * sizes.vocab)])
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
@click.option("--drafter", type=click.Choice(list(DRAFTERS)), default="8b", show_default=True)
@click.option("--directory", type=click.Path(path_type=Path), help="Where to work; 4 GB, with kimi 10 GB.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def main(types: tuple[str, ...], drafter: str, directory: Path | None, as_json: bool) -> None:
    """Time and peak memory of converting a full-size drafter."""
    with tempfile.TemporaryDirectory(dir=directory, prefix="convert-full-size-") as name:
        root = Path(name)
        start = time.perf_counter()
        size = write_checkpoint(root / "drafter", DRAFTERS[drafter])
        write_target(root / "target.gguf", DRAFTERS[drafter])
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
