# SPDX-License-Identifier: MIT
"""Block drafters in PyTorch: DFlash, DSpark and DFlash2, for one conversation, in fp32.

The cache holds keys and values that are computed from the target's features alone: g = rms(fc [R_k ..]), and
then each layer applies k_norm and rope (z-lab/dflash: dflash/model.py; deepseek-ai/DeepSpec:
deepspec/modeling/dspark/qwen3/modeling.py). A pass runs B rows `[anchor, mask, ..]`, which see these keys and
values. DSpark adds a bias that depends on the token before each slot (markov_head.py). DFlash2 adds
convolutions over the rows and a lattice of the best tokens of neighbouring slots (vllm-project/vllm:
model_executor/models/qwen3_dflash2.py). Laguna's layer has gates and more norms (vllm-project/vllm:
laguna.py, laguna_dflash.py).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from .checkpoint import Weights, load_config, load_weights
from .gemma import PartialRope
from .layers import AttentionShape, Rope, attend, linear, mlp, rms


@dataclass(frozen=True)
class BlockPass:
    """Result of one pass. states: states `[B, H]` after the last norm. logits: logits `[B, Vd]` of the head
    alone, scaled and capped. anchor: token of row 0.
    """

    anchor: int
    states: torch.Tensor
    logits: torch.Tensor


@dataclass(frozen=True)
class Lattice:
    """Candidates of DFlash2 and their scores, for each slot from slot 1 on. An entry has the slot's
    candidates `[K]` as target ids, best first, and the scores `[K before, K]` of all pairs with the previous
    slot's candidates. Before slot 1 the only candidate is the anchor, so its scores are `[1, K]`.
    """

    ids: list[torch.Tensor]
    scores: list[torch.Tensor]


def block_config(config: dict[str, Any]) -> dict[str, Any]:
    """Returns the flattened config, in which values of `dflash_config` override the top level. Adds
    `anchor_first` and `boundaries` (the ids k of the features R_k), which some configs lack.
    """
    flat = {**config, **(config.get("dflash_config") or {})}
    name = (config.get("architectures") or [""])[0]
    by_class = "DSpark" in name
    post = flat.get("target_layer_ids") or []
    return flat | {
        "anchor_first": bool(flat.get("sample_from_anchor", by_class)),
        "boundaries": flat.get("aux_hidden_state_layer_ids") or [j + 1 for j in post],
    }


class BlockDrafter:
    """A block drafter with the keys and values of the text that it has read, at the rope positions 0, 1,
    ..
    """

    def __init__(
        self,
        config: dict[str, Any],
        weights: Weights,
        embedding: torch.Tensor | None = None,
        head: torch.Tensor | None = None,
    ) -> None:
        """Builds the drafter from tensors. embedding `[V, H]` and head are the target's tables, which a
        checkpoint without tables uses.
        """
        self.config = c = block_config(config)
        self.w = weights
        self.embedding = weights.get("embed_tokens.weight", embedding)
        self.head = weights.get("lm_head.weight", head)
        self.is_gated = "layers.0.self_attn.g_proj.weight" in weights
        self.is_gemma = "layers.0.pre_feedforward_layernorm.weight" in weights
        if self.is_gemma:
            heads = "num_global_key_value_heads" if c["attention_k_eq_v"] else "num_key_value_heads"
            c |= {"head_dim": c["global_head_dim"], "num_key_value_heads": c[heads]}
        self.shape = AttentionShape.of(c)
        self.eps = self.shape.eps
        self.rope = Rope(c, self.shape.head_dim)
        if self.is_gemma:
            self.rope = PartialRope(c["rope_parameters"]["full_attention"], self.shape.head_dim)
        self.n_layers = int(c["num_hidden_layers"])
        self.block = int(c.get("block_size") or 16)
        self.boundaries = list(c["boundaries"])
        self.anchor_first = bool(c["anchor_first"])
        self.has_markov = "markov_head.markov_w1.weight" in weights
        self.top_k = int(c.get("selector_top_k") or 0)
        ids = torch.arange(len(self.head))  # type: ignore[arg-type]
        self.target_ids = ids + weights["d2t"] if "d2t" in weights else ids
        self.reset()

    @classmethod
    def load(
        cls, directory: Path, embedding: torch.Tensor | None = None, head: torch.Tensor | None = None
    ) -> BlockDrafter:
        """Reads a checkpoint directory. The checkpoint's own tables take precedence over the given tables."""
        weights = {
            name.removeprefix("logit_head.").replace("confidence_proj.", "confidence_head.proj."): tensor
            for name, tensor in load_weights(directory).items()
        }
        config = load_config(directory)
        heads = [int(config[f"num_{kind}_heads"]) for kind in ("attention", "key_value", "key_value")]
        sizes = [n * int(config.get("head_dim") or 0) for n in heads]
        for name in [name for name in weights if name.endswith(".qkv_proj.weight")]:
            for x, part in zip("qkv", weights.pop(name).split(sizes), strict=True):
                weights[name.replace("qkv_proj", f"{x}_proj")] = part
        return cls(config, weights, embedding, head)

    def reset(self) -> None:
        self.cache = [self.shape.cache() for _ in range(self.n_layers)]

    @property
    def n_rows(self) -> int:
        return len(self.cache[0].k)

    # Rows of the context

    def fuse(self, features: torch.Tensor | list[torch.Tensor]) -> torch.Tensor:
        """Maps features `[A, n_rows, Ht]` to the context g `[n_rows, H]`."""
        if self.is_gated:
            norms = [self.w[f"aux_hidden_norms.{a}.weight"] for a in range(len(features))]
            features = [rms(x, w, self.eps) for x, w in zip(features, norms, strict=True)]
        fused = linear(torch.cat(list(features), dim=-1), self.w, "fc")
        return rms(fused, self.w["hidden_norm.weight"], self.eps)

    def keys_values(
        self, i: int, x: torch.Tensor, positions: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Returns the keys (after norm and rope) and the values that layer i computes from x, `[n_rows,
        n_kv_heads, head_dim]`.
        """
        name, n_kv = f"layers.{i}.self_attn", self.shape.n_kv_heads
        k = linear(x, self.w, f"{name}.k_proj").view(len(x), n_kv, -1)
        v = k
        if f"{name}.v_proj.weight" in self.w:
            v = linear(x, self.w, f"{name}.v_proj").view(len(x), n_kv, -1)
        if self.is_gemma:
            v = rms(v, torch.ones(v.shape[-1]), self.eps)
        return self.rope(rms(k, self.w[f"{name}.k_norm.weight"], self.eps), positions), v

    @torch.no_grad()
    def commit(self, features: torch.Tensor) -> torch.Tensor:
        """Appends a cache row for each of the target's features `[A, n_rows, Ht]`, at the next positions.
        Returns the context g of these rows. Every layer computes keys and values from g. In Laguna's
        drafters, every layer first applies its own norm to g.
        """
        g = self.fuse(features)
        positions = torch.arange(self.n_rows, self.n_rows + len(g))
        for i, cache in enumerate(self.cache):
            cache.append(*self.keys_values(i, self.read_by(i, g), positions))
        return g

    def read_by(self, i: int, g: torch.Tensor) -> torch.Tensor:
        """Returns the context g as layer i reads it to compute keys and values."""
        return rms(g, self.w[f"layers.{i}.input_layernorm.weight"], self.eps) if self.is_gated else g

    # The pass over a block

    def causal(self, i: int) -> bool:
        """Returns True if layer i has causal attention. The config may decide this for all layers. Otherwise
        layers with a sliding window are causal (SpecForge, vLLM; speculators may differ).
        """
        for key in ("is_causal", "causal"):
            if self.config.get(key) is not None:
                return bool(self.config[key])
        return self.window(i) > 0 and not self.config.get("sliding_window_non_causal")

    def window(self, i: int) -> int:
        """Returns the width of the sliding window of layer i, or 0 for full attention."""
        kinds = self.config.get("layer_types") or ["full_attention"] * self.n_layers
        return int(self.config.get("sliding_window") or 0) if kinds[i] == "sliding_attention" else 0

    def visible(self, i: int, n_rows: int) -> torch.Tensor:
        """Returns layer i's mask, bools `[n_rows, n_committed + n_rows]`: the keys that each row sees."""
        a, window = self.n_rows, self.window(i)
        rows, keys = torch.arange(a, a + n_rows)[:, None], torch.arange(a + n_rows)[None, :]
        seen = (keys < a) | (keys <= rows) if self.causal(i) else torch.ones(n_rows, a + n_rows).bool()
        return seen & (keys > rows - window) if window else seen

    def positions(self, n_rows: int) -> torch.Tensor:
        return torch.arange(self.n_rows, self.n_rows + n_rows)

    def embedded(self, anchor: int) -> torch.Tensor:
        """Returns the drafter's input for the tokens of a block, `[n_rows, H]`."""
        ids = [anchor] + [int(self.config["mask_token_id"])] * (self.block - 1)
        rows = self.embedding[torch.tensor(ids)]  # type: ignore[index]
        scale = math.sqrt(rows.shape[-1]) if self.is_gemma else self.config.get("input_embedding_scale")
        return rows * float(scale or 1.0)

    def convolved(self, y: torch.Tensor, x: torch.Tensor, name: str, side: int) -> torch.Tensor:
        """Computes DFlash2's convolution: row i of the result is a weighted sum of the rows i, i - 1, .. of
        y. The weights are computed from x.
        """
        if f"{name}.base_kernel" not in self.w:
            return y
        base = self.w[f"{name}.base_kernel"]  # [2, taps, H]
        n_taps, width = base.shape[1:]
        delta = linear(x, self.w, f"{name}.kernel_projection").view(len(x), 2, n_taps, -1)
        weights = base[side] + delta[:, side].repeat_interleave(width // delta.shape[-1], dim=-1)
        out = torch.zeros_like(y)
        for tap in range(n_taps):
            out[tap:] += weights[tap:, tap] * y[: len(y) - tap]
        return out

    def attention(self, i: int, x: torch.Tensor) -> torch.Tensor:
        name, shape, n = f"layers.{i}.self_attn", self.shape, len(x)
        q = linear(x, self.w, f"{name}.q_proj").view(n, shape.n_heads, -1)
        q = self.rope(rms(q, self.w[f"{name}.q_norm.weight"], self.eps), self.positions(n))
        own_keys, own_values = self.keys_values(i, x, self.positions(n))
        keys, values = torch.cat([self.cache[i].k, own_keys]), torch.cat([self.cache[i].v, own_values])
        scale = 1.0 if self.is_gemma else shape.head_dim**-0.5
        out = attend(q, keys, values, self.visible(i, n), scale, self.w.get(f"{name}.sinks"))
        if self.is_gated:
            out = (out.view(n, shape.n_heads, -1) * self.gates(i, x)[..., None]).view(n, -1)
        return linear(out * (self.config.get("attention_value_scale") or 1.0), self.w, f"{name}.o_proj")

    def gates(self, i: int, x: torch.Tensor) -> torch.Tensor:
        """Returns the factors that Laguna's gates apply to the output of attention, `[n_rows, n_heads]`."""
        return torch.nn.functional.softplus(linear(x, self.w, f"layers.{i}.self_attn.g_proj"))

    def layer(self, i: int, h: torch.Tensor) -> torch.Tensor:
        name = f"layers.{i}"

        def norm(x: torch.Tensor, which: str) -> torch.Tensor:
            return rms(x, self.w[f"{name}.{which}.weight"], self.eps)

        x = norm(h, "input_layernorm")
        out = self.attention(i, self.convolved(x, x, f"{name}.attention_conv", 0))
        out = self.convolved(out, x, f"{name}.attention_conv", 1)
        h = h + (norm(out, "post_attention_layernorm") if self.is_gemma else out)
        x = norm(h, "pre_feedforward_layernorm" if self.is_gemma else "post_attention_layernorm")
        out = mlp(self.convolved(x, x, f"{name}.mlp_conv", 0), self.w, f"{name}.mlp", is_gemma=self.is_gemma)
        out = self.convolved(out, x, f"{name}.mlp_conv", 1)
        h = h + (norm(out, "post_feedforward_layernorm") if self.is_gemma else out)
        return h * self.w.get(f"{name}.layer_scalar", torch.ones(1))

    @property
    def logit_scale(self) -> float:
        return float(self.config.get("output_multiplier") or 1.0)

    def head_logits(self, states: torch.Tensor) -> torch.Tensor:
        """Returns the head's logits `[B, Vd]`, scaled, then capped."""
        logits = self.logit_scale * (states @ self.head.T)  # type: ignore[union-attr]
        cap = float(self.config.get("final_logit_softcapping") or 0.0)
        return cap * torch.tanh(logits / cap) if cap else logits

    @torch.no_grad()
    def run(self, anchor: int) -> BlockPass:
        """Runs a block of rows after the committed text."""
        h = self.embedded(anchor)
        for i in range(self.n_layers):
            h = self.layer(i, h)
        states = rms(h, self.w["norm.weight"], self.eps)
        return BlockPass(anchor, states, self.head_logits(states))

    # Predictions of the slots

    def slots(self) -> range:
        """Returns the numbers of the rows that predict a token. The first of these rows predicts the token
        after the anchor.
        """
        return range(0 if self.anchor_first else 1, self.block)

    def predecessor(self, token: int) -> torch.Tensor:
        """Returns the row `[R]` of the Markov head for a token, given by its target id."""
        return self.w["markov_head.markov_w1.weight"][token]

    def conditional(self, done: BlockPass, slot: int, token: int) -> torch.Tensor:
        """Returns DSpark's logits `[Vd]` of a slot, given the token before it (a target id)."""
        if not self.has_markov:
            return done.logits[slot]
        bias = self.w["markov_head.markov_w2.weight"] @ self.predecessor(token)
        return done.logits[slot] + self.logit_scale * bias

    def confidence(self, done: BlockPass, slot: int, token: int) -> float:
        """Returns the logit of the expected acceptance of a slot, given the token before it."""
        weight = self.w["confidence_head.proj.weight"][0]
        read = done.states[slot]
        if len(weight) > len(read):
            read = torch.cat([read, self.predecessor(token)])
        return float(weight @ read + self.w.get("confidence_head.proj.bias", torch.zeros(1)))

    def lattice(self, done: BlockPass) -> Lattice:
        """Returns DFlash2's candidates for each slot, and the scores of all pairs of candidates in
        neighbouring slots.
        """
        table, selector = Lattice([], []), "candidate_selector"
        before = torch.tensor([done.anchor])
        for slot in self.slots():
            logits, rows = done.logits[slot].topk(self.top_k)
            ids = self.target_ids[rows]
            projected = linear(done.states[slot], self.w, f"{selector}.hidden_projection")
            asked = self.w[f"{selector}.predecessor_codebook"][before] * projected
            table.ids.append(ids)
            table.scores.append(logits + asked @ self.w[f"{selector}.successor_codebook"][ids].T)
            before = ids
        return table

    def walk(self, done: BlockPass) -> list[int]:
        """Returns the greedy chain of drafts, as target ids from left to right."""
        if self.top_k:
            chain, row, table = [], 0, self.lattice(done)
            for ids, scores in zip(table.ids, table.scores, strict=True):
                row = int(scores[row].argmax())
                chain.append(int(ids[row]))
            return chain
        chain, token = [], done.anchor
        for slot in self.slots():
            token = int(self.target_ids[self.conditional(done, slot, token).argmax()])
            chain.append(token)
        return chain


def slot_distributions(it: BlockDrafter, done: BlockPass, previous: list[int]) -> list[dict[int, float]]:
    """Returns the log-probabilities of each slot by target id, given the anchor and the tokens of the slots.
    For DFlash2, the log-probabilities come from the lattice.
    """
    if it.top_k:
        table = it.lattice(done)
        places = [0, *(ids.tolist().index(token) for ids, token in zip(table.ids, previous, strict=False))]
        scores, ids = [rows[place] for rows, place in zip(table.scores, places, strict=True)], table.ids
    else:
        before = zip(it.slots(), [done.anchor, *previous], strict=True)
        scores = [it.conditional(done, slot, token) for slot, token in before]
        ids = [it.target_ids] * len(scores)
    return [
        dict(zip(tokens.tolist(), row.log_softmax(-1).tolist(), strict=True))
        for tokens, row in zip(ids, scores, strict=True)
    ]
