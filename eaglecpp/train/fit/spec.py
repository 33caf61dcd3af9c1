# SPDX-License-Identifier: MIT
"""What is trained: the `DraftSpec` of a new drafter for a target, or of an existing one to be tuned."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from eaglecpp.convert import DraftCheckpoint, DraftSpec, GgufFile, LatentSpec, RopeSpec
from eaglecpp.errors import MismatchError, UnsupportedError

__all__ = ["check_trainable", "new_spec", "with_layers", "with_vocab"]

_CONTEXT = 4096
"""Of a target whose file names none."""


def new_spec(
    target: GgufFile,
    n_vocab: int,
    n_layer: int,
    layers: Sequence[int],
    *,
    eagle3: bool = False,
    eagle1: bool = False,
    mla: bool = False,
) -> DraftSpec:
    """One layer of the target's own shape, EAGLE 3.1, plain EAGLE-3 or EAGLE-1, over the whole vocabulary.

    layers: boundary ids, ascending, at most n_layer; EAGLE-1 has no choice. RoPE has the target's base
    and no scaling: the drafter learns its own use of positions. mla: with latent attention. Raises
    MismatchError for layers that the target does not have.
    """
    if eagle1:
        layers = (n_layer + 1,)
    elif list(layers) != sorted({k for k in layers if 0 <= k <= n_layer}) or not layers:
        raise MismatchError(
            f"--aux-layers: expected ascending ids from 0 to {n_layer}, the blocks of {target.path.name}, "
            f"found {', '.join(map(str, layers))}"
        )
    arch = target.architecture

    def number(key: str, default: float) -> float:
        value = target.get(f"{arch}.{key}")
        value = max(value) if isinstance(value, list) and value else value  # some vary by layer
        # files hold float32: 1e-05 is meant, not 9.99999975e-06
        return float(f"{value:.7g}") if isinstance(value, int | float) and value else default

    n_embd = int(number("embedding_length", 0))
    n_heads = int(number("attention.head_count", 0)) or max(1, n_embd // 128)
    n_kv_heads = int(number("attention.head_count_kv", n_heads))
    head_dim = int(number("attention.key_length", n_embd // n_heads))
    own = _latent_of(number)
    if own is not None:  # the file's numbers are of its cache
        n_kv_heads, head_dim = n_heads, own.nope_dim
    latent = (own or _latent_like(n_heads, head_dim)) if mla else None
    return DraftSpec(
        family="eagle1" if eagle1 else "torchspec",
        hidden_size=n_embd,
        target_hidden_size=n_embd,
        intermediate_size=int(number("feed_forward_length", 0)) or 4 * n_embd,
        n_layers=1,
        n_heads=n_heads,
        n_kv_heads=n_heads if latent else n_kv_heads,
        head_dim=latent.key_dim if latent else head_dim,
        vocab_size=n_vocab,
        draft_vocab_size=n_vocab,
        context_length=int(number("context_length", _CONTEXT)),
        rms_norm_eps=number("attention.layer_norm_rms_epsilon", 1e-5),
        rope=RopeSpec(number("rope.freq_base", 10000.0)),
        aux_layers=tuple(layers),
        layer_ids_rule="final" if eagle1 else "boundary",
        target_block_count=n_layer,
        fuses_embedding=eagle1,
        fc_norm=not (eagle3 or eagle1),
        norm_output=not (eagle3 or eagle1),
        latent=latent,
    )


def _latent_of(number: Callable[[str, float], float]) -> LatentSpec | None:
    """The target's own latent attention, of the deepseek2 family."""
    rank, rope = int(number("attention.kv_lora_rank", 0)), int(number("rope.dimension_count", 0))
    key = int(number("attention.key_length_mla", 0) or number("attention.key_length", 0))
    value = int(number("attention.value_length_mla", 0) or number("attention.value_length", 0))
    if not rank or not rope or not value or key <= rope:
        return None
    return LatentSpec(int(number("attention.q_lora_rank", 0)), rank, key - rope, rope, value, key**-0.5)


def _latent_like(n_heads: int, head_dim: int) -> LatentSpec:
    """DeepSeek-V2's proportions: a latent of four heads, queries through twelve where that is fewer than
    there are, and half a head that rotates beside each.
    """
    rope = max(2, head_dim // 4 * 2)
    key, q_rank = head_dim + rope, 12 * head_dim
    return LatentSpec(
        q_rank if q_rank < n_heads * key else 0, 4 * head_dim, head_dim, rope, head_dim, key**-0.5
    )


def with_vocab(spec: DraftSpec, n_draft_vocab: int) -> DraftSpec:
    """The same drafter over a part of the vocabulary."""
    return replace(spec, draft_vocab_size=n_draft_vocab)


def with_layers(spec: DraftSpec, n: int) -> DraftSpec:
    """The same drafter with n layers. Raises UnsupportedError where only one can be trained, or where there
    are more already.
    """
    if n > 1 and (spec.fuses_embedding or spec.latent is not None):
        kind = "EAGLE-1" if spec.fuses_embedding else "a drafter with latent attention"
        raise UnsupportedError(f"--draft-layers {n}: {kind} can only be trained with one layer")
    if n < spec.n_layers:
        raise UnsupportedError(
            f"--draft-layers {n}: the drafter to be tuned has {spec.n_layers} layers, and none can be left "
            "out; give that or more"
        )
    return replace(spec, n_layers=n, sliding_layers=(False,) * n if spec.sliding_layers else ())


def check_trainable(draft: DraftCheckpoint) -> None:
    """Raises UnsupportedError, with all reasons, for a drafter this trainer cannot run."""
    spec = draft.spec
    reasons = {
        f"{spec.n_layers} layers of EAGLE-1": spec.n_layers > 1 and spec.fuses_embedding,
        f"{spec.n_layers} layers with latent attention": spec.n_layers > 1 and spec.latent is not None,
        "biases": spec.has_bias,
        "a sliding window": any(spec.sliding_layers),
        "a head without a norm": not spec.head_norm,
        "logit_scale": spec.logit_scale != 1.0,
        "Gemma 4's layer": spec.gemma is not None,
        "parallel drafting": spec.parallel is not None,
        "norms around EAGLE-1's layer": spec.fuses_embedding and spec.norm_output,
    }
    found = [reason for reason, holds in reasons.items() if holds]
    if found:
        raise UnsupportedError(
            f"--finetune: this drafter has {', '.join(found)}; only drafters without these can be trained"
        )
