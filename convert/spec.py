# SPDX-License-Identifier: MIT
"""Description of a drafter as a frozen value: sizes, switches, rope, extracted layers and vocabularies.

`DraftSpec` is independent of files. Its `architecture` is `eagle` for EAGLE-1 and 2. For EAGLE-3, it is
`eagle3` if llama.cpp runs the drafter correctly, else `eagle31`. For block drafters, it is `dflash` if
llama.cpp runs the drafter correctly, else `dflash_ex`.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from .keys import DFLASH, DFLASH_EX, EAGLE, EAGLE3, EAGLE31


@dataclass(frozen=True)
class RopeSpec:
    """Rotary embedding in the terms of ggml_rope_ext.

    scaling: none, linear, yarn, llama3 or proportional; llama3 and proportional become `rope_freqs.weight`,
    and proportional only rotates the first `factor` of a head
    attn_factor: factor on cos and sin; ggml also multiplies cos and sin by (1 + 0.1 ln factor), and the
        product of both factors is the checkpoint's factor
    part: share of a head that is rotated, from its beginning, with the frequencies of a head of that width
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
    part: float = 1.0

    @property
    def by_ggml(self) -> RopeSpec | None:
        """This rope if ggml scales it by the file's keys, else None."""
        return self if self.scaling in ("linear", "yarn") else None


@dataclass(frozen=True)
class GemmaLayer:
    """Settings of Gemma 4's layer. This layer has norms after attention and after the feed-forward part, a
    norm of the values without weights, no scaling of the scores, and GELU. Embeddings are multiplied by the
    root of their width.

    own_values: True if values have their own matrix, else the values are the keys before the norm of the
        keys. softcap: bound of the logits, 0 = off.
    """

    own_values: bool
    softcap: float


@dataclass(frozen=True)
class ParallelDraft:
    """Settings of P-EAGLE's parallel drafting: the mask token for rows whose token is unknown, and the
    maximum number of tokens drafted in one pass.
    """

    mask_token: int
    depth: int


@dataclass(frozen=True)
class BlockSpec:
    """Settings of DFlash, DSpark or DFlash2. One pass over `size` rows gives all drafts. The first row is the
    last token of the text (the anchor), and the other rows are mask tokens.

    anchor_first: True = slot i predicts the token i + 1 positions after the anchor; False = slot i predicts
        the token i positions after the anchor, and slot 0 is unused
    causal: per layer, True if a row attends only to rows before it
    markov_rank: rank of DSpark's Markov head, a bias that depends on the token before a slot; 0 = no bias
    confidence: True if a head estimates the probability of acceptance
    conv: taps and group of DFlash2's convolutions; selector: rank and number of candidates of DFlash2's
    selector
    embedding_scale: factor on the rows' embeddings; softcap: bound of the logits before the bias, 0 = off
    value_scale: factor on the output of attention
    target_head: the drafter uses the target's head, although it has its own embeddings
    gated: Laguna's layer, with a gate per head, norms of each feature, and a norm before the text's keys and
    values
    """

    size: int
    anchor_first: bool
    mask_token: int
    causal: tuple[bool, ...]
    markov_rank: int = 0
    confidence: bool = False
    conv: tuple[int, int] | None = None
    selector: tuple[int, int] | None = None
    embedding_scale: float = 1.0
    softcap: float = 0.0
    value_scale: float = 1.0
    target_head: bool = False
    gated: bool = False

    @property
    def kind(self) -> str:
        return "DFlash2" if self.selector else "DSpark" if self.markov_rank else "DFlash"

    @property
    def n_drafts(self) -> int:
        """Number of tokens that one pass drafts."""
        return self.size if self.anchor_first else self.size - 1


@dataclass(frozen=True)
class LatentSpec:
    """Multi-head latent attention (DeepSeek-V2, arXiv 2405.04434): keys and values are computed from one
    latent.

    q_rank: rank of the low-rank product that gives the queries, 0 for a single matrix. kv_rank: width of the
        latent.
    nope_dim, rope_dim: unrotated and rotated width of a query and key head; all heads share the rotated part
    of
    the key. value_dim: width of a value head. scale: factor on the scores, including yarn's.
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
        """Number of values that the cache stores per position."""
        return self.kv_rank + self.rope_dim


@dataclass(frozen=True)
class DraftSpec:
    """Sizes and switches of a drafter. Sizes are in elements. `aux_layers` has the boundary ids R_k of the
    features, in the order of concatenation.

    fuses_embedding: True for EAGLE-1 and 2. fc reads [embedding ; feature] in every step. The only feature is
        R_n after the target's final norm, with id n + 1. Without norm_output, the first layer has no norm
        before attention, and the head reads the last layer's output without a norm. With norm_output
        (Mistral's drafters), both norms exist. With latent attention, head_dim is `latent.key_dim`, and every
        head has its own keys and values.
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
    block: BlockSpec | None = None
    fc_norm: bool = False
    norm_output: bool = False
    head_norm: bool = True
    """For EAGLE-3: True if the drafter has a norm before the head, False if the head reads the state without
    a norm.
    """
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
    """Acceptance rate on held-out texts at each depth, among chains that reached the depth; () = unknown."""
    readings: tuple[str, ...] = ()
    """Readings of the checkpoint's ambiguities, with reasons (`readings.recorded`)."""
    stock_boundary_ok: bool = field(default=True)
    """False if the drafter reads R_n (n = number of blocks) and llama.cpp returns another state for n on this
    target.
    """

    @property
    def has_all_norms(self) -> bool:
        """True if the drafter has norms before the first layer and before the head."""
        return not self.fuses_embedding or self.norm_output

    @property
    def n_aux(self) -> int:
        return len(self.aux_layers)

    @property
    def rope_type(self) -> str:
        """Order of the rotated values in a head: `norm` or `neox`.

        Permuted rows cannot be combined with norm weights of a head, so drafters with q/k norms have neox.
        Block drafters always have q/k norms. With latent attention, checkpoints already store paired rows, so
        the order is norm.
        """
        return "neox" if self.qk_norm and self.latent is None else "norm"

    @property
    def rope_dim(self) -> int:
        """Number of rotated values of a head."""
        return int(self.head_dim * self.rope.part) if self.latent is None else self.latent.rope_dim

    @property
    def stock_blockers(self) -> tuple[str, ...]:
        """Reasons why llama.cpp would run this drafter wrongly or not at all. The result is empty for
        ordinary EAGLE-3 and for block drafters that llama.cpp supports (ggml-org/llama.cpp:
        src/models/dflash.cpp, common/speculative.cpp).
        """
        if self.block is not None:
            return self._stock_block_blockers(self.block)
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

    def _stock_block_blockers(self, block: BlockSpec) -> tuple[str, ...]:
        scaled, top_k = self.logit_scale != 1.0 or block.softcap > 0, (block.selector or (0, 0))[1]
        reasons = {
            "an anchor position that drafts, without a Markov head": block.anchor_first
            and not block.markov_rank,
            "a confidence head without a Markov head": block.confidence and not block.markov_rank,
            "layers that see different parts of the block": len(set(block.causal)) > 1,
            "logits scaled or capped before the Markov bias": scaled and block.markov_rank > 0,
            f"a width of {self.hidden_size}, too small for {top_k} candidates": self.hidden_size
            < top_k * (top_k + 1),
            "Gemma 4's layer with separate values": self.gemma is not None and self.gemma.own_values,
            "Gemma 4's layer with a draft vocabulary": (
                self.gemma is not None and self.draft_vocab_size < self.vocab_size
            ),
            "gated attention": block.gated,
            "biases": self.has_bias,
            "own embeddings with the target's head": block.target_head,
            "a target of another width": self.target_hidden_size != self.hidden_size,
            f"aux layer {self.target_block_count}, not R_n on this target": not self.stock_boundary_ok,
        }
        return tuple(reason for reason, holds in reasons.items() if holds)

    @property
    def architecture(self) -> str:
        if self.block is not None:
            return DFLASH_EX if self.stock_blockers else DFLASH
        if self.fuses_embedding:
            return EAGLE
        return EAGLE31 if self.stock_blockers else EAGLE3
