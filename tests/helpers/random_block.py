# SPDX-License-Identifier: MIT
"""Random block drafters, DFlash, DSpark and DFlash2, in the layouts of those who publish them.

Takes a `BlockShape`; gives config and tensors as z-lab (`dflash`, `dflash2`) or DeepSpec (`dspark`) write
them, and the GGUF that convert makes of it. As in `random_drafter`, weights are such that every branch of the
arithmetic moves the logits.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np

from eaglecpp.convert import convert_checkpoint
from helpers.checkpoints import write_files
from helpers.random_drafter import MASK_TOKEN, matrix, norm, vector

__all__ = ["BlockShape"]

Kind = Literal["dflash", "dspark", "dflash2"]


@dataclass(frozen=True)
class BlockShape:
    """Sizes and switches of one drafter. layers: k of R_k. rank: of the Markov head (DSpark; 0 = none, which
    is DeepSpec's "DFlash") or of the selector (DFlash2).
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
    n_draft_vocab: int = 367  # smaller ones need own_tables
    rank: int = 8
    top_k: int = 4
    group: int = 16
    taps: int = 2
    confidence: bool = True
    own_tables: bool | None = None  # embeddings and head; None: DeepSpec's files have them
    causal: bool | None = None  # of all layers
    window: int = 0  # 0 = full attention
    full_layers: tuple[int, ...] = ()  # that see everything beside a window
    gemma: str = ""  # of DSpark: "keys" are the values, or it has "values"
    rope: dict[str, Any] = field(default_factory=dict, hash=False)  # rope_scaling
    extra: dict[str, Any] = field(default_factory=dict, hash=False)  # config values over all others
    seed: int = 11

    @property
    def has_tables(self) -> bool:
        return self.kind == "dspark" if self.own_tables is None else self.own_tables

    @property
    def n_embd_target(self) -> int:
        return self.n_embd

    def config(self) -> dict[str, Any]:
        """`config.json`."""
        kinds = [
            "full" if i in self.full_layers or not self.window else "sliding" for i in range(self.n_layers)
        ]
        config: dict[str, Any] = {
            "architectures": [{"dflash": "DFlashDraftModel", "dflash2": "DFlash2DraftModel"}.get(self.kind)],
            "model_type": "qwen3",
            "hidden_size": self.n_embd,
            "intermediate_size": self.n_ff,
            "num_attention_heads": self.n_heads,
            "num_key_value_heads": self.n_kv_heads,
            "head_dim": self.head_dim,
            "num_hidden_layers": self.n_layers,
            "num_target_layers": 8,
            "rms_norm_eps": 1e-5,
            "vocab_size": self.n_vocab,
            "hidden_act": "silu",
            "attention_bias": False,
            "max_position_embeddings": 2048,
            "rope_theta": 10000.0,
            "rope_scaling": self.rope or None,
            "tie_word_embeddings": False,
            "layer_types": [f"{kind}_attention" for kind in kinds],
            "sliding_window": self.window or None,
            "use_sliding_window": bool(self.window),
            "is_causal": self.causal,
            "torch_dtype": "float32",
            "block_size": self.block,
        }
        told = {"mask_token_id": MASK_TOKEN, "target_layer_ids": [k - 1 for k in self.layers]}
        if self.kind == "dspark":
            config |= told | {
                "architectures": ["Gemma4DSparkModel" if self.gemma else "Qwen3DSparkModel"],
                "num_anchors": 512,
                "markov_rank": self.rank,
                "markov_head_type": "vanilla",
                "enable_confidence_head": self.confidence,
                "confidence_head_with_markov": self.rank > 0,
            }
        else:
            config |= {"auto_map": {"AutoModel": "dflash.DFlashDraftModel"}, "dflash_config": told}
        if self.kind == "dflash2":
            config["dflash_config"] |= {
                "conv_kernel_size": self.taps,
                "conv_group_size": self.group,
                "selector_rank": self.rank,
                "selector_top_k": self.top_k,
            }
        if self.n_draft_vocab < self.n_vocab:
            config["draft_vocab_size"] = self.n_draft_vocab
        if self.gemma:
            config |= self.gemma_config()
        config |= self.extra
        return {key: value for key, value in config.items() if value is not None}

    def gemma_config(self) -> dict[str, Any]:
        """The keys of Gemma 4's text config beside the usual ones."""
        turned = {"rope_type": "proportional", "partial_rotary_factor": 0.25, "rope_theta": 10000.0}
        return {
            "model_type": "gemma4_text",
            "head_dim": self.head_dim // 2,
            "global_head_dim": self.head_dim,
            "num_global_key_value_heads": self.n_kv_heads,
            "attention_k_eq_v": self.gemma == "keys",
            "hidden_activation": "gelu_pytorch_tanh",
            "hidden_act": None,
            "final_logit_softcapping": 5.0,
            "enable_moe_block": False,
            "hidden_size_per_layer_input": 0,
            "rope_theta": None,
            "rope_parameters": {
                "full_attention": turned,
                "sliding_attention": {"rope_type": "default", "rope_theta": 1000.0},
            },
        }

    def weights(self) -> dict[str, Any]:
        """Tensors by their names in such checkpoints."""
        rng = np.random.default_rng(self.seed)
        n, width = self.n_embd, self.n_embd + (self.rank if self.rank else 0)
        w: dict[str, Any] = {
            "fc.weight": matrix(rng, n, len(self.layers) * n),
            "hidden_norm.weight": norm(rng, n),
            "norm.weight": norm(rng, n),
        }
        for i in range(self.n_layers):
            w |= {f"layers.{i}.{name}": value for name, value in self.layer(rng).items()}
        if self.has_tables:
            w["embed_tokens.weight"] = vector(rng, self.n_vocab * n, 0.0, 1.0).reshape(-1, n)
            w["lm_head.weight"] = 3.0 * matrix(rng, self.n_draft_vocab, n)
        if self.kind == "dspark" and self.rank:
            w["markov_head.markov_w1.weight"] = vector(rng, self.n_vocab * self.rank, 0.0, 1.0).reshape(
                -1, self.rank
            )
            w["markov_head.markov_w2.weight"] = 3.0 * matrix(rng, self.n_draft_vocab, self.rank)
        if self.kind == "dspark" and self.confidence:
            w["confidence_head.proj.weight"] = matrix(rng, 1, width)
            w["confidence_head.proj.bias"] = vector(rng, 1, 0.5, 0.1)
        if self.kind == "dflash2":
            for name in ("predecessor", "successor"):
                w[f"candidate_selector.{name}_codebook"] = vector(
                    rng, self.n_vocab * self.rank, 0.0, 1.0
                ).reshape(-1, self.rank)
            w["candidate_selector.hidden_projection.weight"] = matrix(rng, self.rank, n)
        if self.n_draft_vocab < self.n_vocab:
            kept = np.sort(rng.choice(self.n_vocab, self.n_draft_vocab, replace=False))
            w["d2t"] = kept - np.arange(self.n_draft_vocab)
            w["t2d"] = np.isin(np.arange(self.n_vocab), kept)
        return w

    def layer(self, rng: np.random.Generator) -> dict[str, Any]:
        """Tensors of one layer, named within it."""
        n, n_q, n_kv = self.n_embd, self.n_heads * self.head_dim, self.n_kv_heads * self.head_dim
        w: dict[str, Any] = {
            f"self_attn.{x}_proj.weight": 1.5 * matrix(rng, rows, n)
            for x, rows in (("q", n_q), ("k", n_kv), ("v", n_kv))
        }
        w |= {
            "self_attn.o_proj.weight": matrix(rng, n, n_q),
            "mlp.gate_proj.weight": matrix(rng, self.n_ff, n),
            "mlp.up_proj.weight": matrix(rng, self.n_ff, n),
            "mlp.down_proj.weight": matrix(rng, n, self.n_ff),
        }
        w |= {f"self_attn.{x}_norm.weight": norm(rng, self.head_dim) for x in "qk"}
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
        """The checkpoint's directory, written."""
        return write_files(directory, self.config(), self.weights())

    def gguf(self, directory: Path, target: Path, type: str = "F32", **reading: Any) -> Path:
        """Checkpoint and GGUF in the directory; returns the GGUF. target: the target's."""
        checkpoint = self.write(directory / "checkpoint")
        return convert_checkpoint(checkpoint, target, directory / "draft.gguf", type, **reading).out
