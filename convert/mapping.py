# SPDX-License-Identifier: MIT
"""Lists the exact tensors of a DraftSpec's file, and checks a checkpoint against the list.

`keys.TENSORS` has all possible tensors. This module selects the tensors of one drafter and fills in its
sizes. All missing, unknown and mis-shaped tensors are reported in one message.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal

from .errors import TensorError
from .keys import TENSORS, TensorRole, TensorSpec
from .spec import DraftSpec

_MAPS = frozenset({"d2t", "t2d"})  # vocab_map checks these tensors; a drafter needs only one of them
_QKV_BIAS = tuple(f"self_attn.{x}_proj.bias" for x in "qkv")


@dataclass(frozen=True)
class MappedTensor:
    """A tensor that the drafter's GGUF can have.

    shape: slowest axis first. head_rows: rows of one head, if heads are permuted to rope's pairs; else 0.
        part: which of the source's rows this tensor has, see `TensorSpec`. source_shape: shape of the whole
        source, if `part` is set.
    """

    name: str
    source: str
    shape: tuple[int, ...]
    role: TensorRole
    required: bool
    head_rows: int = 0
    part: Literal["", "keys", "values"] = ""
    source_shape: tuple[int, ...] = ()

    @property
    def expected(self) -> tuple[int, ...]:
        """Shape of the tensor in the checkpoint."""
        return self.source_shape or self.shape


def slots(spec: DraftSpec, present: Iterable[str]) -> list[MappedTensor]:
    """Returns every tensor that the drafter needs or may have, in file order.

    present: canonical names in the checkpoint; they show which biases are required (q, k and v have biases
    together or not at all)
    """
    names = set(present)
    result: list[MappedTensor] = []
    for row in TENSORS:
        if spec.architecture not in row.archs or (
            row.name == "output_norm.weight" and not (spec.has_all_norms and spec.head_norm)
        ):
            continue
        if row.attention not in ("", "full" if spec.latent is None else "latent"):
            continue
        if row.when not in ("always", "optional") and not _switch(row, spec):
            continue
        for name, source, layer in _expand(row, spec):
            required = row.when != "optional" or _bias_demanded(source, names)
            result.append(
                MappedTensor(
                    name, source, _shape(row.shape, spec, layer), row.role, required, _head_rows(row, spec),
                    row.part, _shape(("nh*(dn+dv)", "kl"), spec, layer) if row.part else (),
                )
            )  # fmt: skip
    return result


def check_tensors(expected: list[MappedTensor], shapes: Mapping[str, tuple[int, ...]], family: str) -> None:
    """Compares the checkpoint's canonical names and shapes with the expected tensors.

    Raises TensorError, which lists every difference.
    """
    by_source = {slot.source: slot for slot in expected if slot.source}
    missing = [
        f"{s.source} {list(s.expected)}" for s in by_source.values() if s.required and s.source not in shapes
    ]
    unknown = [
        f"{name} {list(shapes[name])}" for name in shapes if name not in by_source and name not in _MAPS
    ]
    wrong = [
        f"{name}: expected {list(by_source[name].expected)}, found {list(shape)}"
        for name, shape in shapes.items()
        if name in by_source and tuple(shape) != by_source[name].expected
    ]
    parts = [
        f"{title}: {'; '.join(sorted(items))}"
        for title, items in (("missing", missing), ("unknown", unknown), ("wrong shape", wrong))
        if items
    ]
    if parts:
        raise TensorError(
            f"tensors do not match the {family} layout (names as in layers.0.*): {' | '.join(parts)}"
        )


def _switch(row: TensorSpec, spec: DraftSpec) -> bool:
    return {
        "fc_norm": spec.fc_norm,
        "norm_before_fc": spec.norm_before_fc,
        "qk_norm": spec.qk_norm,
        "reduced_vocab": spec.draft_vocab_size < spec.vocab_size,
        "rope_freqs": spec.rope.scaling in ("llama3", "proportional"),
        "q_rank": spec.latent is not None and spec.latent.q_rank > 0,
        "no_q_rank": spec.latent is None or spec.latent.q_rank == 0,
        "own_values": spec.gemma is None or spec.gemma.own_values,
        "gemma": spec.gemma is not None,
        "parallel": spec.parallel is not None,
        "markov": spec.block is not None and spec.block.markov_rank > 0,
        "confidence": spec.block is not None and spec.block.confidence,
        "selector": spec.block is not None and spec.block.selector is not None,
        "conv": spec.block is not None and spec.block.conv is not None,
        "gated": spec.block is not None and spec.block.gated,
    }[row.when]


def _expand(row: TensorSpec, spec: DraftSpec) -> Iterable[tuple[str, str, int]]:
    if "{a}" in row.name:
        yield from ((row.name.format(a=a), row.source.format(a=a), 0) for a in range(spec.n_aux))
    elif "{i}" in row.name:
        layers = range(1 if row.first_layer_only else spec.n_layers)
        if not spec.has_all_norms and row.name == "blk.{i}.attn_norm.weight":
            layers = layers[1:]
        yield from ((row.name.format(i=i), row.source.format(i=i), i) for i in layers)
    else:
        yield row.name, "" if row.role == "map" else row.source, 0


def _shape(symbols: tuple[str, ...], spec: DraftSpec, layer: int) -> tuple[int, ...]:
    sizes = {
        "H": spec.hidden_size,
        "Ht": spec.target_hidden_size,
        "A": spec.n_aux,
        "A*Ht": spec.n_aux * spec.target_hidden_size,
        "F": 2 * spec.hidden_size if spec.fuses_embedding else spec.n_aux * spec.target_hidden_size,
        "U": spec.hidden_size * (1 if layer or spec.fuses_embedding or spec.block else 2),
        "Q": spec.n_heads * spec.head_dim,
        "O": spec.n_heads * (spec.latent.value_dim if spec.latent else spec.head_dim),
        "KV": spec.n_kv_heads * spec.head_dim,
        "I": spec.intermediate_size,
        "V": spec.vocab_size,
        "Vd": spec.draft_vocab_size,
        "nh": spec.n_heads,
        "hd": spec.head_dim,
        "hd/2": spec.head_dim // 2,
    }
    if spec.block is not None:
        taps, group = spec.block.conv or (0, 1)
        sizes |= {
            "1": 1,
            "2": 2,
            "R": spec.block.markov_rank,
            "H+R": spec.hidden_size + spec.block.markov_rank,
            "r": (spec.block.selector or (0, 0))[0],
            "T": taps,
            "2*T*G": 2 * taps * (spec.hidden_size // group),
        }
    if spec.latent is not None:
        latent = spec.latent
        sizes |= {
            "ql": latent.q_rank,
            "kl": latent.kv_rank,
            "dn": latent.nope_dim,
            "dv": latent.value_dim,
            "kl+dr": latent.cached_dim,
            "nh*(dn+dv)": spec.n_heads * (latent.nope_dim + latent.value_dim),
        }
    return tuple(sizes[symbol] for symbol in symbols)


def _bias_demanded(source: str, present: set[str]) -> bool:
    for suffix in _QKV_BIAS:
        if source.endswith(suffix):
            layer = source.removesuffix(suffix)
            return any(layer + other in present for other in _QKV_BIAS)
    return False


def _head_rows(row: TensorSpec, spec: DraftSpec) -> int:
    rotated = row.name.startswith(("blk.{i}.attn_q.", "blk.{i}.attn_k.")) and spec.latent is None
    return spec.head_dim if rotated and spec.rope_type == "norm" else 0
