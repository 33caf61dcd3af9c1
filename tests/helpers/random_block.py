# SPDX-License-Identifier: MIT
"""Random block drafters (DFlash, DSpark and DFlash2) in their publishers' layouts.

A `BlockShape` gives the config and the tensors as z-lab (`dflash`, `dflash2`) or DeepSpec (`dspark`) write
them, and the converted GGUF. As in `random_drafter`, the weights are chosen so that every branch of the
arithmetic changes the logits.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np

from eaglecpp.convert import convert_checkpoint
from helpers.random_drafter import (
    MASK_TOKEN,
    base_config,
    gemma_config,
    layer_matrices,
    matrix,
    norm,
    table,
    vector,
    vocab_maps,
)
from helpers.tiny import write_files

Kind = Literal["dflash", "dspark", "dflash2"]


@dataclass(frozen=True)
class BlockShape:
    """Sizes and switches of one drafter. layers: boundary ids k of the features R_k. rank: rank of the Markov
    head (DSpark; 0 = no Markov head, which is DeepSpec's "DFlash") or of the selector (DFlash2). gated:
    whether the drafter has Laguna's gated layer, as poolside writes `dflash`.
    """

    kind: Kind = "dflash"
    block: int = 5
    n_embd: int = 64
    layers: tuple[int, ...] = (2, 4, 5)
    n_layers: int = 2
    n_heads: int = 4
    n_kv_heads: int = 2
    head_dim: int = 16
    n_ff: int = 96
    n_vocab: int = 367
    n_draft_vocab: int = 367  # size of the draft vocabulary; a smaller one requires own_tables
    rank: int = 8
    top_k: int = 4
    group: int = 16
    taps: int = 2
    confidence: bool = True
    # True if the drafter has its own embeddings and head; None means only with DeepSpec's layout
    own_tables: bool | None = None
    target_head: bool = False  # True if the drafter has its own embeddings but uses the target's head
    # True for causal attention in all layers; None means that each layer's type decides
    causal: bool | None = None
    window: int = 0  # width of the sliding window; 0 means full attention
    full_layers: tuple[int, ...] = ()  # numbers of the layers without a sliding window
    sinks: bool = False  # True if the drafter has attention sinks
    gated: bool = False  # True if the drafter has Laguna's gated layers
    gemma: str = ""  # Gemma's form of DSpark: "keys" (the keys are also the values) or "values"
    rope: dict[str, Any] = field(default_factory=dict, hash=False)  # the config's rope_scaling
    # config values that replace all other values
    extra: dict[str, Any] = field(default_factory=dict, hash=False)
    seed: int = 11

    @property
    def has_tables(self) -> bool:
        return self.kind == "dspark" if self.own_tables is None else self.own_tables

    @property
    def n_embd_target(self) -> int:
        return self.n_embd

    def config(self) -> dict[str, Any]:
        """Returns `config.json`."""
        kinds = [
            "full" if i in self.full_layers or not self.window else "sliding" for i in range(self.n_layers)
        ]
        config = base_config(self) | {
            "architectures": [{"dflash": "DFlashDraftModel", "dflash2": "DFlash2DraftModel"}.get(self.kind)],
            "model_type": "qwen3",
            "num_target_layers": 8,
            "attention_bias": False,
            "rope_scaling": self.rope or None,
            "tie_word_embeddings": False,
            "layer_types": [f"{kind}_attention" for kind in kinds],
            "sliding_window": self.window or None,
            "use_sliding_window": bool(self.window),
            "is_causal": self.causal,
            "block_size": self.block,
        }
        reply = {"mask_token_id": MASK_TOKEN, "target_layer_ids": [k - 1 for k in self.layers]}
        if self.kind == "dspark":
            config |= reply | {
                "architectures": ["Gemma4DSparkModel" if self.gemma else "Qwen3DSparkModel"],
                "num_anchors": 512,
                "markov_rank": self.rank,
                "markov_head_type": "vanilla",
                "enable_confidence_head": self.confidence,
                "confidence_head_with_markov": self.rank > 0,
            }
        else:
            config |= {"auto_map": {"AutoModel": "dflash.DFlashDraftModel"}, "dflash_config": reply}
        if self.kind == "dflash2":
            config["dflash_config"] |= {
                "conv_kernel_size": self.taps,
                "conv_group_size": self.group,
                "selector_rank": self.rank,
                "selector_top_k": self.top_k,
            }
        if self.gated:
            config |= {"architectures": ["DFlashLagunaForCausalLM"], "gating": "per-head"}
        if self.n_draft_vocab < self.n_vocab:
            config["draft_vocab_size"] = self.n_draft_vocab
        if self.gemma:
            config |= gemma_config(self)
        config |= self.extra
        return {key: value for key, value in config.items() if value is not None}

    def weights(self) -> dict[str, Any]:
        """Returns the drafter's tensors, by their names in the publisher's checkpoints."""
        rng = np.random.default_rng(self.seed)
        n, width = self.n_embd, self.n_embd + (self.rank if self.rank else 0)
        w: dict[str, Any] = {
            "fc.weight": matrix(rng, n, len(self.layers) * n),
            "hidden_norm.weight": norm(rng, n),
            "norm.weight": norm(rng, n),
        }
        for i in range(self.n_layers):
            w |= {f"layers.{i}.{name}": value for name, value in self.layer(rng).items()}
        if self.gated:
            w |= {f"aux_hidden_norms.{a}.weight": norm(rng, n) for a in range(len(self.layers))}
        if self.has_tables:
            w["embed_tokens.weight"] = table(rng, self.n_vocab, n)
            w["lm_head.weight"] = 3.0 * matrix(rng, self.n_draft_vocab, n)
        if self.target_head:
            del w["lm_head.weight"]
        if self.kind == "dspark" and self.rank:
            w["markov_head.markov_w1.weight"] = table(rng, self.n_vocab, self.rank)
            w["markov_head.markov_w2.weight"] = 3.0 * matrix(rng, self.n_draft_vocab, self.rank)
        if self.kind == "dspark" and self.confidence:
            w["confidence_head.proj.weight"] = matrix(rng, 1, width)
            w["confidence_head.proj.bias"] = vector(rng, 1, 0.5, 0.1)
        if self.kind == "dflash2":
            for name in ("predecessor", "successor"):
                w[f"candidate_selector.{name}_codebook"] = table(rng, self.n_vocab, self.rank)
            w["candidate_selector.hidden_projection.weight"] = matrix(rng, self.rank, n)
        return w | vocab_maps(rng, self.n_vocab, self.n_draft_vocab)

    def layer(self, rng: np.random.Generator) -> dict[str, Any]:
        """Returns the tensors of one layer, with names relative to the layer."""
        n, w = self.n_embd, layer_matrices(rng, self, self.n_embd, {})
        w |= {f"self_attn.{x}_norm.weight": norm(rng, self.head_dim) for x in "qk"}
        if self.gated:
            qkv = [w.pop(f"self_attn.{x}_proj.weight") for x in "qkv"]
            w["self_attn.qkv_proj.weight"] = np.concatenate(qkv)
            w["self_attn.g_proj.weight"] = matrix(rng, self.n_heads, n)
        if self.sinks:
            w["self_attn.sinks"] = vector(rng, self.n_heads, 1.0, 0.5)
        names = ["input_layernorm", "post_attention_layernorm"]
        if self.gemma:
            names += ["pre_feedforward_layernorm", "post_feedforward_layernorm"]
            w["layer_scalar"] = vector(rng, 1, 0.8, 0.05)
        w |= {f"{name}.weight": norm(rng, n) for name in names}
        if self.gemma == "keys":
            del w["self_attn.v_proj.weight"]
        if self.kind == "dflash2":
            for name in ("attention_conv", "mlp_conv"):
                base = vector(rng, 2 * self.taps * n, 0.0, 0.3).reshape(2, self.taps, n)
                base[:, 0] += 1.0
                w[f"{name}.base_kernel"] = base
                w[f"{name}.kernel_projection.weight"] = 0.3 * matrix(
                    rng, 2 * self.taps * (n // self.group), n
                )
        return w

    def write(self, directory: Path) -> Path:
        """Writes the drafter's checkpoint, and returns its directory."""
        return write_files(directory, self.config(), self.weights())

    def gguf(self, directory: Path, target: Path, type: str = "F32", **reading: Any) -> Path:
        """Writes the drafter's checkpoint and GGUF, and returns the GGUF. target: Hugging Face directory of
        the target.
        """
        checkpoint = self.write(directory / "checkpoint")
        return convert_checkpoint(checkpoint, target, directory / "draft.gguf", type, **reading).out
