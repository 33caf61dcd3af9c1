# SPDX-License-Identifier: MIT
"""Names and first values of the drafter's weights: from a checkpoint, from the target, and back to files.

`from_checkpoint` reads an existing drafter, `from_target` starts a new one: head rows and final norm are the
target's; so is the first layer, unless told otherwise, if the target's last block has its shape; the rest is
small and random. The block brings the attention that copies earlier text, which a random layer learns late
(docs/research/training.md has measurements of both). `new_layers` are further ones that change nothing before
they are trained. `to_checkpoint` gives the tensors under the names of TorchSpec and SafeAILab (`midlayer.*`;
of EAGLE-1 `layers.0.*`, without a head); further layers are `layers.1.*` and so on, as vLLM reads them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from eaglecpp.convert import DraftCheckpoint, DraftSpec, GgufFile, read_tensor, unpair_rows
from eaglecpp.errors import UnsupportedError

__all__ = ["Start", "from_checkpoint", "from_target", "new_layers", "target_embedding", "to_checkpoint"]

State = dict[str, Tensor]

_NORMS = {
    "embed_norm": "midlayer.input_layernorm",
    "hidden_norm": "midlayer.hidden_norm",
    "mlp_norm": "midlayer.post_attention_layernorm",
    "q_norm": "midlayer.self_attn.q_norm",
    "k_norm": "midlayer.self_attn.k_norm",
    "input_norm": "input_norm",
    "norm": "norm",
}
_MATRICES = {
    "fc": "fc",
    "o": "midlayer.self_attn.o_proj",
    "down": "midlayer.mlp.down_proj",
    "head": "lm_head",
}

_DEEP = {
    "attn_norm": "input_layernorm",
    "q_norm": "self_attn.q_norm",
    "k_norm": "self_attn.k_norm",
    "o": "self_attn.o_proj",
    "mlp_norm": "post_attention_layernorm",
    "down": "mlp.down_proj",
}
"""Of the layers after the first."""

# Architectures whose blocks are plain pre-norm Llama blocks, and whether q and k rows are stored in pairs.
_PAIRED_ROWS = {"llama": True, "qwen2": False, "qwen3": False}


@dataclass(frozen=True)
class Start:
    """First values of all weights of a `DraftModel`, and what they come from, for people."""

    state: State
    notes: tuple[str, ...]


def target_embedding(target: GgufFile) -> Tensor:
    """The target's table, f32 [n_vocab, n_embd]. Raises UnsupportedError for a file without one."""
    if "token_embd.weight" not in target.tensors:
        raise UnsupportedError(f"{target.path}: expected a tensor token_embd.weight, found none")
    return torch.from_numpy(read_tensor(target, "token_embd.weight"))


def from_checkpoint(draft: DraftCheckpoint) -> State:
    """The weights of an existing drafter; the head is missing where it is the target's."""

    def read(name: str) -> Tensor:
        return torch.from_numpy(np.ascontiguousarray(draft.sources[f"{name}.weight"].read(), np.float32))

    layer = "layers.0"
    state = {
        ours: read(name.replace("midlayer", layer))
        for ours, name in (_NORMS | _MATRICES).items()
        if f"{name.replace('midlayer', layer)}.weight" in draft.sources
    }
    for ours, layer in _layers(draft.spec):
        state[f"{ours}qkv"] = torch.cat(
            [read(f"{layer}.self_attn.{name}") for name in _first_rows(draft.spec)]
        )
        state[f"{ours}gate_up"] = torch.cat([read(f"{layer}.mlp.{x}_proj") for x in ("gate", "up")])
        if ours:
            found = {a: f"{layer}.{b}" for a, b in _DEEP.items() if f"{layer}.{b}.weight" in draft.sources}
            state |= {f"{ours}{a}": read(b) for a, b in found.items()}
    if draft.spec.fc_norm:
        state["fc_norm"] = torch.cat([read(f"fc_norm.{i}") for i in range(draft.spec.n_aux)])
    return state


def _layers(spec: DraftSpec) -> list[tuple[str, str]]:
    """Of each layer, what our names begin with and what it is called in files."""
    return [("", "layers.0"), *((f"deep.{i - 1}.", f"layers.{i}") for i in range(1, spec.n_layers))]


def _first_rows(spec: DraftSpec) -> dict[str, int]:
    """The matrices that `qkv` is made of, in order, and their rows."""
    n_q, n_kv = spec.n_heads * spec.head_dim, spec.n_kv_heads * spec.head_dim
    return {"q_proj": n_q, "k_proj": n_kv, "v_proj": n_kv}


def to_checkpoint(state: State, spec: DraftSpec) -> State:
    """The weights of a model under file names, fp32."""
    tensors = {f"{name}.weight": state[ours] for ours, name in (_NORMS | _MATRICES).items() if ours in state}
    rows = _first_rows(spec)
    for ours, name_in_files in _layers(spec):
        layer = name_in_files if ours else "midlayer"
        for name, part in zip(rows, torch.split(state[f"{ours}qkv"], list(rows.values())), strict=True):
            tensors[f"{layer}.self_attn.{name}.weight"] = part
        for name, part in zip(("gate", "up"), state[f"{ours}gate_up"].chunk(2), strict=True):
            tensors[f"{layer}.mlp.{name}_proj.weight"] = part
        if ours:
            tensors |= {f"{layer}.{b}.weight": state[ours + a] for a, b in _DEEP.items() if ours + a in state}
    if "fc_norm" in state:
        for i, part in enumerate(state["fc_norm"].chunk(spec.n_aux)):
            tensors[f"fc_norm.{i}.weight"] = part
    if spec.fuses_embedding:
        del tensors["lm_head.weight"]  # EAGLE-1 has none: it is the target's
        return {name.replace("midlayer.", "layers.0."): tensor for name, tensor in tensors.items()}
    return tensors


def new_layers(
    target: GgufFile, spec: DraftSpec, indices: Sequence[int], seed: int, *, random: bool = False
) -> State:
    """First values of `DraftModel.deep` at these indices. They add nothing yet: o and down are zero. What
    they read with is from the target's last block if that has their shape, unless told otherwise; else it is
    small and random.
    """
    rng = torch.Generator().manual_seed(seed)
    block, n_rows = None, sum(_first_rows(spec).values())
    if indices and not random:
        block = _last_block(target, spec)
    state: State = {}
    for index in indices:
        one = {
            "attn_norm": torch.ones(spec.hidden_size),
            "qkv": torch.randn(n_rows, spec.hidden_size, generator=rng) * 0.02,
            "mlp_norm": torch.ones(spec.hidden_size),
            "gate_up": torch.randn(2 * spec.intermediate_size, spec.hidden_size, generator=rng) * 0.02,
        }
        if spec.qk_norm:
            one |= {name: torch.ones(spec.head_dim) for name in ("q_norm", "k_norm")}
        if block is not None:
            one |= {name: block[name].clone() for name in ("attn_norm", "qkv", "mlp_norm", "gate_up")}
        one["o"] = torch.zeros(spec.hidden_size, spec.n_heads * spec.head_dim)
        one["down"] = torch.zeros(spec.hidden_size, spec.intermediate_size)
        state |= {f"deep.{index}.{name}": value for name, value in one.items()}
    return state


def from_target(
    target: GgufFile, spec: DraftSpec, ids: NDArray[np.int64], seed: int, *, random: bool = False
) -> Start:
    """A new drafter for a target. ids: i64 [n_draft_vocab], target ids of the draft vocabulary; random: the
    layer too, not the target's last block.
    """
    rng = torch.Generator().manual_seed(seed)
    state = _random(spec, rng) | new_layers(target, spec, range(spec.n_layers - 1), seed, random=random)
    if spec.hidden_size != spec.target_hidden_size:
        return Start(state, ("all weights random",))
    state["head"] = _head(target)[torch.from_numpy(ids)]
    if "output_norm.weight" in target.tensors and "norm" in state:
        state["norm"] = torch.from_numpy(read_tensor(target, "output_norm.weight"))
    copied = "layer: random" if random else _copy_block(target, spec, state)
    return Start(state, ("head and final norm: from the target", copied))


def _head(target: GgufFile) -> Tensor:
    name = "output.weight" if "output.weight" in target.tensors else "token_embd.weight"
    return torch.from_numpy(read_tensor(target, name))


def _random(spec: DraftSpec, rng: torch.Generator) -> State:
    n_embd, n_feature = spec.hidden_size, spec.n_aux * spec.target_hidden_size

    def matrix(n_out: int, n_in: int) -> Tensor:
        return torch.randn(n_out, n_in, generator=rng) * 0.02

    is_first = spec.fuses_embedding
    state = {
        "fc": matrix(n_embd, 2 * n_embd if is_first else n_feature),
        "qkv": matrix(sum(_first_rows(spec).values()), n_embd if is_first else 2 * n_embd),
        "o": matrix(n_embd, spec.n_heads * spec.head_dim),
        "mlp_norm": torch.ones(n_embd),
        "gate_up": matrix(2 * spec.intermediate_size, n_embd),
        "down": matrix(n_embd, spec.intermediate_size),
        "head": matrix(spec.draft_vocab_size, n_embd),
    }
    if not is_first:
        state |= {name: torch.ones(n_embd) for name in ("embed_norm", "hidden_norm", "norm")}
    if spec.fc_norm:
        state["fc_norm"] = torch.ones(n_feature)
    return state


def _copy_block(target: GgufFile, spec: DraftSpec, state: State) -> str:
    """Puts the target's last block into `state`, as far as it fits; says how far."""
    block = _last_block(target, spec)
    if block is None:
        return (
            f"layer: random (the target's last block, architecture {target.architecture}, has another form)"
        )
    if spec.fuses_embedding:  # what the block's norm multiplies by goes into the weights
        state["qkv"] = block["qkv"] * block["attn_norm"]
    else:
        state["qkv"][:, spec.hidden_size :] = block["qkv"]
        state["hidden_norm"] = block["attn_norm"]
    state["fc"][:, -spec.target_hidden_size :] += torch.eye(spec.hidden_size)  # it reads the last feature
    state |= {name: block[name] for name in ("o", "down", "gate_up", "mlp_norm")}
    return "layer: from the target's last block"


def _last_block(target: GgufFile, spec: DraftSpec) -> State | None:
    """The target's last block under the names of `DeepLayer`, None unless it has the shape of one."""
    arch, block = target.architecture, f"blk.{spec.target_block_count - 1}"
    shapes = {
        "attn_q": (spec.n_heads * spec.head_dim, spec.hidden_size),
        "attn_k": (spec.n_kv_heads * spec.head_dim, spec.hidden_size),
        "attn_v": (spec.n_kv_heads * spec.head_dim, spec.hidden_size),
        "attn_output": (spec.hidden_size, spec.n_heads * spec.head_dim),
        "ffn_gate": (spec.intermediate_size, spec.hidden_size),
        "ffn_up": (spec.intermediate_size, spec.hidden_size),
        "ffn_down": (spec.hidden_size, spec.intermediate_size),
        "attn_norm": (spec.hidden_size,),
        "ffn_norm": (spec.hidden_size,),
    }
    found = {
        name: target.tensors[f"{block}.{name}.weight"].shape
        for name in shapes
        if f"{block}.{name}.weight" in target.tensors
    }
    if arch not in _PAIRED_ROWS or found != shapes:
        return None
    arrays = {name: read_tensor(target, f"{block}.{name}.weight") for name in shapes}
    if _PAIRED_ROWS[arch]:
        for name in ("attn_q", "attn_k"):
            arrays[name] = unpair_rows(arrays[name], spec.head_dim)
    w = {name: torch.from_numpy(array) for name, array in arrays.items()}
    return {
        "attn_norm": w["attn_norm"],
        "qkv": torch.cat([w["attn_q"], w["attn_k"], w["attn_v"]]),
        "o": w["attn_output"],
        "mlp_norm": w["ffn_norm"],
        "gate_up": torch.cat([w["ffn_gate"], w["ffn_up"]]),
        "down": w["ffn_down"],
    }
