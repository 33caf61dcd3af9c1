# SPDX-License-Identifier: MIT
"""Tiny seeded targets as GGUF and as Hugging Face directory, and drafters that really predict the targets'
tokens.

`make_target` writes both forms of the same random weights (archs `llama`, `qwen2`, `qwen3`). `make_pair` adds
an EAGLE checkpoint. A random drafter never guesses right, and training a drafter takes too long for a test,
so the pair is built by hand. The target's residual stream is mostly its token embedding. In the drafter's
single layer, each row attends to itself and copies its input embedding. So both heads see nearly the same
vector, and `mixing` sets the difference. Run as a script to write a pair: `python tests/helpers/tiny.py
DIRECTORY [eagle3|eagle31]`.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import save_file

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parents[1]))

from eaglecpp.convert import convert_checkpoint
from eaglecpp.convert.ggml_lib import quantize_rows
from helpers.gguf_writer import finish
from helpers.tiny_tokenizer import BOS, CONTROL, EOS, Tokenizer, tiny_tokenizer

Array = NDArray[np.float32]
Weights = dict[str, Array]


@dataclass(frozen=True)
class TargetSpec:
    """Shape of a tiny target. `mixing` is the size of the blocks' outputs relative to the embedding."""

    arch: str = "llama"
    n_layers: int = 8
    n_embd: int = 64
    n_heads: int = 4
    n_kv_heads: int = 2
    head_dim: int = 32
    n_ff: int = 128
    n_ctx: int = 2048
    mixing: float = 0.25
    chat_template: bool = True
    seed: int = 1

    @staticmethod
    def of(arch: str, **changes: Any) -> TargetSpec:
        """Returns a spec that the architecture allows. libllama's qwen2 requires `n_heads * head_dim ==
        n_embd`.
        """
        heads = {"n_kv_heads": 4, "head_dim": 16} if arch == "qwen2" else {}
        return TargetSpec(arch=arch, **(heads | changes))

    def config(self, n_vocab: int) -> dict[str, Any]:
        """Returns the contents of `config.json` in the Hugging Face directory."""
        name = {"llama": "Llama", "qwen2": "Qwen2", "qwen3": "Qwen3"}[self.arch]
        return {
            "architectures": [f"{name}ForCausalLM"],
            "model_type": self.arch,
            "vocab_size": n_vocab,
            "hidden_size": self.n_embd,
            "num_hidden_layers": self.n_layers,
            "num_attention_heads": self.n_heads,
            "num_key_value_heads": self.n_kv_heads,
            "head_dim": self.head_dim,
            "intermediate_size": self.n_ff,
            "max_position_embeddings": self.n_ctx,
            "rms_norm_eps": 1e-5,
            "rope_theta": 10000.0,
            "hidden_act": "silu",
            "tie_word_embeddings": False,
            "bos_token_id": BOS,
            "eos_token_id": EOS,
            "torch_dtype": "float32",
        }


@dataclass(frozen=True)
class TinyTarget:
    """A target as GGUF and as Hugging Face directory. `weights`: the weights under Hugging Face's names.
    `gguf`: the GGUF file, in the requested tensor type.
    """

    spec: TargetSpec
    directory: Path
    gguf: Path
    weights: Weights

    @property
    def n_vocab(self) -> int:
        return len(self.weights["model.embed_tokens.weight"])


@dataclass(frozen=True)
class Pair:
    """A target and the checkpoint directory of a drafter for this target. `layers`: boundary ids of the
    drafter's features.
    """

    target: TinyTarget
    checkpoint: Path
    layers: list[int]


@dataclass(frozen=True)
class ConvertedPair:
    """A pair whose drafter is also converted to an F32 GGUF."""

    pair: Pair
    draft: Path


def target_weights(spec: TargetSpec, tokenizer: Tokenizer) -> Weights:
    """Returns random weights of a target under Hugging Face's names. The head prefers printable text, and
    never makes control tokens likely.
    """
    rng = np.random.default_rng(spec.seed)
    n_vocab, width, inner = len(tokenizer.tokens), spec.n_embd, spec.n_heads * spec.head_dim

    def normal(*shape: int, std: float) -> Array:
        return rng.normal(0.0, std, shape).astype(np.float32)

    def near_one(n: int) -> Array:
        return (1.0 + rng.normal(0.0, 0.1, n)).astype(np.float32)

    embedding = normal(n_vocab, width, std=1.0)
    embedding[:, 0] = 2.0  # because of this constant component, a row of the drafter attends to itself
    head = successor_head(rng, embedding, tokenizer)
    w: Weights = {
        "model.embed_tokens.weight": embedding,
        "lm_head.weight": head,
        "model.norm.weight": near_one(width),
    }
    added = spec.mixing / spec.n_layers**0.5
    for i in range(spec.n_layers):
        name = f"model.layers.{i}"
        for projection, rows in (("q", inner), ("k", spec.n_kv_heads * spec.head_dim)):
            w[f"{name}.self_attn.{projection}_proj.weight"] = normal(rows, width, std=1.3 / width**0.5)
        w[f"{name}.self_attn.v_proj.weight"] = normal(
            spec.n_kv_heads * spec.head_dim, width, std=1.0 / width**0.5
        )
        w[f"{name}.self_attn.o_proj.weight"] = normal(width, inner, std=2.0 * added / inner**0.5)
        w[f"{name}.mlp.gate_proj.weight"] = normal(spec.n_ff, width, std=1.5 / width**0.5)
        w[f"{name}.mlp.up_proj.weight"] = normal(spec.n_ff, width, std=1.5 / width**0.5)
        w[f"{name}.mlp.down_proj.weight"] = normal(width, spec.n_ff, std=added / spec.n_ff**0.5)
        w[f"{name}.input_layernorm.weight"] = near_one(width)
        w[f"{name}.post_attention_layernorm.weight"] = near_one(width)
        if spec.arch == "qwen2":
            for projection, rows in (("q", inner), ("k", spec.n_kv_heads * spec.head_dim), ("v", 0)):
                w[f"{name}.self_attn.{projection}_proj.bias"] = normal(
                    rows or spec.n_kv_heads * spec.head_dim, std=0.2
                )
        if spec.arch == "qwen3":
            w[f"{name}.self_attn.q_norm.weight"] = near_one(spec.head_dim)
            w[f"{name}.self_attn.k_norm.weight"] = near_one(spec.head_dim)
    return w


def successor_head(rng: np.random.Generator, embedding: Array, tokenizer: Tokenizer) -> Array:
    """Returns a head that gives each token three likely successors with similar logits, so that the context
    chooses among them.

    One successor in twenty may be any byte, and all others are printable text. Control tokens are never
    successors.
    """
    n_vocab, width = embedding.shape
    plain = [i for i in range(n_vocab) if tokenizer.is_plain(i)]
    head = rng.normal(0.0, 0.5 * width**-0.5, embedding.shape)
    head[: len(CONTROL)] = 0.0
    for token in range(n_vocab):
        for logit in (10.0, 9.0, 8.0):
            anywhere = rng.random() < 0.05
            successor = rng.integers(len(CONTROL), n_vocab) if anywhere else rng.choice(plain)
            head[successor] += logit * embedding[token] / width
    head[:, 0] *= 0.1
    return head.astype(np.float32)


def save_safetensors(directory: Path, weights: dict[str, Any]) -> None:
    save_file(weights, directory / "model.safetensors")


def write_files(
    directory: Path,
    config: Mapping[str, Any],
    weights: Mapping[str, Any],
    save: Callable[[Path, dict[str, Any]], None] | None = None,
) -> Path:
    """Writes a checkpoint directory with these config values and tensors. None leaves a value out."""
    directory.mkdir(parents=True, exist_ok=True)
    text = json.dumps({key: value for key, value in config.items() if value is not None}, indent=1)
    (directory / "config.json").write_text(text, encoding="utf-8")
    (save or save_safetensors)(directory, {name: np.ascontiguousarray(w) for name, w in weights.items()})
    return directory


def interleaved(weight: Array, n_heads: int) -> Array:
    """Reorders HF's half-split RoPE rows into the pair order of llama.cpp's `llama` architecture."""
    rows = weight.reshape(n_heads, 2, weight.shape[0] // n_heads // 2, *weight.shape[1:])
    return rows.swapaxes(1, 2).reshape(weight.shape)


GGUF_NAMES = {
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
}


def gguf_tensors(spec: TargetSpec, weights: Weights) -> Weights:
    """Returns the target's weights under GGUF names. The rows of q and k are in the architecture's RoPE
    order.
    """
    top = {"model.embed_tokens": "token_embd", "lm_head": "output", "model.norm": "output_norm"}
    tensors: Weights = {}
    for name, value in weights.items():
        stem, kind = name.rsplit(".", 1)
        if stem in top:
            tensors[f"{top[stem]}.{kind}"] = value
            continue
        _, _, layer, role = stem.split(".", 3)
        if spec.arch == "llama" and role in ("self_attn.q_proj", "self_attn.k_proj"):
            n_heads = spec.n_heads if role == "self_attn.q_proj" else spec.n_kv_heads
            value = interleaved(value, n_heads)
        tensors[f"blk.{layer}.{GGUF_NAMES[role]}.{kind}"] = value
    return tensors


def _stored(value: Array, kind: gguf.GGMLQuantizationType) -> NDArray[Any]:
    if kind.name == "F32":
        return np.ascontiguousarray(value, np.float32)
    if kind.name in ("F16", "BF16"):
        return gguf.quants.quantize(value, kind)
    return quantize_rows(np.ascontiguousarray(value, np.float32), kind)


def add_sizes(
    writer: gguf.GGUFWriter, spec: TargetSpec, n_vocab: int, lengths: tuple[int, int] | None = None
) -> None:
    """Adds the GGUF keys that every architecture has. lengths: widths of keys and values, if the widths
    differ from head_dim.
    """
    n_key, n_value = lengths or (spec.head_dim, spec.head_dim)
    writer.add_context_length(spec.n_ctx)
    writer.add_embedding_length(spec.n_embd)
    writer.add_block_count(spec.n_layers)
    writer.add_feed_forward_length(spec.n_ff)
    writer.add_head_count(spec.n_heads)
    writer.add_key_length(n_key)
    writer.add_value_length(n_value)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_freq_base(10000.0)
    writer.add_vocab_size(n_vocab)


def add_settings(writer: gguf.GGUFWriter, settings: Mapping[str, Any]) -> None:
    """Adds keys of the architecture, whose names are given without the architecture's prefix. They replace
    earlier values.
    """
    for key, setting in settings.items():
        name = f"{writer.arch}.{key}"
        writer.kv_data[0].pop(name, None)
        kind = gguf.GGUFValueType.get_type(setting)
        kind = gguf.GGUFValueType.UINT32 if kind is gguf.GGUFValueType.INT32 else kind
        writer.add_array(name, setting) if isinstance(setting, list) else writer.add_key_value(
            name, setting, kind
        )


def write_tensors(
    path: Path,
    spec: TargetSpec,
    tokenizer: Tokenizer,
    settings: Mapping[str, Any],
    tensors: Weights,
    lengths: tuple[int, int] | None = None,
    dtype: str = "F32",
) -> None:
    """Writes a target as GGUF, with matrices in `dtype` (F32, F16, Q8_0, ...) and vectors in F32. `settings`:
    keys of the header, without the architecture's prefix. `lengths`: as in `add_sizes`.
    """
    writer = gguf.GGUFWriter(path, spec.arch)
    writer.add_name(f"tiny-{spec.arch}")
    add_sizes(writer, spec, len(tokenizer.tokens), lengths)
    writer.add_file_type(int(gguf.LlamaFileType[f"MOSTLY_{dtype}" if dtype != "F32" else "ALL_F32"]))
    tokenizer.add_to(writer, spec.chat_template)
    add_settings(writer, settings)
    for name, value in tensors.items():
        kind = gguf.GGMLQuantizationType["F32" if value.ndim == 1 else dtype]
        writer.add_tensor(name, _stored(value, kind), raw_dtype=kind)
    finish(writer)


def write_gguf(
    path: Path,
    spec: TargetSpec,
    tokenizer: Tokenizer,
    weights: Weights,
    dtype: str,
    arch: str = "",
    settings: Mapping[str, Any] | None = None,
) -> None:
    """Writes a target with the weights of `target_weights` as GGUF. `arch`: architecture of the header;
    `settings`: additional or replaced keys of the header.
    """
    keys = {"attention.head_count_kv": spec.n_kv_heads, "rope.dimension_count": spec.head_dim}
    keys |= settings or {}
    named = replace(spec, arch=arch or spec.arch)
    write_tensors(path, named, tokenizer, keys, gguf_tensors(spec, weights), dtype=dtype)


def make_target(directory: Path, spec: TargetSpec | None = None, dtype: str = "F32") -> TinyTarget:
    """Writes `target/` (HF) and `target-<dtype>.gguf` below `directory`."""
    spec = spec or TargetSpec()
    tokenizer = tiny_tokenizer()
    weights = target_weights(spec, tokenizer)
    hf = write_files(directory / "target", spec.config(len(tokenizer.tokens)), weights)
    path = directory / f"target-{dtype.lower()}.gguf"
    write_gguf(path, spec, tokenizer, weights, dtype)
    return TinyTarget(spec, hf, path, weights)


def copying_drafter(target: TinyTarget, layers: list[int], plain: list[int]) -> Weights:
    """Returns the tensors of an EAGLE-3 drafter that predicts the tokens of `target`, under SafeAILab's
    names. The module's docstring explains the construction.

    Attention scores come only from the constant component of the embedding, so RoPE makes every row attend
    mostly to itself; the values carry the embedding minus a part of the feature branch. Subtracting this part
    keeps the fed-back state from growing. Otherwise, without the post-norm feed, the residual would be the
    sum of all drafted embeddings.
    """
    spec, rng = target.spec, np.random.default_rng(target.spec.seed + 1000)
    width, n_pairs, groups = spec.n_embd, 3, spec.n_heads // spec.n_kv_heads
    assert spec.n_kv_heads * spec.head_dim == width, "the values must have the width of an embedding"

    def noise(*shape: int, std: float) -> Array:
        return rng.normal(0.0, std, shape).astype(np.float32)

    basis = np.linalg.qr(rng.normal(size=(width, width)))[0].astype(np.float32)
    attend = noise(spec.head_dim, 2 * width, std=0.02)
    attend[:n_pairs, 0] += 4.0  # u[0] is the normalised constant component, which is about 2
    q, k = np.tile(attend, (spec.n_heads, 1)), np.tile(attend, (spec.n_kv_heads, 1))
    v = basis @ np.concatenate([np.eye(width), -0.9 * np.eye(width)], axis=1)
    heads = basis.T.reshape(width, spec.n_kv_heads, 1, spec.head_dim) / groups
    fused = np.concatenate([np.eye(width) / len(layers)] * len(layers), axis=1)
    ones = np.ones(width, np.float32)
    n_ff = 2 * width
    weights = {
        "fc.weight": fused,
        "midlayer.input_layernorm.weight": ones,
        "midlayer.hidden_norm.weight": ones,
        "midlayer.post_attention_layernorm.weight": ones,
        "midlayer.self_attn.q_proj.weight": q,
        "midlayer.self_attn.k_proj.weight": k,
        "midlayer.self_attn.v_proj.weight": v,
        "midlayer.self_attn.o_proj.weight": heads.repeat(groups, axis=2).reshape(width, -1),
        "midlayer.mlp.gate_proj.weight": noise(n_ff, width, std=width**-0.5),
        "midlayer.mlp.up_proj.weight": noise(n_ff, width, std=width**-0.5),
        "midlayer.mlp.down_proj.weight": noise(width, n_ff, std=0.1 * n_ff**-0.5),
        "norm.weight": target.weights["model.norm.weight"],
        "lm_head.weight": target.weights["lm_head.weight"][plain],
    }
    return {name: np.asarray(value, np.float32) for name, value in weights.items()}


def make_pair(directory: Path, kind: str = "eagle3", spec: TargetSpec | None = None) -> Pair:
    """Writes a target, and a drafter checkpoint for this target. The kind is `eagle3`, or `eagle31` with
    `fc_norm` and `norm_output`.
    """
    target = make_target(directory, spec)
    return make_eagle3(directory / f"draft-{kind}", target, new=kind == "eagle31")


def converted_pair(directory: Path, kind: str = "eagle3", spec: TargetSpec | None = None) -> ConvertedPair:
    pair, draft = make_pair(directory, kind, spec), directory / "draft-f32.gguf"
    convert_checkpoint(pair.checkpoint, target=pair.target.gguf, out=draft, type="F32")
    return ConvertedPair(pair, draft)


def make_eagle3(folder: Path, target: TinyTarget, *, new: bool = False) -> Pair:
    """Writes an EAGLE-3 or EAGLE 3.1 drafter for a target of any architecture."""
    spec, tokenizer = target.spec, tiny_tokenizer()
    layers = [2, spec.n_layers // 2, spec.n_layers - 3]
    plain = [i for i in range(len(tokenizer.tokens)) if tokenizer.is_plain(i)]
    weights: dict[str, Any] = dict(copying_drafter(target, layers, plain))
    if new:
        # fc_norm scales each feature to rms 1. The features already have nearly this size, so fc does not
        # change.
        weights |= {f"fc_norm.{i}.weight": np.ones(spec.n_embd, np.float32) for i in range(len(layers))}
    weights["d2t"] = np.array(plain) - np.arange(len(plain))
    weights["t2d"] = np.isin(np.arange(target.n_vocab), plain)
    config = replace(spec, arch="llama").config(target.n_vocab) | {
        "architectures": ["LlamaForCausalLMEagle3"],
        "num_hidden_layers": 1,
        "intermediate_size": 2 * spec.n_embd,
        "draft_vocab_size": len(plain),
        "target_hidden_size": spec.n_embd,
        "eagle_aux_hidden_state_layer_ids": layers,
    }
    if new:
        config |= {"fc_norm": True, "norm_output": True}
    return Pair(target, write_files(folder, config, weights), layers)


def prompt_ids(n_tokens: int, seed: int = 1) -> list[int]:
    """Returns a prompt of random printable tokens after the begin-of-sequence token."""
    tokenizer = tiny_tokenizer()
    plain = [i for i in range(len(tokenizer.tokens)) if tokenizer.is_plain(i)]
    return [BOS, *np.random.default_rng(seed).choice(plain, n_tokens - 1).tolist()]


def main() -> None:
    directory = Path(sys.argv[1])
    directory.mkdir(parents=True, exist_ok=True)
    pair = make_pair(directory, sys.argv[2] if len(sys.argv) > 2 else "eagle3")
    print(
        json.dumps(
            {"target": str(pair.target.gguf), "checkpoint": str(pair.checkpoint)} | asdict(pair.target.spec)
        )
    )


if __name__ == "__main__":
    main()
