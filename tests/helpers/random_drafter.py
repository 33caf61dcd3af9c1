# SPDX-License-Identifier: MIT
"""Random drafter checkpoints with any combination of switches, under canonical names (`layers.{i}.*`).

A `DraftShape` gives the flat config and the tensors of a checkpoint, as vLLM's own class reads them
(`Eagle3LlamaForCausalLM`, boundary ids at top level), or of an EAGLE-1 checkpoint as SafeAILab writes it. The
weights are scaled so that every branch of the arithmetic changes the logits: norms differ from one, biases
differ from zero, and attention is neither flat nor one-hot. The drafts of a random drafter are never right;
`tiny.make_pair` builds a drafter whose drafts are accepted.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from eaglecpp.convert import convert_checkpoint
from helpers.tiny import write_files

Array = NDArray[np.float32]

MASK_TOKEN = 5
LLAMA3 = {
    "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}  # fmt: skip


@dataclass(frozen=True)
class LatentShape:
    """Sizes of multi-head latent attention. q_rank: rank of the queries; 0 = a single matrix computes the
    queries.
    """

    q_rank: int = 24
    kv_rank: int = 32
    nope: int = 12
    rope: int = 8
    value: int = 16

    def config(self) -> dict[str, Any]:
        return {
            "architectures": ["Eagle3DeepseekV2ForCausalLM"],
            "model_type": "kimi_k2",
            "q_lora_rank": self.q_rank or None,
            "kv_lora_rank": self.kv_rank,
            "qk_nope_head_dim": self.nope,
            "qk_rope_head_dim": self.rope,
            "v_head_dim": self.value,
        }

    def weights(self, rng: np.random.Generator, width: int, n_heads: int, n_embd: int) -> dict[str, Array]:
        """Returns the tensors of latent attention, with names relative to the attention. width: width of the
        attention's input.
        """
        n_q = n_heads * (self.nope + self.rope)
        w = {
            "kv_a_proj_with_mqa.weight": 1.5 * matrix(rng, self.kv_rank + self.rope, width),
            "kv_a_layernorm.weight": norm(rng, self.kv_rank),
            "kv_b_proj.weight": 1.5 * matrix(rng, n_heads * (self.nope + self.value), self.kv_rank),
            "o_proj.weight": matrix(rng, n_embd, n_heads * self.value),
        }
        if not self.q_rank:
            return w | {"q_proj.weight": 1.5 * matrix(rng, n_q, width)}
        return w | {
            "q_a_proj.weight": matrix(rng, self.q_rank, width),
            "q_a_layernorm.weight": norm(rng, self.q_rank),
            "q_b_proj.weight": 1.5 * matrix(rng, n_q, self.q_rank),
        }


@dataclass(frozen=True)
class DraftShape:
    """Sizes and switches of one drafter. The defaults are standard EAGLE-3 for `tiny.TargetSpec()`."""

    n_embd: int = 64
    n_embd_target: int = 64
    layers: tuple[int, ...] = (2, 4, 5)  # boundary ids of the features
    n_layers: int = 1
    n_heads: int = 4
    n_kv_heads: int = 2
    head_dim: int = 16
    n_ff: int = 96
    n_vocab: int = 367
    n_draft_vocab: int = 160
    eps: float = 1e-5
    rope: dict[str, Any] = field(default_factory=dict, hash=False)  # the config's rope_scaling
    window: int = 0  # width of the sliding window; 0 means full attention
    full_layers: tuple[int, ...] = ()  # numbers of the layers without a sliding window
    fc_norm: bool = False
    norm_output: bool = False
    norm_before_fc: bool = False
    norm_before_residual: bool = False
    qk_norm: bool = False
    attention_bias: bool = False
    fc_bias: bool = False
    mlp_bias: bool = False
    eagle1: bool = False  # True for EAGLE-1 or 2, where `layers` is the id of the state after the final norm
    eagle1_norms: bool = False  # True for Mistral's variant of EAGLE-1
    # Gemma 4's layer under DeepSpec's names: "keys" (the keys are also the values) or "values"
    gemma: str = ""
    latent: LatentShape | None = None
    n_parallel: int = 0  # number of tokens that P-EAGLE drafts in one pass; 0 for other drafters
    own_embedding: bool = True
    own_head: bool = True
    scale: float = 1.0  # scale of fc; with a small scale, the norms' eps changes the features
    embedding: float = 1.0  # scale of the embedding
    seed: int = 7

    @property
    def kv_shapes(self) -> tuple[tuple[int, int], tuple[int, int]]:
        """Returns the shapes `[n_heads, width]` of the keys and the values that a row adds to the cache."""
        if self.latent is None:
            return ((self.n_kv_heads, self.head_dim),) * 2
        return (1, self.latent.kv_rank + self.latent.rope), (1, self.latent.kv_rank)

    def config(self) -> dict[str, Any]:
        """Returns the flat contents of `config.json`."""
        config = base_config(self) | {"rms_norm_eps": self.eps}
        if self.eagle1:
            name = "EagleMistralForCausalLM" if self.eagle1_norms else "LlamaForCausalLM"
            config |= {"architectures": [name], "bias": self.fc_bias, "norm_output": self.eagle1_norms}
        elif self.gemma:
            config |= self.gemma_config()
        else:
            config |= {
                "architectures": ["Eagle3LlamaForCausalLM"],
                "target_hidden_size": self.n_embd_target,
                "draft_vocab_size": self.n_draft_vocab,
                "eagle_aux_hidden_state_layer_ids": list(self.layers),
            }
            switches = ("fc_norm", "norm_output", "norm_before_fc", "norm_before_residual")
            config |= {name: getattr(self, name) for name in (*switches, "attention_bias", "mlp_bias")}
        if self.n_parallel:
            config |= {"parallel_drafting": True, "ptd_token_id": MASK_TOKEN, "para_depths": self.n_parallel}
        if self.rope:
            config["rope_scaling"] = self.rope
        if self.latent is not None:
            del config["head_dim"], config["attention_bias"], config["mlp_bias"]
            config |= self.latent.config()
        if self.window:
            types = ["full" if i in self.full_layers else "sliding" for i in range(self.n_layers)]
            config |= {"sliding_window": self.window, "layer_types": [f"{t}_attention" for t in types]}
        return config

    def weights(self) -> dict[str, Any]:
        """Returns the drafter's tensors under canonical names."""
        rng = np.random.default_rng(self.seed)
        n_features = 2 * self.n_embd if self.eagle1 else len(self.layers) * self.n_embd_target
        w: dict[str, Any] = {"fc.weight": self.scale * matrix(rng, self.n_embd, n_features)}
        if self.fc_bias:
            w["fc.bias"] = vector(rng, self.n_embd, 0.0, 0.3)
        if self.fc_norm:
            w |= {f"fc_norm.{i}.weight": norm(rng, self.n_embd_target) for i in range(len(self.layers))}
        if self.norm_before_fc:
            w["input_norm.weight"] = norm(rng, n_features)
        if self.n_parallel:
            w["mask_hidden"] = vector(rng, n_features, 0.0, 1.0).reshape(1, 1, -1)
        for i in range(self.n_layers):
            w |= {f"layers.{i}.{name}": value for name, value in self.layer(rng, i).items()}
        if self.eagle1_norms or not self.eagle1:
            w["norm.weight"] = norm(rng, self.n_embd)
        if self.own_head:
            w["lm_head.weight"] = 3.0 * matrix(rng, self.n_draft_vocab, self.n_embd)
        if self.own_embedding:
            w["embed_tokens.weight"] = table(rng, self.n_vocab, self.n_embd, self.embedding)
        return w | vocab_maps(rng, self.n_vocab, self.n_draft_vocab)

    def layer(self, rng: np.random.Generator, i: int) -> dict[str, Array]:
        """Returns the tensors of one layer, with names relative to the layer."""
        width = self.n_embd * (2 if i == 0 and not self.eagle1 else 1)
        n_q, n_kv = self.n_heads * self.head_dim, self.n_kv_heads * self.head_dim
        rows = {"q": n_q, "k": n_kv, "v": n_kv}
        made = {}
        if self.latent is not None:
            made = self.latent.weights(rng, width, self.n_heads, self.n_embd)
        w = layer_matrices(rng, self, width, made)
        if i > 0 or self.eagle1_norms or not self.eagle1:
            w["input_layernorm.weight"] = norm(rng, self.n_embd)
        w["post_attention_layernorm.weight"] = norm(rng, self.n_embd)
        if i == 0 and not self.eagle1:
            w["hidden_norm.weight"] = norm(rng, self.n_embd)
        if self.gemma:
            w["pre_feedforward_layernorm.weight"] = norm(rng, self.n_embd)
            w["post_feedforward_layernorm.weight"] = norm(rng, self.n_embd)
            w["layer_scalar"] = np.ones(1, np.float32)
        if self.gemma == "keys":
            del w["self_attn.v_proj.weight"]
        if self.attention_bias:
            w |= {f"self_attn.{x}_proj.bias": vector(rng, n, 0.0, 0.5) for x, n in rows.items()}
        if self.qk_norm or self.gemma:
            w |= {f"self_attn.{x}_norm.weight": norm(rng, self.head_dim) for x in "qk"}
        if self.mlp_bias:
            sizes = {"gate": self.n_ff, "up": self.n_ff, "down": self.n_embd}
            w |= {f"mlp.{x}_proj.bias": vector(rng, n, 0.0, 0.3) for x, n in sizes.items()}
        return w

    def gemma_config(self) -> dict[str, Any]:
        """Returns the config keys that only drafters for Gemma 4 have."""
        return gemma_config(self) | {
            "architectures": ["Gemma4Eagle3Model"],
            "num_key_value_heads": 2 * self.n_kv_heads if self.gemma == "keys" else self.n_kv_heads,
            "attention_bias": False,
            "sliding_window": 512,
            "layer_types": ["full_attention"],
            "target_layer_ids": [k - 1 for k in self.layers],
            "ttt_length": 7,
            "step_loss_decay": 0.8,
        }

    def write(self, directory: Path) -> Path:
        """Writes the drafter's checkpoint, and returns its directory."""
        return write_files(directory, self.config(), self.weights())

    def gguf(self, directory: Path, target: Path, type: str = "F32") -> Path:
        """Writes the drafter's checkpoint and GGUF, and returns the GGUF. target: Hugging Face directory of
        the target.
        """
        layers = None if self.eagle1 or self.gemma else list(self.layers)
        checkpoint = self.write(directory / "checkpoint")
        return convert_checkpoint(checkpoint, target, directory / "draft.gguf", type, aux_layers=layers).out


def base_config(shape: Any) -> dict[str, Any]:
    """Returns the config keys that all drafters have."""
    return {
        "model_type": "llama",
        "hidden_size": shape.n_embd,
        "intermediate_size": shape.n_ff,
        "num_attention_heads": shape.n_heads,
        "num_key_value_heads": shape.n_kv_heads,
        "head_dim": shape.head_dim,
        "num_hidden_layers": shape.n_layers,
        "rms_norm_eps": 1e-5,
        "vocab_size": shape.n_vocab,
        "hidden_act": "silu",
        "max_position_embeddings": 2048,
        "rope_theta": 10000.0,
        "torch_dtype": "float32",
    }


def gemma_config(shape: Any) -> dict[str, Any]:
    """Returns the config keys that Gemma 4's text config adds or changes."""
    turned = {"rope_type": "proportional", "partial_rotary_factor": 0.25, "rope_theta": 10000.0}
    return {
        "model_type": "gemma4_text",
        "head_dim": shape.head_dim // 2,
        "global_head_dim": shape.head_dim,
        "num_global_key_value_heads": shape.n_kv_heads,
        "attention_k_eq_v": shape.gemma == "keys",
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


def layer_matrices(
    rng: np.random.Generator, shape: Any, width: int, attention: dict[str, Array]
) -> dict[str, Array]:
    """Returns the matrices of one layer. width: width of the layer's input. attention: tensors of attention
    that replace the standard ones, or empty.
    """
    w = {f"self_attn.{name}": value for name, value in attention.items()}
    if not attention:
        n_q, n_kv = shape.n_heads * shape.head_dim, shape.n_kv_heads * shape.head_dim
        rows = {"q": n_q, "k": n_kv, "v": n_kv}
        w = {f"self_attn.{x}_proj.weight": 1.5 * matrix(rng, n, width) for x, n in rows.items()}
        w["self_attn.o_proj.weight"] = matrix(rng, shape.n_embd, n_q)
    w["mlp.gate_proj.weight"] = matrix(rng, shape.n_ff, shape.n_embd)
    w["mlp.up_proj.weight"] = matrix(rng, shape.n_ff, shape.n_embd)
    w["mlp.down_proj.weight"] = matrix(rng, shape.n_embd, shape.n_ff)
    return w


def vocab_maps(rng: np.random.Generator, n_vocab: int, n_draft: int) -> dict[str, Any]:
    """Returns `d2t` and `t2d` of a draft vocabulary that is a subset of the target's."""
    if n_draft == n_vocab:
        return {}
    kept = np.sort(rng.choice(n_vocab, n_draft, replace=False))
    return {"d2t": kept - np.arange(n_draft), "t2d": np.isin(np.arange(n_vocab), kept)}


def table(rng: np.random.Generator, n_rows: int, width: int, std: float = 1.0) -> Array:
    """Returns an embedding table."""
    return vector(rng, n_rows * width, 0.0, std).reshape(-1, width)


def matrix(rng: np.random.Generator, n_out: int, n_in: int) -> Array:
    """Returns a matrix that maps unit input to output of about unit size."""
    return rng.normal(0.0, n_in**-0.5, (n_out, n_in)).astype(np.float32)


def vector(rng: np.random.Generator, n: int, mean: float, std: float) -> Array:
    return rng.normal(mean, std, n).astype(np.float32)


def norm(rng: np.random.Generator, n: int) -> Array:
    """Returns norm weights. They differ so much from 1 that tests detect a missing norm, or two swapped
    norms.
    """
    return vector(rng, n, 1.0, 0.25)


EAGLE1 = DraftShape(eagle1=True, own_head=False, n_draft_vocab=367)
