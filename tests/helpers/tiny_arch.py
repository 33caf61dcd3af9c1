# SPDX-License-Identifier: MIT
"""Tiny targets with unusual caches, each with a drafter that predicts its tokens.

`gemma3` has a sliding window, `lfm2` a recurrent state next to attention, and `deepseek2` latent attention
with a mixture of experts. llama.cpp cannot rewind the states of `mamba` and `granitehybrid`. Two more
targets, `glm4moe` and `qwen35`, have a head for further tokens.

The weights are variations of those of `helpers.tiny.make_pair`: the residual stream stays mostly the token
embedding, so the hand-built drafter is right about half the time. The targets exist only as GGUF files.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import gguf
import numpy as np

from eaglecpp.convert import convert_checkpoint
from helpers.models import Models
from helpers.tiny import (
    TargetSpec,
    TinyTarget,
    Weights,
    gguf_tensors,
    make_eagle3,
    target_weights,
    write_gguf,
    write_tensors,
)
from helpers.tiny_tokenizer import tiny_tokenizer

WINDOW = 13
# Numbers of the hybrid target's layers that have attention. Its other layers are short convolutions.
_ATTENTION_LAYERS = (1, 4, 6)
_L_CACHE = 3
_CONV, _STATE, _RANK, _N_SSM_HEADS = 4, 8, 4, 4  # sizes of the recurrent targets
_N_EXPERTS, _N_USED, _N_EXPERT_FF = 4, 2, 32  # sizes of the experts in the target with latent attention


def make_windowed(directory: Path) -> Models:
    """Writes a `gemma3` target, in which five of six layers see only the last `WINDOW` positions."""
    spec = TargetSpec(arch="gemma3")

    keys = {"attention.sliding_window": WINDOW, "attention.head_count_kv": spec.n_kv_heads}

    def tensors(weights: Weights) -> Weights:
        out = gguf_tensors(spec, weights)
        # The graph in llama.cpp multiplies the embedding by sqrt(n_embd), and norms the output of each block.
        out["token_embd.weight"] = weights["model.embed_tokens.weight"] / spec.n_embd**0.5
        small = np.full(spec.n_embd, spec.mixing / spec.n_layers**0.5, np.float32)
        for i in range(spec.n_layers):
            out |= {f"blk.{i}.post_attention_norm.weight": small, f"blk.{i}.post_ffw_norm.weight": small}
            out |= _unit_norms(i, spec.head_dim)
        return out

    return _make(directory, spec, keys, tensors)


def make_hybrid(directory: Path) -> Models:
    """Writes an `lfm2` target with three layers of attention. All other layers are short convolutions with a
    recurrent state.
    """
    spec = TargetSpec(arch="lfm2", n_kv_heads=4, head_dim=16)

    keys = {"shortconv.l_cache": _L_CACHE, "attention.head_count_kv": _attention_heads(spec)}

    def tensors(weights: Weights) -> Weights:
        rng, width = np.random.default_rng(spec.seed + 7), spec.n_embd
        out = gguf_tensors(spec, weights)
        out["token_embd_norm.weight"] = out.pop("output_norm.weight")
        for i in range(spec.n_layers):
            if i in _ATTENTION_LAYERS:
                out |= _unit_norms(i, spec.head_dim)
                continue
            _drop_attention(out, i)
            added = spec.mixing / spec.n_layers**0.5
            rows = (
                ("conv.weight", (width, _L_CACHE), 0.7),
                ("in_proj.weight", (3 * width, width), 1.0 / width**0.5),
                ("out_proj.weight", (width, width), added / width**0.5),
            )
            out |= _random(rng, f"blk.{i}.shortconv.", rows)
        return out

    return _make(directory, spec, keys, tensors)


def make_latent(directory: Path) -> Models:
    """Writes a `deepseek2` target (the architecture of Kimi K2) with latent attention, yarn, and experts from
    block 1 on. Also writes a drafter with a Llama layer for this target.
    """
    spec = TargetSpec(arch="deepseek2", chat_template=False)
    q_rank, kv_rank, nope, n_rotated, n_value = 48, 32, 16, 8, 16
    keys: dict[str, Any] = {"attention.head_count_kv": 1, "rope.dimension_count": n_rotated}
    keys |= {"attention.q_lora_rank": q_rank, "attention.kv_lora_rank": kv_rank}
    keys |= {"attention.key_length_mla": nope + n_rotated, "attention.value_length_mla": n_value}
    keys |= {"rope.scaling.type": "yarn", "rope.scaling.factor": 4.0}
    keys |= {"rope.scaling.original_context_length": 512, "rope.scaling.yarn_log_multiplier": 0.1}
    keys |= _expert_keys(1) | {"expert_gating_func": int(gguf.ExpertGatingFuncType.SOFTMAX)}

    def tensors(weights: Weights) -> Weights:
        rng, width, n_heads = np.random.default_rng(spec.seed + 9), spec.n_embd, spec.n_heads
        added = spec.mixing / spec.n_layers**0.5
        plain = gguf_tensors(spec, weights)
        out = {name: value for name, value in plain.items() if "blk." not in name or "norm" in name}
        for i in range(spec.n_layers):
            sizes: dict[str, tuple[float, tuple[int, ...]]] = {
                "attn_q_a": (1.0, (q_rank, width)),
                "attn_q_b": (1.3, (n_heads * (nope + n_rotated), q_rank)),
                "attn_kv_a_mqa": (1.3, (kv_rank + n_rotated, width)),
                "attn_k_b": (1.0, (n_heads, kv_rank, nope)),
                "attn_v_b": (1.0, (n_heads, n_value, kv_rank)),
                "attn_output": (2.0 * added, (width, n_heads * n_value)),
            }
            inner = _N_EXPERT_FF if i else spec.n_ff
            for kind, n in (("_exps", (_N_EXPERTS,)), ("_shexp", ())) if i else (("", ()),):
                sizes |= {f"ffn_{x}{kind}": (1.5, (*n, inner, width)) for x in ("gate", "up")}
                sizes[f"ffn_down{kind}"] = (added, (*n, width, inner))
            if i:
                sizes["ffn_gate_inp"] = (2.0, (_N_EXPERTS, width))
            rows = [(f"{x}.weight", shape, size / shape[-1] ** 0.5) for x, (size, shape) in sizes.items()]
            out |= _random(rng, f"blk.{i}.", rows)
            for norm, n in (("q_a_norm", q_rank), ("kv_a_norm", kv_rank)):
                out[f"blk.{i}.attn_{norm}.weight"] = np.ones(n, np.float32)
        return out

    return _make(directory, spec, keys, tensors, (kv_rank + n_rotated, kv_rank))


def make_seeing(directory: Path, arch: str) -> Models:
    """Writes a `qwen2vl` or `qwen3vl` target. In `qwen3vl`, image rows also have input values for two blocks.
    Both architectures number image rows by line and column (M-RoPE).
    """
    spec, tokenizer = TargetSpec.of(arch.removesuffix("vl")), tiny_tokenizer()
    weights, target = target_weights(spec, tokenizer), directory / f"target-{arch}.gguf"
    n_each, left = divmod(spec.head_dim // 2, 3)
    settings: dict[str, Any] = {"rope.dimension_sections": [n_each + left, n_each, n_each, 0]}
    if arch == "qwen3vl":
        settings["n_deepstack_layers"] = 1
    write_gguf(target, spec, tokenizer, weights, "F32", arch, settings)
    return _drafted_for(target, spec, weights)


def make_with_head(
    directory: Path, arch: str = "glm4moe", without: str = "", sections: tuple[int, ...] = ()
) -> Path:
    """Writes a `glm4moe`, `qwen35` or `hy_v3` target with a head for further tokens (MTP) as the last block.
    `hy_v3` has two such heads, and `qwen35` also has recurrent states. The head reads the embedding of the
    last token, which nearly determines the target's output. without: a tensor of the head to leave out.
    sections: sections of the head's rotations (M-RoPE).
    """
    return _write_with_head(
        directory / f"target-{arch}.gguf",
        arch,
        lambda name: not (without and name.endswith(without)),
        sections,
    )


def make_head_file(directory: Path, arch: str) -> Path:
    """Writes the heads of `make_with_head` into a separate GGUF file."""
    n_layers = TargetSpec(arch=arch).n_layers
    trunk = tuple(f"blk.{i}." for i in range(n_layers))
    return _write_with_head(directory / f"head-{arch}.gguf", arch, lambda name: not name.startswith(trunk))


def _write_with_head(
    path: Path, arch: str, keep: Callable[[str], bool], sections: tuple[int, ...] = ()
) -> Path:
    spec = TargetSpec(arch=arch)
    tokenizer = tiny_tokenizer()
    n_heads = 2 if arch == "hy_v3" else 1
    n_blocks = spec.n_layers + n_heads
    out = gguf_tensors(spec, target_weights(replace(spec, n_layers=n_blocks), tokenizer))
    rng, width = np.random.default_rng(spec.seed + 11), spec.n_embd
    for i in range(n_blocks):
        if arch != "hy_v3":
            out[f"blk.{i}.post_attention_norm.weight"] = out.pop(f"blk.{i}.ffn_norm.weight")
        else:
            out |= _unit_norms(i, spec.head_dim)
    heads = [f"blk.{i}" for i in range(spec.n_layers, n_blocks)]
    for head in heads:
        reads = np.concatenate([np.eye(width), rng.normal(0.0, 0.1, (width, width))], axis=1)
        out[f"{head}.nextn.eh_proj.weight"] = reads.astype(np.float32)
        for norm in ("enorm", "hnorm"):
            out[f"{head}.nextn.{norm}.weight"] = np.ones(width, np.float32)
    keys: dict[str, Any] = {"block_count": n_blocks, "nextn_predict_layers": n_heads}
    keys |= {"attention.head_count_kv": spec.n_kv_heads}
    if arch == "glm4moe":
        keys |= _add_experts(out, spec, rng)
    elif arch == "qwen35":
        keys |= _add_linear_attention(out, spec, rng)
    else:
        # The file must have the keys for experts, although no block of this target has experts.
        keys |= {"expert_feed_forward_length": _N_EXPERT_FF}
    if sections:
        keys |= {"rope.dimension_sections": list(sections)}
    write_tensors(path, spec, tokenizer, keys, {name: data for name, data in out.items() if keep(name)})
    return path


def make_with_assistant(directory: Path, **sizes: int) -> tuple[Path, Path]:
    """Writes a `gemma4` target and its assistant, which is a drafter. All blocks of the target have windows,
    except every fourth. The assistant drafts with two blocks, which are twice as wide, and read the target's
    keys and values. sizes: changed sizes of the assistant (`n_kv_heads`, `head_dim`).
    """
    spec = TargetSpec(arch="gemma4")
    tokenizer = tiny_tokenizer()
    rng, width = np.random.default_rng(spec.seed + 12), spec.n_embd
    out = gguf_tensors(spec, target_weights(spec, tokenizer))
    _add_gemma_norms(out, spec.n_layers, width, spec.head_dim)
    target, assistant = directory / "target-gemma4.gguf", directory / "assistant-gemma4.gguf"

    def keys(of: TargetSpec) -> dict[str, Any]:
        slides = [i % 4 != 3 if of.n_layers > 2 else i != 1 for i in range(of.n_layers)]
        found = {"attention.head_count_kv": of.n_kv_heads, "embedding_length_per_layer_input": 0}
        found |= {f"attention.{kind}_length_swa": of.head_dim for kind in ("key", "value")}
        windows = {"attention.sliding_window": WINDOW, "attention.sliding_window_pattern": slides}
        return found | windows

    write_tensors(target, spec, tokenizer, keys(spec), out)
    small = replace(spec, arch="gemma4-assistant", n_layers=2, n_embd=2 * width, **sizes)
    own = gguf_tensors(small, target_weights(small, tokenizer))
    _add_gemma_norms(own, small.n_layers, small.n_embd, small.head_dim)
    for i in range(small.n_layers):
        for name in ("attn_k", "attn_v", "attn_k_norm"):
            del own[f"blk.{i}.{name}.weight"]
        own[f"blk.{i}.layer_output_scale.weight"] = np.ones(1, np.float32)
    # The head treats the target's output as a function of the last token alone.
    head, kept = out["output.weight"], np.linalg.qr(rng.normal(size=(small.n_embd, width)))[0].T
    own["token_embd.weight"] = (head @ kept).astype(np.float32)
    del own["output.weight"]
    reads = np.concatenate([kept.T / width**0.5, 0.1 * rng.normal(size=kept.T.shape)], axis=1)
    own["nextn.pre_projection.weight"] = reads.astype(np.float32)
    own["nextn.post_projection.weight"] = np.ascontiguousarray(kept, np.float32)

    more = {"embedding_length_out": width, "nextn_predict_layers": small.n_layers}
    write_tensors(assistant, small, tokenizer, keys(small) | more, own)
    return target, assistant


def _add_gemma_norms(out: Weights, n_layers: int, width: int, head_dim: int) -> None:
    out["rope_freqs.weight"] = np.ones(head_dim // 2, np.float32)
    for i in range(n_layers):
        out |= _unit_norms(i, head_dim)
        for name in ("post_attention_norm", "post_ffw_norm"):
            out[f"blk.{i}.{name}.weight"] = np.full(width, 0.3, np.float32)


def _add_experts(out: Weights, spec: TargetSpec, rng: np.random.Generator) -> dict[str, Any]:
    """Adds the experts of the MTP head. The blocks before the head have no experts."""
    head = f"blk.{spec.n_layers}"
    out[f"{head}.ffn_gate_inp.weight"] = rng.normal(0.0, 0.1, (_N_EXPERTS, spec.n_embd)).astype(np.float32)
    out[f"{head}.exp_probs_b.bias"] = np.zeros(_N_EXPERTS, np.float32)
    for role in ("gate", "up", "down"):
        one = out.pop(f"{head}.ffn_{role}.weight")
        one = one[:, :_N_EXPERT_FF] if role == "down" else one[:_N_EXPERT_FF]
        out[f"{head}.ffn_{role}_exps.weight"] = np.stack([one] * _N_EXPERTS)
        out[f"{head}.ffn_{role}_shexp.weight"] = one

    return _expert_keys(spec.n_layers)


def _expert_keys(n_dense: int) -> dict[str, Any]:
    keys = {"leading_dense_block_count": n_dense, "expert_feed_forward_length": _N_EXPERT_FF}
    return keys | {"expert_count": _N_EXPERTS, "expert_used_count": _N_USED, "expert_shared_count": 1}


def _add_linear_attention(out: Weights, spec: TargetSpec, rng: np.random.Generator) -> dict[str, Any]:
    """Adds linear attention to three of four blocks, and gates to the queries of all other blocks."""
    n_state, n_groups, n_heads, n_kernel = 16, 2, 4, 4
    n_key, n_value = n_state * n_groups, n_state * n_heads
    for i in range(spec.n_layers + 1):
        block = f"blk.{i}"
        if i == spec.n_layers or i % 4 == 3:
            q = out[f"{block}.attn_q.weight"].reshape(spec.n_heads, spec.head_dim, spec.n_embd)
            out[f"{block}.attn_q.weight"] = np.concatenate([q, 0 * q], axis=1).reshape(-1, spec.n_embd)
            out |= _unit_norms(i, spec.head_dim)
            continue
        _drop_attention(out, i)
        added = spec.mixing / spec.n_layers**0.5
        out[f"{block}.ssm_a"] = -rng.uniform(0.2, 2.0, n_heads).astype(np.float32)
        out[f"{block}.ssm_norm.weight"] = np.ones(n_state, np.float32)
        rows = (
            ("attn_qkv.weight", (2 * n_key + n_value, spec.n_embd), 1.0 / spec.n_embd**0.5),
            ("attn_gate.weight", (n_value, spec.n_embd), 1.0 / spec.n_embd**0.5),
            ("ssm_conv1d.weight", (2 * n_key + n_value, n_kernel), 0.5),
            ("ssm_dt.bias", (n_heads,), 0.5),
            ("ssm_beta.weight", (n_heads, spec.n_embd), 1.0 / spec.n_embd**0.5),
            ("ssm_alpha.weight", (n_heads, spec.n_embd), 1.0 / spec.n_embd**0.5),
            ("ssm_out.weight", (spec.n_embd, n_value), added / n_value**0.5),
        )
        out |= _random(rng, f"{block}.", rows)

    keys: dict[str, Any] = {"rope.dimension_sections": [6, 5, 5, 0], "rope.dimension_count": spec.head_dim}
    keys |= {"ssm.conv_kernel": n_kernel, "ssm.inner_size": n_value, "ssm.state_size": n_state}
    keys |= {"ssm.time_step_rank": n_heads, "ssm.group_count": n_groups}
    return keys | {"full_attention_interval": 4}


def make_recurrent(directory: Path) -> Models:
    """Writes a `mamba` target, which has only recurrent states. llama.cpp cannot rewind these states."""
    spec = TargetSpec(arch="mamba")
    inner = 2 * spec.n_embd

    keys = {"ssm.conv_kernel": _CONV, "ssm.inner_size": inner, "ssm.state_size": _STATE}
    keys |= {"ssm.time_step_rank": _RANK}

    def tensors(weights: Weights) -> Weights:
        rng, renamed = np.random.default_rng(spec.seed + 8), gguf_tensors(spec, weights)
        out = {name: value for name, value in renamed.items() if not name.startswith("blk.")}
        for i in range(spec.n_layers):
            added = spec.mixing / spec.n_layers**0.5
            out[f"blk.{i}.attn_norm.weight"] = renamed[f"blk.{i}.attn_norm.weight"]
            out[f"blk.{i}.ssm_a"] = -np.tile(np.arange(1.0, _STATE + 1), (inner, 1)).astype(np.float32)
            out[f"blk.{i}.ssm_d"] = np.ones(inner, np.float32)
            rows = (
                ("in.weight", (2 * inner, spec.n_embd), 1.0 / spec.n_embd**0.5),
                ("conv1d.weight", (inner, _CONV), 0.5),
                ("conv1d.bias", (inner,), 0.1),
                ("x.weight", (_RANK + 2 * _STATE, inner), 1.0 / inner**0.5),
                ("dt.weight", (inner, _RANK), 0.5),
                ("dt.bias", (inner,), 0.5),
                ("out.weight", (spec.n_embd, inner), added / inner**0.5),
            )
            out |= _random(rng, f"blk.{i}.ssm_", rows)
        return out

    return _make(directory, spec, keys, tensors)


def make_forgetful_hybrid(directory: Path, spec: TargetSpec | None = None, n_state: int = _STATE) -> Models:
    """Writes a `granitehybrid` target with Mamba 2's states and three layers of attention."""
    spec = spec or TargetSpec(arch="granitehybrid", n_kv_heads=4, head_dim=16)
    inner, n_conv = 2 * spec.n_embd, 2 * spec.n_embd + 2 * n_state

    keys: dict[str, Any] = {"attention.head_count_kv": _attention_heads(spec), "ssm.group_count": 1}
    keys |= {"ssm.conv_kernel": _CONV, "ssm.inner_size": inner, "ssm.state_size": n_state}
    keys |= {"ssm.time_step_rank": _N_SSM_HEADS}

    def tensors(weights: Weights) -> Weights:
        rng, out = np.random.default_rng(spec.seed + 8), gguf_tensors(spec, weights)
        for i in range(spec.n_layers):
            if i in _ATTENTION_LAYERS:
                continue
            _drop_attention(out, i)
            added = spec.mixing / spec.n_layers**0.5
            out[f"blk.{i}.ssm_a"] = -rng.uniform(0.2, 2.0, (_N_SSM_HEADS, 1)).astype(np.float32)
            out[f"blk.{i}.ssm_d"] = np.ones((_N_SSM_HEADS, 1), np.float32)
            out[f"blk.{i}.ssm_norm.weight"] = np.ones((1, inner), np.float32)
            rows = (
                ("in.weight", (inner + n_conv + _N_SSM_HEADS, spec.n_embd), 1.0 / spec.n_embd**0.5),
                ("conv1d.weight", (n_conv, _CONV), 0.5),
                ("conv1d.bias", (n_conv,), 0.1),
                ("dt.bias", (_N_SSM_HEADS,), 0.5),
                ("out.weight", (spec.n_embd, inner), added / inner**0.5),
            )
            out |= _random(rng, f"blk.{i}.ssm_", rows)
        return out

    return _make(directory, spec, keys, tensors)


def _make(
    directory: Path,
    spec: TargetSpec,
    keys: Mapping[str, Any],
    tensors: Callable[[Weights], Weights],
    lengths: tuple[int, int] | None = None,
) -> Models:
    tokenizer = tiny_tokenizer()
    weights = target_weights(spec, tokenizer)
    target = directory / f"target-{spec.arch}.gguf"
    write_tensors(target, spec, tokenizer, keys, tensors(weights), lengths)
    return _drafted_for(target, spec, weights)


def _drafted_for(target: Path, spec: TargetSpec, weights: Weights) -> Models:
    folder = target.with_name(f"draft-{target.stem}")
    pair = make_eagle3(folder, TinyTarget(spec, target.parent, target, weights))
    draft = folder.with_suffix(".gguf")
    convert_checkpoint(pair.checkpoint, target=target, out=draft, type="F32", aux_layers=pair.layers)
    return Models(target, draft)


def _attention_heads(spec: TargetSpec) -> list[int]:
    """Returns the number of KV heads of each layer. The number is 0 in layers without attention."""
    return [spec.n_kv_heads * (i in _ATTENTION_LAYERS) for i in range(spec.n_layers)]


def _drop_attention(out: Weights, layer: int) -> None:
    for role in ("attn_q", "attn_k", "attn_v", "attn_output"):
        del out[f"blk.{layer}.{role}.weight"]


def _random(
    rng: np.random.Generator, prefix: str, rows: Iterable[tuple[str, tuple[int, ...], float]]
) -> Weights:
    """Returns random weights. rows: (name, shape, typical size of a value) of each tensor."""
    return {f"{prefix}{name}": rng.normal(0.0, std, shape).astype(np.float32) for name, shape, std in rows}


def _unit_norms(layer: int, head_dim: int) -> Weights:
    return {f"blk.{layer}.attn_{x}_norm.weight": np.ones(head_dim, np.float32) for x in "qk"}
