# SPDX-License-Identifier: MIT
"""Block drafters as they are trained: DSpark, and DFlash as DeepSpec has it: DSpark without its bias.

A row p that counts is an anchor: behind the features of p and before, a block of rows `[token p+1, mask, ..]`
at the RoPE positions p+1, p+2, .. gives the tokens p+2, p+3, .., slot k as EAGLE's step k. So labels, counted
rows, loss and evaluation are EAGLE's. With the bias by the token before, the head reads `[state ; W1 of that
token]` and is `[head | W2]`: one product, and the loss may look at a part of the vocabulary as ever. A
confidence head reads the same and says how likely the draft of a slot is accepted, if those before it were.
Source of the method: DSpark (deepseek-ai/DeepSpec: deepspec/modeling/dspark/qwen3/modeling.py, loss.py).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from eaglecpp.convert import DraftSpec
from eaglecpp.train.fit.attention import Layout
from eaglecpp.train.fit.batch import Batch
from eaglecpp.train.fit.model import DraftModel, matrix, of_layer, ones

_ANCHORS = 32
"""Of which attention is computed at a time."""


class BlockModel(DraftModel):
    """`spec.block` says how many rows a block has, and the rank of the bias."""

    def __init__(self, spec: DraftSpec, embedding: Tensor, **options: Any) -> None:
        """options: of `DraftModel`."""
        assert spec.block is not None
        super().__init__(spec, embedding, **options)
        self.block = spec.block
        self.hidden_norm = ones(spec.hidden_size)
        rank = self.block.markov_rank
        self.markov_w1 = matrix(spec.vocab_size, rank) if rank else None
        self.markov_w2 = nn.Parameter(torch.zeros(spec.draft_vocab_size, rank)) if rank else None
        # a vector, its bias at the end: such are stored exactly
        width = spec.hidden_size + rank + 1
        self.confidence = nn.Parameter(torch.zeros(width)) if self.block.confidence else None

    def heads(self) -> Sequence[Tensor]:
        return [self.head] if self.markov_w2 is None else [self.head, self.markov_w2]

    def confidence_loss(self, states: Tensor, accepted: Tensor, weight: Tensor) -> Tensor | float:
        if self.confidence is None:
            return 0.0
        logit = states.float() @ self.confidence[:-1] + self.confidence[-1]
        return F.binary_cross_entropy_with_logits(logit, accepted, weight, reduction="sum")

    def steps(self, batch: Batch) -> Iterator[Tensor]:
        """What the head reads of each slot, over the anchors `batch.run.later`, all rows without a run."""
        spec, size, eps = self.spec, self.block.size, self.spec.rms_norm_eps
        n_tokens, n_embd = len(batch.features), spec.hidden_size
        layout, anchors = batch.layout, torch.arange(n_tokens, device=batch.tokens.device)
        if batch.run is not None:
            layout, anchors = batch.run.layout, batch.run.later
        kept = ("head", "markov_w1", "markov_w2", "confidence")  # those are read in their own ways
        w = {name: p.to(self.dtype) for name, p in self.named_parameters() if name not in kept}
        tokens = F.pad(batch.tokens, (0, size + 1))
        ids = torch.full((len(anchors), size), self.block.mask_token, device=tokens.device)
        ids[:, 0] = tokens[anchors + 1]
        hidden = self.embedding[ids].flatten(0, 1)
        features = F.linear(batch.features.to(self.dtype), w["fc"])
        context = F.rms_norm(features, (n_embd,), w["hidden_norm"], eps)
        # turning by places in the batch is as good as by places in the sample: only differences matter
        cos, sin = self._rotation(n_tokens + size + 1)
        places = (anchors[:, None] + 1 + torch.arange(size, device=anchors.device)).flatten()
        for i in range(spec.n_layers):
            layer = of_layer(w, i)
            normed = F.rms_norm(hidden, (n_embd,), layer["attn_norm"], eps)
            q, k, v = self._heads(F.linear(normed, layer["qkv"]), cos[places], sin[places], layer)
            seen = F.linear(context, layer["qkv"][spec.n_heads * spec.head_dim :])
            _, seen_k, seen_v = self._heads(seen, cos[:n_tokens], sin[:n_tokens], layer)
            hidden = hidden + F.linear(self._attend(q, (k, v), (seen_k, seen_v), layout), layer["o"])
            hidden = hidden + self._mlp(hidden, layer)
        states = F.rms_norm(hidden, (n_embd,), w["norm"], eps).view(len(anchors), size, n_embd)
        states = states[:, : batch.n_steps]
        if self.markov_w1 is not None:  # all at once: the table's gradient is a table each time
            behind = anchors[:, None] + 1 + torch.arange(batch.n_steps, device=anchors.device)
            before = F.embedding(tokens[behind], self.markov_w1).to(self.dtype)
            states = torch.cat([states, before], dim=2)
        yield from states.unbind(1)

    def _attend(
        self, q: Tensor, own: tuple[Tensor, Tensor], seen: tuple[Tensor, Tensor], layout: Layout
    ) -> Tensor:
        """`[n_anchors * size, n_heads * head_dim]`: the rows of each block see the text up to their anchor's
        row, within its sample, and their own block. q, own: `[n_heads, n_anchors * size, head_dim]`; seen: of
        all rows of the text; layout: of the anchors.
        """
        size, (n_heads, _, width) = self.block.size, q.shape
        later = torch.ones(size, size, dtype=torch.bool, device=q.device).triu(1)
        outs = [q[:, :0]]
        for part in layout.parts():
            first, n_all = part.queries.start, part.queries.stop - part.queries.start
            at = torch.arange(n_all, device=q.device) if part.at is None else part.at
            # a few at a time: the scores of all would take gigabytes where every row of a long text is one
            for few in torch.split(at, _ANCHORS):
                rows, n = slice(first * size, (first + len(few)) * size), len(few)
                first += n
                places = torch.arange(int(few[-1]) + 1, device=q.device)
                text = slice(part.keys.start, part.keys.start + len(places))
                keys, values = (x[:, text] for x in seen)
                own_keys, own_values = (x[:, rows].reshape(n_heads, n, size, width) for x in own)
                mine = q[:, rows] * width**-0.5
                far = (mine @ keys.transpose(1, 2)).float()
                far = far.masked_fill(places > few.repeat_interleave(size)[:, None], float("-inf"))
                near = (mine.reshape(n_heads, n, size, width) @ own_keys.transpose(2, 3)).float()
                if self.block.causal[0]:
                    near = near.masked_fill(later, float("-inf"))
                p = torch.cat([far, near.flatten(1, 2)], dim=-1).softmax(-1).to(q.dtype)
                of_text, within = torch.split(p, [len(places), size], dim=-1)
                within = within.reshape(n_heads, n, size, size) @ own_values
                outs.append(of_text @ values + within.flatten(1, 2))
        return torch.cat(outs, dim=1).transpose(0, 1).flatten(1)


def model_for(spec: DraftSpec) -> type[DraftModel]:
    """What trains drafters of this kind."""
    return DraftModel if spec.block is None else BlockModel
