# SPDX-License-Identifier: MIT
"""Trains block drafters: DSpark, DFlash in DeepSpec's form (DSpark without its bias), and DFlash2.

A counted row p is an anchor. After the features up to p, a block of rows `[token p+1, mask, ..]` at the RoPE
positions p+1, p+2, .. predicts the tokens p+2, p+3, ..; position k of the block corresponds to EAGLE's step
k. In DFlash2 each row predicts its own position, so the first row predicts nothing. So labels, counted rows,
loss and evaluation are the same as for EAGLE.

With DSpark's bias by the previous token, the head's input is `[state ; W1 of that token]`, and its matrix is
`[head | W2]`. So there is a single product, for which the loss may use a part of the vocabulary as usual. A
confidence head reads the same input and estimates the probability that a position's draft is accepted if all
earlier drafts of the block are accepted. DFlash2's selector is also a bias, whose first factor is multiplied
by a projection of the state; because the candidates are the head's best tokens, the head is also trained
alone (vllm-project/speculators#1006). DFlash2's convolutions mix a row with earlier rows, and start without
mixing. Source of the method: DSpark (deepseek-ai/DeepSpec: deepspec/modeling/dspark/qwen3/modeling.py,
loss.py).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from eaglecpp.convert import DraftSpec
from eaglecpp.train.fit.attention import Spans
from eaglecpp.train.fit.batch import Batch
from eaglecpp.train.fit.loss import Labels, head_loss
from eaglecpp.train.fit.model import CONVOLUTIONS, DraftModel, feed_forward, matrix, of_layer, ones

_ANCHORS = 32
"""Anchors whose attention is computed at once."""


class BlockModel(DraftModel):
    """Trains a block drafter. `spec.block` has the block size and the rank of the Markov bias."""

    def __init__(self, spec: DraftSpec, embedding: Tensor, **options: Any) -> None:
        """Creates the model. options: further arguments of `DraftModel`."""
        assert spec.block is not None
        super().__init__(spec, embedding, **options)
        self.block = spec.block
        self.hidden_norm = ones(spec.hidden_size)
        rank = self.block.markov_rank
        self.markov_w1 = matrix(spec.vocab_size, rank) if rank else None
        self.markov_w2 = nn.Parameter(torch.zeros(spec.draft_vocab_size, rank)) if rank else None
        if self.block.selector:
            rank = self.block.selector[0]
            self.predecessor = nn.Parameter(torch.randn(spec.vocab_size, rank))
            self.successor = nn.Parameter(torch.zeros(spec.draft_vocab_size, rank))
            self.selector_hidden = matrix(rank, spec.hidden_size)
        # The vector's last value is the bias, because files store vectors with full precision.
        width = spec.hidden_size + rank + 1
        self.confidence = nn.Parameter(torch.zeros(width)) if self.block.confidence else None

    def heads(self) -> Sequence[Tensor]:
        if self.block.selector:
            return [self.head, self.successor]
        return [self.head] if self.markov_w2 is None else [self.head, self.markov_w2]

    def further_loss(self, states: Tensor, accepted: Tensor, labels: Labels) -> Tensor | float:
        if self.block.selector:
            return head_loss(states[:, : self.spec.hidden_size], [self.head], labels)[0]
        if self.confidence is None:
            return 0.0
        logit = states.float() @ self.confidence[:-1] + self.confidence[-1]
        return F.binary_cross_entropy_with_logits(logit, accepted, labels.weight, reduction="sum")

    def steps(self, batch: Batch) -> Iterator[Tensor]:
        """Yields the head's input at each position, for the anchors `batch.run.later`, or for all rows."""
        spec, size, eps = self.spec, self.block.size, self.spec.rms_norm_eps
        first = 0 if self.block.anchor_first else 1
        if self.block.causal[0]:  # no row needs to attend to positions after the last trained position
            size = min(size, first + batch.n_steps)
        n_tokens, n_embd = len(batch.features), spec.hidden_size
        layout, anchors = batch.layout, torch.arange(n_tokens, device=batch.tokens.device)
        if batch.run is not None:
            layout, anchors = batch.run.layout, batch.run.later
        # These parameters are not converted, because only the head and the losses use them.
        kept = ("head", "markov_w1", "markov_w2", "predecessor", "successor", "confidence")
        w = {name: p.to(self.dtype) for name, p in self.named_parameters() if name not in kept}
        tokens = F.pad(batch.tokens, (0, size + 1))
        ids = torch.full((len(anchors), size), self.block.mask_token, device=tokens.device)
        ids[:, 0] = tokens[anchors + 1]
        hidden = self.embedding[ids].flatten(0, 1)
        features = F.linear(batch.features.to(self.dtype), w["fc"])
        context = F.rms_norm(features, (n_embd,), w["hidden_norm"], eps)
        # RoPE positions are counted in the batch, not in the sample, because only differences matter.
        cos, sin = self._rotation(n_tokens + size + 1)
        places = (anchors[:, None] + 1 + torch.arange(size, device=anchors.device)).flatten()
        for i in range(spec.n_layers):
            layer = of_layer(w, i)
            normed = F.rms_norm(hidden, (n_embd,), layer["attn_norm"], eps)
            mixed = self._mixed(normed, normed, size, layer, CONVOLUTIONS[0], 0)
            q, k, v = self._heads(F.linear(mixed, layer["qkv"]), cos[places], sin[places], layer)
            seen = F.linear(context, layer["qkv"][spec.n_heads * spec.head_dim :])
            _, seen_k, seen_v = self._heads(seen, cos[:n_tokens], sin[:n_tokens], layer)
            out = F.linear(self._attend(q, (k, v), (seen_k, seen_v), layout, size), layer["o"])
            hidden = hidden + self._mixed(out, normed, size, layer, CONVOLUTIONS[0], 1)
            normed = F.rms_norm(hidden, (n_embd,), layer["mlp_norm"], eps)
            out = feed_forward(self._mixed(normed, normed, size, layer, CONVOLUTIONS[1], 0), layer)
            hidden = hidden + self._mixed(out, normed, size, layer, CONVOLUTIONS[1], 1)
        states = F.rms_norm(hidden, (n_embd,), w["norm"], eps).view(len(anchors), size, n_embd)
        states = states[:, first : first + batch.n_steps]
        table = self.predecessor if self.block.selector else self.markov_w1
        # All rows share one lookup, because each lookup has a gradient as large as the table.
        if table is not None:
            behind = anchors[:, None] + 1 + torch.arange(batch.n_steps, device=anchors.device)
            before = F.embedding(tokens[behind], table).to(self.dtype)
            if self.block.selector:
                before = before * F.linear(states, w["selector_hidden"])
            states = torch.cat([states, before], dim=2)
        yield from states.unbind(1)

    def _mixed(
        self, rows: Tensor, normed: Tensor, size: int, layer: dict[str, Tensor], name: str, side: int
    ) -> Tensor:
        """Applies DFlash2's convolution over the rows of each block, [n_anchors * size, n_embd], before (side
        0) or after (side 1) a part of a layer. The convolution's kernel depends on the normalised input of
        that part.
        """
        if self.block.conv is None:
            return rows
        n_taps, group = self.block.conv
        projected = F.linear(normed, layer[f"{name}_projection"]).view(len(rows), 2, n_taps, -1)[:, side]
        kernel = layer[f"{name}_base"][side] + projected.repeat_interleave(group, dim=2)
        moved = [F.pad(rows.view(-1, size, rows.shape[1]), (0, 0, tap, 0))[:, :size] for tap in range(n_taps)]
        return (kernel * torch.stack(moved, dim=2).flatten(0, 1)).sum(1)

    def _attend(
        self, q: Tensor, own: tuple[Tensor, Tensor], seen: tuple[Tensor, Tensor], layout: Spans, size: int
    ) -> Tensor:
        """Computes attention, `[n_anchors * size, n_heads * head_dim]`: the rows of each block attend to the
        text of their sample up to their anchor, and to their own block. q, own: `[n_heads, n_anchors * size,
        head_dim]`; seen: keys and values of all rows of the text; layout: layout of the anchors.
        """
        n_heads, _, width = q.shape
        later = torch.ones(size, size, dtype=torch.bool, device=q.device).triu(1)
        outs = [q[:, :0]]
        for part in layout.parts():
            first, n_all = part.queries.start, part.queries.stop - part.queries.start
            at = torch.arange(n_all, device=q.device) if part.at is None else part.at
            # Scores are computed in parts. The scores of all rows of a long text would take gigabytes.
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
    """Returns the model class that trains a drafter with this spec."""
    return DraftModel if spec.block is None else BlockModel
