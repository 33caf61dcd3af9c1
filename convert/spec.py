# SPDX-License-Identifier: MIT
"""What a drafter is: sizes, switches, rope, aux layers, vocabularies. A frozen value between reading and
writing.

`DraftSpec` says nothing about files. `architecture` decides between `eagle` (EAGLE-1 and 2), `eagle3`
(llama.cpp runs it correctly) and `eagle31`.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from .keys import EAGLE, EAGLE3, EAGLE31


@dataclass(frozen=True)
class RopeSpec:
    """Rotary embedding, already in the terms of ggml_rope_ext.

    scaling: none, linear, yarn, or what becomes `rope_freqs.weight`: llama3, and proportional, which
    rotates the first `factor` of a head alone. attn_factor: ggml multiplies
    cos and sin by attn_factor * (1 + 0.1 ln factor); that product is what the checkpoint asks for.
    """

    theta: float
    scaling: str = "none"
    factor: float = 1.0
    original_context: int | None = None
    attn_factor: float = 1.0
    ext_factor: float | None = None
    beta_fast: float | None = None
    beta_slow: float | None = None
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0


@dataclass(frozen=True)
class GemmaLayer:
    """What Gemma 4's own layer does otherwise: norms of what attention and feed-forward part give,
    values normed without weights, scores as they are, GELU, embeddings multiplied by the root of their width.

    own_values: v has a matrix of its own, else the values are the keys before their norm. softcap: bound
    of the logits, 0 = none.
    """

    own_values: bool
    softcap: float


@dataclass(frozen=True)
class ParallelDraft:
    """P-EAGLE: the token of rows that nobody knows yet, and how many tokens one pass gives at the most."""

    mask_token: int
    depth: int


@dataclass(frozen=True)
class LatentSpec:
    """Multi-head latent attention (DeepSeek-V2, arXiv 2405.04434): keys and values are made from one latent.

    q_rank: of the queries' low-rank product, 0 where they come from one matrix. kv_rank: values of the
    latent. nope_dim, rope_dim: of a query and key head, not rotated and rotated; all heads share the rotated
    part of the key. value_dim: of a value head. scale: factor on the scores, yarn's share in it.
    """

    q_rank: int
    kv_rank: int
    nope_dim: int
    rope_dim: int
    value_dim: int
    scale: float

    @property
    def key_dim(self) -> int:
        return self.nope_dim + self.rope_dim

    @property
    def cached_dim(self) -> int:
        """Values that one position leaves in the cache."""
        return self.kv_rank + self.rope_dim


@dataclass(frozen=True)
class DraftSpec:
    """A drafter. Sizes in elements; `aux_layers` are boundary ids R_k in the order of concatenation.

    fuses_embedding: EAGLE-1 and 2. fc takes [embedding ; feature] in every step; the one feature is R_n after
    the target's final norm, id n + 1. Without norm_output the first layer has no norm before attention, and
    the head reads the last one's output as it is; with it (Mistral's) both are there. With latent attention
    head_dim is `latent.key_dim` and every head has keys and values of its own.
    """

    family: str
    hidden_size: int
    target_hidden_size: int
    intermediate_size: int
    n_layers: int
    n_heads: int
    n_kv_heads: int
    head_dim: int
    vocab_size: int
    draft_vocab_size: int
    context_length: int
    rms_norm_eps: float
    rope: RopeSpec
    aux_layers: tuple[int, ...]
    layer_ids_rule: str
    target_block_count: int
    fuses_embedding: bool = False
    gemma: GemmaLayer | None = None
    parallel: ParallelDraft | None = None
    fc_norm: bool = False
    norm_output: bool = False
    head_norm: bool = True
    """Of EAGLE-3: whether there is a last norm. Without it the head reads the state as it is."""
    norm_before_fc: bool = False
    norm_before_residual: bool = False
    qk_norm: bool = False
    has_bias: bool = False
    has_head: bool = True
    has_embeddings: bool = False
    logit_scale: float = 1.0
    sliding_window: int | None = None
    sliding_layers: tuple[bool, ...] = ()
    latent: LatentSpec | None = None
    held_out_rates: tuple[float, ...] = ()
    """Acceptance per depth that its training measured, each of the chains that got there; () = not known."""
    readings: tuple[str, ...] = ()
    """How the checkpoint was read where it leaves a choice, and why (`readings.recorded`)."""
    stock_boundary_ok: bool = field(default=True)
    """False when an aux layer is n and llama.cpp's features for n are not R_n on this target."""

    @property
    def has_all_norms(self) -> bool:
        """Whether the first layer norms what it reads, and something norms what the head reads."""
        return not self.fuses_embedding or self.norm_output

    @property
    def n_aux(self) -> int:
        return len(self.aux_layers)

    @property
    def rope_type(self) -> str:
        """`norm` or `neox`.

        Permuted rows cannot be combined with per-head norm weights, so q/k norms mean neox. The rows of
        latent attention lie in pairs in checkpoints already.
        """
        return "neox" if self.qk_norm and self.latent is None else "norm"

    @property
    def rope_dim(self) -> int:
        """Values of a head that rotate."""
        return self.head_dim if self.latent is None else self.latent.rope_dim

    @property
    def stock_blockers(self) -> tuple[str, ...]:
        """Why llama.cpp would run this drafter wrong or not at all; empty for plain EAGLE-3."""
        reasons = {
            "EAGLE-1/2": self.fuses_embedding,
            "fc_norm": self.fc_norm,
            "norm_output": self.norm_output,
            "a head without a norm": not self.head_norm,
            f"{self.n_aux} aux layers instead of 3": self.n_aux != 3,
            f"{self.n_layers} layers": self.n_layers != 1,
            "q/k norms": self.qk_norm,
            "latent attention": self.latent is not None,
            "biases": self.has_bias,
            "sliding window": any(self.sliding_layers),
            "Gemma 4's layer": self.gemma is not None,
            "parallel drafting": self.parallel is not None,
            "logit_scale": self.logit_scale != 1.0,
            f"aux layer {self.target_block_count}, not R_n on this target": not self.stock_boundary_ok,
        }
        return tuple(reason for reason, holds in reasons.items() if holds)

    @property
    def architecture(self) -> str:
        if self.fuses_embedding:
            return EAGLE
        return EAGLE31 if self.stock_blockers else EAGLE3
