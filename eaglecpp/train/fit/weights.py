# SPDX-License-Identifier: MIT
"""Names and initial values of the drafter's weights: reads them from a checkpoint or from the target, and
returns them for files.

`from_checkpoint` reads an existing drafter, and `from_target` starts a new one. The rows of the new drafter's
head are copied from the target's head. The final norm and the first layer are also copied from the target if
the target's last block has the same shape. All other weights are small and random. The attention of the
target's block can already copy earlier text, which a random layer learns late (docs/research/training.md has
measurements of both). `new_layers` adds layers that start as the identity. `to_checkpoint` returns the
tensors under the names of TorchSpec and SafeAILab (`midlayer.*`; for EAGLE-1 `layers.0.*`, without a head);
further layers are `layers.1.*` and so on, as vLLM reads them.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from eaglecpp.convert import DraftCheckpoint, DraftSpec, GgufFile, read_tensor, unpair_rows
from eaglecpp.errors import MismatchError, UnsupportedError
from eaglecpp.train.fit.block import model_for
from eaglecpp.train.fit.model import CONVOLUTIONS, DraftLayer

State = dict[str, Tensor]

_NAMES = {
    "fc": "fc",
    "input_norm": "input_norm",
    "hidden_norm": "hidden_norm",
    "norm": "norm",
    "head": "lm_head",
    "markov_w1": "markov_head.markov_w1",
    "markov_w2": "markov_head.markov_w2",
    "predecessor": "candidate_selector.predecessor_codebook",
    "successor": "candidate_selector.successor_codebook",
    "selector_hidden": "candidate_selector.hidden_projection",
}
_CONFIDENCE = "confidence_head.proj"
_OF_LAYER = {
    "attn_norm": "input_layernorm",
    "hidden_norm": "hidden_norm",
    "q_norm": "self_attn.q_norm",
    "k_norm": "self_attn.k_norm",
    "o": "self_attn.o_proj",
    "mlp_norm": "post_attention_layernorm",
    "down": "mlp.down_proj",
    **{f"{name}_base": f"{name}.base_kernel" for name in CONVOLUTIONS},
    **{f"{name}_projection": f"{name}.kernel_projection" for name in CONVOLUTIONS},
}
_JOINED = {
    "qkv": [f"self_attn.{x}_proj" for x in ("q", "k", "v")],
    "gate_up": ["mlp.gate_proj", "mlp.up_proj"],
}
"""Weights of a layer that are one matrix here and several in files."""

# Architectures with plain pre-norm Llama blocks. The value is True if the GGUF stores the rows of q and k in
# pairs.
_PAIRED_ROWS = {"llama": True, "qwen2": False, "qwen3": False}


@dataclass(frozen=True)
class Start:
    """Initial values of all weights of a `DraftModel`, and notes on their origin for the user.

    is_fc_of_normed: True if fc comes from a drafter that normalises each feature first, but the new drafter
    does not
    """

    state: State
    notes: tuple[str, ...]
    is_fc_of_normed: bool = False


def target_embedding(target: GgufFile) -> Tensor:
    """Returns the target's embedding, f32 [n_vocab, n_embd]. Raises UnsupportedError for a file without an
    embedding.
    """
    if "token_embd.weight" not in target.tensors:
        raise UnsupportedError(f"{target.path}: expected a tensor token_embd.weight, found none")
    return torch.from_numpy(read_tensor(target, "token_embd.weight"))


def target_head(target: GgufFile) -> Tensor:
    """Returns the target's output head, f32 [n_vocab, n_embd]."""
    name = "output.weight" if "output.weight" in target.tensors else "token_embd.weight"
    return torch.from_numpy(read_tensor(target, name))


def from_checkpoint(draft: DraftCheckpoint) -> State:
    """Returns the weights of an existing drafter. The head is left out if the drafter uses the target's
    head.
    """

    def read(name: str) -> Tensor:
        return torch.from_numpy(np.ascontiguousarray(draft.sources[_in_file(name)].read(), np.float32))

    plain, joined = _names(draft.spec)
    state = {ours: read(name) for ours, name in plain.items() if _in_file(name) in draft.sources}
    state |= {ours: torch.cat([read(name) for name in names]) for ours, names in joined.items()}
    if draft.spec.block and draft.spec.block.confidence:
        bias = draft.sources.get(f"{_CONFIDENCE}.bias")
        last = torch.zeros(1) if bias is None else torch.from_numpy(np.array(bias.read(), np.float32))
        state["confidence"] = torch.cat([read(_CONFIDENCE)[0], last])
    if draft.spec.fc_norm:
        state["fc_norm"] = torch.cat([read(f"fc_norm.{i}") for i in range(draft.spec.n_aux)])
    return state


def _in_file(name: str) -> str:
    return name if name.endswith(("_codebook", "_kernel")) else f"{name}.weight"


def _names(spec: DraftSpec) -> tuple[dict[str, str], dict[str, list[str]]]:
    """Returns the names in files for each weight. In files, some weights are split into several tensors."""
    plain, joined = dict(_NAMES), dict[str, list[str]]()
    for layer in (f"layers.{i}." for i in range(spec.n_layers)):
        plain |= {layer + ours: layer + name for ours, name in _OF_LAYER.items()}
        joined |= {layer + ours: [layer + name for name in names] for ours, names in _JOINED.items()}
    return plain, joined


def to_checkpoint(state: State, spec: DraftSpec) -> State:
    """Returns the weights of a model as fp32, under their names in files."""
    plain, joined = _names(spec)
    tensors = {name: state[ours] for ours, name in plain.items() if ours in state}
    n_q, n_kv = spec.n_heads * spec.head_dim, spec.n_kv_heads * spec.head_dim
    for ours, names in joined.items():
        n_rows = [n_q, n_kv, n_kv] if ours.endswith("qkv") else [spec.intermediate_size] * 2
        tensors |= zip(names, torch.split(state[ours], n_rows), strict=True)
    if "fc_norm" in state:
        tensors |= {f"fc_norm.{i}": part for i, part in enumerate(state["fc_norm"].chunk(spec.n_aux))}
    if spec.fuses_embedding:
        del tensors["lm_head"]  # EAGLE-1 uses the target's head
    first = "layers.0." if spec.fuses_embedding or spec.block else "midlayer."
    named = {_in_file(name.replace("layers.0.", first)): tensor for name, tensor in tensors.items()}
    if "confidence" in state:
        row = state["confidence"]
        named |= {f"{_CONFIDENCE}.weight": row[None, :-1], f"{_CONFIDENCE}.bias": row[-1:]}
    return named


def new_layers(target: GgufFile, spec: DraftSpec, indices: Sequence[int], seed: int) -> State:
    """Returns initial values of `DraftModel.layers` at these indices, 1 or more. The layers start as the
    identity: o and down are zero. The other weights come from the target's last block if the shapes are
    equal, else they are small and random.
    """
    block = _block_of(target, spec) if indices else None
    state: State = {}
    with _seeded(seed):
        for index in indices:
            one = dict(DraftLayer(spec, index).state_dict())
            if block is not None:
                one |= {name: block[name].clone() for name in ("attn_norm", "qkv", "mlp_norm", "gate_up")}
            for name in ("o", "down"):
                one[name].zero_()
            state |= {f"layers.{index}.{name}": value for name, value in one.items()}
    return state


@contextlib.contextmanager
def _seeded(seed: int) -> Iterator[None]:
    """Seeds torch's generator inside the `with` block, and restores its state afterwards."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        yield


def from_target(target: GgufFile, spec: DraftSpec, ids: NDArray[np.int64], seed: int) -> Start:
    """Returns the initial weights of a new drafter for a target. ids: i64 [n_draft_vocab], target ids of the
    draft vocabulary.
    """
    with _seeded(seed):
        model = model_for(spec)(spec, torch.empty(0), share_head=False, dtype=torch.float32)
    state: State = dict(model.state_dict())
    if spec.block is None:
        state |= new_layers(target, spec, range(1, spec.n_layers), seed)
    if spec.hidden_size != spec.target_hidden_size:
        return Start(state, ("all weights random",))
    state["head"] = target_head(target)[torch.from_numpy(ids)]
    copy = _copy_block if spec.block is None else _copy_blocks
    if note := copy(target, spec, state):
        if "output_norm.weight" in target.tensors and "norm" in state:
            state["norm"] = torch.from_numpy(read_tensor(target, "output_norm.weight"))
        return Start(state, ("head and final norm: from the target", note))
    # For random states, Gemma's final norm gives logits of +-50, from which a drafter cannot learn. The
    # norm's weights reach 300 in channels in which Gemma's states are small. The norms of Llama and Qwen give
    # logits of about 3.
    state["head"] *= 3.0 / state["head"].norm(dim=1).mean()
    return Start(state, ("head: from the target, scaled", f"layers: random, unlike {target.architecture}'s"))


def taken_over(start: Start, spec: DraftSpec, other: DraftCheckpoint, name: str, *, has_rows: bool) -> Start:
    """Copies weights with the same role and shape from another drafter of the target: fc if both drafters
    read the same layers, a layer if all of its weights fit, and so on. name: the other drafter's name in
    messages. has_rows: True if the other drafter's head has the same vocabulary.

    Raises MismatchError if no weight fits.
    """
    theirs = from_checkpoint(other)
    fits = {n for n, value in theirs.items() if n in start.state and start.state[n].shape == value.shape}
    if spec.aux_layers != other.spec.aux_layers:
        fits.discard("fc")
    if not has_rows:
        fits -= {"head", "norm", "markov_w2"}
    for i in range(spec.n_layers):
        mine = {n for n in start.state if n.startswith(f"layers.{i}.")}
        if not mine <= fits:
            fits -= mine
    if not fits:
        raise MismatchError(f"--start-from {name}: none of its weights fit the new drafter; remove it")
    taken = {n: theirs[n] for n in fits}
    is_normed = "fc" in fits and other.spec.fc_norm and not spec.fc_norm
    if is_normed:
        taken["fc"] = taken["fc"] * theirs["fc_norm"]
    places = sorted({n.split(".")[0] if n[0] != "l" else ".".join(n.split(".")[:2]) for n in fits})
    return Start(start.state | taken, (*start.notes, f"from {name}: {', '.join(places)}"), is_normed)


def _copy_block(target: GgufFile, spec: DraftSpec, state: State) -> str | None:
    """Copies the target's last block into `state`. Returns a note for the user, or None if the block has
    another shape.
    """
    if (block := _block_of(target, spec)) is None:
        return None
    # EAGLE-1 has no norm before attention. So the matrix is multiplied by the weights of the block's norm.
    if spec.fuses_embedding:
        state["layers.0.qkv"] = block["qkv"] * block["attn_norm"]
    else:
        state["layers.0.qkv"][:, spec.hidden_size :] = block["qkv"]
        state["layers.0.hidden_norm"] = block["attn_norm"]
    # With the identity in fc, the drafter's state starts as the last feature.
    state["fc"][:, -spec.target_hidden_size :] += torch.eye(spec.hidden_size)
    state |= {f"layers.0.{name}": block[name] for name in ("o", "down", "gate_up", "mlp_norm")}
    return "layer: from the target's last block"


def _copy_blocks(target: GgufFile, spec: DraftSpec, state: State) -> str | None:
    """Copies blocks of the target, from the middle on, into a block drafter's layers, and sets fc so that it
    computes the mean of the features. Returns a note for the user, or None if the blocks have another shape.
    """
    n, n_layers = spec.target_block_count, spec.n_layers
    places = [n // 2 + (i * max(n - n // 2 - 3, 0)) // max(n_layers - 1, 1) for i in range(n_layers)]
    blocks = [_block_of(target, spec, place) for place in places]
    if None in blocks:
        return None
    for i, block in enumerate(blocks):
        state |= {f"layers.{i}.{name}": value for name, value in (block or {}).items()}
    state["fc"] = torch.cat([torch.eye(spec.hidden_size) / spec.n_aux] * spec.n_aux, dim=1)
    return "layers: from the target's"


def _block_of(target: GgufFile, spec: DraftSpec, index: int | None = None) -> State | None:
    """Returns the weights of the target's last block, or of another block, under the names of `DraftLayer`.
    Returns None if the block has another shape.
    """
    index = spec.target_block_count - 1 if index is None else index
    arch, block = target.architecture, f"blk.{index}"
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
    stored = {name: target.tensors.get(f"{block}.{name}.weight") for name in shapes}
    if arch not in _PAIRED_ROWS or {n: t and t.shape for n, t in stored.items()} != shapes:
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
