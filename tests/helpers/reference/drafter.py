# SPDX-License-Identifier: MIT
"""EAGLE-1/2, EAGLE-3 and EAGLE 3.1 drafters in PyTorch: fusion, layers, head, and the drafter's own KV rows.

A drafter is built from the canonical tensors and the flattened config of a checkpoint. It computes the draft
logits over the draft vocabulary, and the state that is fed to the next step. Row p pairs the target's feature
at p with the embedding of token p + 1, and has RoPE position p. Every row runs through all operations,
committed or not. A checkpoint without a norm for the feature is EAGLE-1 or 2. Mistral's EAGLE-1 has norms,
which are applied.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from .checkpoint import Weights, load_config, load_weights
from .layers import AttentionShape, LatentAttention, Rope, attention, linear, mlp, rms, sees


class Drafter:
    """A drafter with its cache: first the committed rows, then the rows of the tree that is being drafted."""

    def __init__(
        self,
        config: dict[str, Any],
        weights: Weights,
        embedding: torch.Tensor | None = None,
        head: torch.Tensor | None = None,
    ) -> None:
        """Builds the drafter from tensors. `embedding` `[n_vocab, hidden]` and `head` are the target's
        tables, which a checkpoint without tables uses.
        """
        self.w, self.config = weights, config
        self.embedding = weights["embed_tokens.weight"] if embedding is None else embedding
        self.head = weights["lm_head.weight"] if head is None else head
        self.eps = float(config.get("rms_norm_eps") or 1e-6)
        self.latent = LatentAttention(config) if "kv_lora_rank" in config else None
        if self.latent is None:
            self.shape = AttentionShape.of(config)
            self.rope = Rope(config, self.shape.head_dim)
        # Settings that change the arithmetic and do not follow from the tensors.
        self.norm_before_residual = bool(config.get("norm_before_residual"))
        self.norm_output = bool(config.get("norm_output"))
        # Width of each layer's sliding window; 0 means full attention. The last entry also applies to all
        # further layers.
        window = int(config.get("sliding_window") or 0)
        kinds = config.get("layer_types") or ["sliding_attention"]
        self.windows = [window if kind == "sliding_attention" else 0 for kind in kinds]
        self.n_layers = 1 + max(int(n.split(".")[1]) for n in weights if n.startswith("layers."))
        self.fuses_embedding = "layers.0.hidden_norm.weight" not in weights
        self.n_fc_norms = sum(n.startswith("fc_norm.") for n in weights)
        ids = torch.arange(self.head.shape[0])
        self.target_ids = ids + weights["d2t"] if "d2t" in weights else ids
        self.reset()

    @classmethod
    def load(
        cls, directory: Path, embedding: torch.Tensor | None = None, head: torch.Tensor | None = None
    ) -> Drafter:
        """Reads a checkpoint directory. The checkpoint's own embedding and head take precedence over the
        given ones.
        """
        weights = load_weights(directory)
        embedding = weights.get("embed_tokens.weight", embedding)
        return cls(load_config(directory), weights, embedding, weights.get("lm_head.weight", head))

    def reset(self) -> None:
        kind = self.latent or self.shape
        self.cache = [kind.cache() for _ in range(self.n_layers)]
        self.n_committed = 0
        self.positions = torch.zeros(0, dtype=torch.long)  # RoPE positions of all rows in the cache
        # Ancestors of each draft row. A row counts as its own ancestor.
        self.ancestors = torch.zeros(0, 0, dtype=torch.bool)

    def fuse(self, features: torch.Tensor) -> torch.Tensor:
        """Maps `[n_aux, n_rows, target_hidden]` to the drafter's input features `[n_rows, hidden]`. For
        EAGLE-1 the features stay unchanged, because each step fuses them with embeddings.
        """
        x = torch.cat(list(features), dim=-1)
        if self.fuses_embedding:
            return x
        if "input_norm.weight" in self.w:
            x = rms(x, self.w["input_norm.weight"], self.eps)
        if self.n_fc_norms:
            chunks = x.chunk(self.n_fc_norms, dim=-1)
            x = torch.cat(
                [rms(c, self.w[f"fc_norm.{i}.weight"], self.eps) for i, c in enumerate(chunks)], dim=-1
            )
        return linear(x, self.w, "fc")

    def concat(self, embedded: torch.Tensor, feature: torch.Tensor) -> torch.Tensor:
        return torch.cat([embedded, feature], dim=-1)

    def embedded(self, tokens: Sequence[int]) -> torch.Tensor:
        return self.embedding[torch.tensor(list(tokens))]

    def rows(
        self, feature: torch.Tensor, tokens: Sequence[int], positions: torch.Tensor, visible: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Runs rows through all layers. Returns logits `[n_rows, n_draft_vocab]`, and the states that are fed
        to the next step.
        """
        self.positions = torch.cat([self.positions, positions])
        distance = positions[:, None] - self.positions[None, :]
        h = feature
        if self.fuses_embedding:
            h = linear(self.concat(self.embedded(tokens), h), self.w, "fc")
        for i in range(self.n_layers):
            window = self.windows[min(i, len(self.windows) - 1)]
            h = self.layer(i, h, tokens, positions, visible & (distance < window) if window else visible)
        normed = self.output(h)
        return normed @ self.head.T, normed if self.norm_output else h

    def output(self, hidden: torch.Tensor) -> torch.Tensor:
        """Returns the input of the draft head for the last layer's states."""
        return rms(hidden, self.w["norm.weight"], self.eps) if "norm.weight" in self.w else hidden

    def layer(
        self, i: int, h: torch.Tensor, tokens: Sequence[int], positions: torch.Tensor, visible: torch.Tensor
    ) -> torch.Tensor:
        """Runs one layer. Layer 0 reads `[embedding ; feature]`, or in EAGLE-1 the output of fc. All other
        layers are ordinary pre-norm decoder layers.
        """
        name = f"layers.{i}"
        if f"{name}.input_layernorm.weight" not in self.w and f"{name}.hidden_norm.weight" not in self.w:
            u, residual = h, h
        elif i == 0 and not self.fuses_embedding:
            normed = rms(h, self.w[f"{name}.hidden_norm.weight"], self.eps)
            u = self.concat(
                rms(self.embedded(tokens), self.w[f"{name}.input_layernorm.weight"], self.eps), normed
            )
            residual = normed if self.norm_before_residual else h
        else:
            # This norm is called input_layernorm in vLLM and speculators, and hidden_norm in SGLang and
            # ModelOpt.
            norm = self.w.get(f"{name}.input_layernorm.weight", self.w.get(f"{name}.hidden_norm.weight"))
            assert norm is not None
            u, residual = rms(h, norm, self.eps), h
        if self.latent is not None:
            seen = self.latent(u, self.w, f"{name}.self_attn", positions, visible, self.cache[i])
        else:
            seen = attention(
                u, self.w, f"{name}.self_attn", self.shape, self.rope, positions, visible, self.cache[i]
            )
        h = residual + seen
        return h + mlp(
            rms(h, self.w[f"{name}.post_attention_layernorm.weight"], self.eps), self.w, f"{name}.mlp"
        )

    @torch.no_grad()
    def commit(self, features: torch.Tensor, tokens: Sequence[int]) -> tuple[torch.Tensor, torch.Tensor]:
        """Appends committed rows with true features `[n_aux, n_rows, target_hidden]`. Row i embeds
        `tokens[i]`.

        Drops the draft rows. Returns the logits `[n_draft_vocab]` of the last row, and the state `[hidden]`
        that is fed to the next step.
        """
        self.truncate(self.n_committed)
        positions = torch.arange(self.n_committed, self.n_committed + len(tokens))
        visible = sees(len(tokens), self.n_committed)
        logits, states = self.rows(self.fuse(features), tokens, positions, visible)
        self.n_committed += len(tokens)
        return logits[-1], states[-1]

    @torch.no_grad()
    def extend(
        self, states: torch.Tensor, tokens: Sequence[int], parents: Sequence[int], depth: int
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Adds the draft rows of the draft step `depth` (1 = first step). `parents` has the number of each
        row's parent among the draft rows, or -1 for the last committed row.

        `states` `[n_rows, hidden]` are the states fed from the parents. Returns logits `[n_rows,
        n_draft_vocab]` and states `[n_rows, hidden]`.
        """
        n_old, n_new = self.ancestors.shape[0], len(tokens)
        grown = torch.zeros(n_old + n_new, n_old + n_new, dtype=torch.bool)
        grown[:n_old, :n_old] = self.ancestors
        for row, parent in enumerate(parents, start=n_old):
            if parent >= 0:
                grown[row] = grown[parent]
            grown[row, row] = True
        self.ancestors = grown
        committed = torch.ones(n_new, self.n_committed, dtype=torch.bool)
        positions = torch.full((n_new,), self.n_committed - 1 + depth)
        return self.rows(states, tokens, positions, torch.cat([committed, grown[n_old:]], dim=1))

    def truncate(self, n_rows: int) -> None:
        """Keeps the first `n_rows` committed rows, and drops all draft rows."""
        self.n_committed = min(n_rows, self.n_committed)
        self.ancestors = torch.zeros(0, 0, dtype=torch.bool)
        self.positions = self.positions[: self.n_committed]
        for cache in self.cache:
            cache.truncate(self.n_committed)

    def kv(self, layer: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Returns K (after RoPE) and V of the committed rows, `[n_rows, n_kv_heads, head_dim]`. With latent
        attention, returns the cache rows and the latents in these rows, `[n_rows, 1, width]`.
        """
        return self.cache[layer].k[: self.n_committed], self.cache[layer].v[: self.n_committed]
