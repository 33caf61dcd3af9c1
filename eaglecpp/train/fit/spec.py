# SPDX-License-Identifier: MIT
"""Creates the `DraftSpec` of a new drafter for a target, and checks existing drafters before training."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from eaglecpp.convert import BlockSpec, DraftCheckpoint, DraftSpec, GgufFile, RopeSpec
from eaglecpp.errors import MismatchError, UnsupportedError
from eaglecpp.train.options import Family

_CONTEXT = 4096
"""Context of a target whose file names none."""


def new_spec(
    target: GgufFile,
    n_vocab: int,
    n_layer: int,
    layers: Sequence[int],
    family: Family = "eagle31",
    block: BlockSpec | None = None,
) -> DraftSpec:
    """Returns the `DraftSpec` of a new drafter: one layer of the target's own shape, over the whole
    vocabulary.

    layers: boundary ids, ascending, at most n_layer; ignored for EAGLE-1. block: sizes of a block drafter,
    without the heads of DSpark and DFlash2, which are added. RoPE has the target's base and no scaling,
    because the drafter learns its own use of positions. Raises MismatchError for layers that the target does
    not have.
    """
    eagle1, is_block = family == "eagle1", block is not None
    if eagle1:
        layers = (n_layer + 1,)
    # Id 0, the embeddings, is readable with some targets, and never together with the last block's output.
    elif list(layers) != sorted({k for k in layers if (n_layer in layers) <= k <= n_layer}) or not layers:
        raise MismatchError(
            f"--aux-layers: expected ascending ids from 1 to {n_layer}, the layers of {target.path.name}, "
            f"found {', '.join(map(str, layers))}"
        )
    arch = target.architecture

    def number(key: str, default: float) -> float:
        value = target.get(f"{arch}.{key}")
        value = max(value) if isinstance(value, list) and value else value  # some sizes differ by layer
        # Files store float32 values, so 9.99999975e-06 means 1e-05.
        return float(f"{value:.7g}") if isinstance(value, int | float) and value else default

    n_embd = int(number("embedding_length", 0))
    n_heads = int(number("attention.head_count", 0)) or max(1, n_embd // 128)
    n_kv_heads = int(number("attention.head_count_kv", n_heads))
    head_dim = int(number("attention.key_length", n_embd // n_heads))
    rope = int(number("rope.dimension_count", 0))
    key = int(number("attention.key_length_mla", 0) or number("attention.key_length", 0))
    # With latent attention, the keys describe the cache.
    if number("attention.kv_lora_rank", 0) and 0 < rope < key:
        n_kv_heads, head_dim = n_heads, key - rope
    return DraftSpec(
        family="deepspec-block" if is_block else "eagle1" if eagle1 else "torchspec",
        hidden_size=n_embd,
        target_hidden_size=n_embd,
        intermediate_size=int(number("feed_forward_length", 0)) or 4 * n_embd,
        n_layers=1,
        n_heads=n_heads,
        n_kv_heads=n_kv_heads,
        head_dim=head_dim,
        vocab_size=n_vocab,
        draft_vocab_size=n_vocab,
        context_length=int(number("context_length", _CONTEXT)),
        rms_norm_eps=number("attention.layer_norm_rms_epsilon", 1e-5),
        rope=RopeSpec(number("rope.freq_base", 10000.0)),
        aux_layers=tuple(layers),
        layer_ids_rule="final" if eagle1 else "boundary",
        target_block_count=n_layer,
        fuses_embedding=eagle1,
        fc_norm=family == "eagle31",
        norm_output=family == "eagle31",
        qk_norm=is_block,
        block=_with_heads(block, n_embd, family) if block else None,
    )


def _with_heads(block: BlockSpec, n_embd: int, family: Family) -> BlockSpec:
    """Adds the heads of DSpark and DFlash2, with a rank that allows quantised rows: 64 up to a width of
    1,023. DFlash2 gets as many candidates as fit into a row of llama.cpp, together with the scores of all
    pairs.
    """
    rank = min(256, max(64, n_embd // 512 * 64))
    if family == "dspark":
        return replace(block, markov_rank=rank, confidence=True)
    if family == "dflash2":
        top_k = min(16, (math.isqrt(4 * n_embd + 1) - 1) // 2)
        return replace(block, conv=(2, math.gcd(16, n_embd)), selector=(rank, top_k))
    return block


def with_layers(spec: DraftSpec, n: int) -> DraftSpec:
    """Returns the spec of the same drafter with n layers. Raises UnsupportedError if the drafter only
    supports one layer, or already has more.
    """
    if n > 1 and spec.fuses_embedding:
        raise UnsupportedError(f"--draft-layers {n}: EAGLE-1 can only be trained with one layer")
    if n < spec.n_layers:
        raise UnsupportedError(
            f"--draft-layers {n}: the drafter already has {spec.n_layers} layers, and none can be removed; "
            f"use at least {spec.n_layers}"
        )
    block = spec.block and replace(spec.block, causal=spec.block.causal[:1] * n)
    return replace(spec, n_layers=n, sliding_layers=(False,) * n if spec.sliding_layers else (), block=block)


def check_trainable(draft: DraftCheckpoint, name: str) -> None:
    """Raises UnsupportedError with all reasons if a drafter cannot be trained. name: the drafter's name in
    the message.
    """
    spec = draft.spec
    # A drafter without blocks gets a neutral block, which passes the checks below.
    block = spec.block or BlockSpec(2, anchor_first=True, mask_token=0, causal=(False,))
    reasons = {
        "scaled embeddings or capped logits": block.embedding_scale != 1.0 or block.softcap != 0.0,
        "layers that see different parts of a block": len(set(block.causal)) > 1,
        f"{spec.n_layers} layers of EAGLE-1": spec.n_layers > 1 and spec.fuses_embedding,
        "latent attention": spec.latent is not None,
        "gated attention": block.gated,
        "YaRN": spec.rope.scaling == "yarn",
        "biases": spec.has_bias,
        "a sliding window": any(spec.sliding_layers),
        "a head without a norm": not spec.head_norm,
        "logit_scale": spec.logit_scale != 1.0,
        "Gemma 4's layer": spec.gemma is not None,
        "parallel drafting": spec.parallel is not None,
        "norms around EAGLE-1's layer": spec.fuses_embedding and spec.norm_output,
    }
    unsupported = [reason for reason, holds in reasons.items() if holds]
    if unsupported:
        raise UnsupportedError(f"{name} has {', '.join(unsupported)}; training does not support this")
