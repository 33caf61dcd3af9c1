# SPDX-License-Identifier: MIT
"""The drafter in training, EAGLE-1, EAGLE-3 or EAGLE 3.1: one `forward` runs all steps of training-time test.

`forward` takes a batch of samples, and returns the weighted sum of the losses and the hits of each step. Row
p at step k reads the target's feature at p (k = 0) or its own state of step k-1, and the embedding of token
p+1+k. The row is at RoPE position p + k and predicts token p+2+k. EAGLE-3 feeds back the state before the
final norm, and EAGLE 3.1 (`norm_output`) the state after the final norm. EAGLE-1 reads the target's last
state or its own output, which fc fuses with the embedding, and has no norms around its layer. Layers after
the first one are like the target's: norm, attention with their own keys, norm, feed-forward part. The whole
loop is one forward because DistributedDataParallel reduces gradients per forward.

Weights are fp32. A forward pass copies them to the compute type once, and gradients come back in fp32. q, k
and v are one matrix, and gate and up are another matrix. `eaglecpp.train.fit.weights` maps these matrices to
the names in files. Source of the method: EAGLE-3 (arXiv 2503.01840), SafeAILab/EAGLE:
eagle/traineagle3/cnets.py.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional as F

from eaglecpp.convert import DraftSpec, rope_divisors
from eaglecpp.train.fit.attention import attention_for
from eaglecpp.train.fit.batch import Batch
from eaglecpp.train.fit.loss import Labels, Loss, head_loss, step_weights


def inv_freq(spec: DraftSpec) -> Tensor:
    """Returns RoPE's angles per position, f64 [rope_dim / 2]. They are computed on the CPU, because not every
    device has f64.
    """
    rope = spec.rope
    freq = rope.theta ** -(np.arange(0, spec.rope_dim, 2) / spec.rope_dim)
    if rope.scaling == "linear":
        freq = freq / rope.factor
    elif rope.scaling == "llama3":
        freq = freq / rope_divisors(rope, spec.rope_dim)
    return torch.from_numpy(freq)


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotates heads [n_rows, n_heads, rope_dim] by angles given as fp32 [n_rows, rope_dim / 2]."""
    cos, sin = cos.unsqueeze(-2), sin.unsqueeze(-2)
    a, b = x.chunk(2, dim=-1)
    return torch.cat([a * cos - b * sin, b * cos + a * sin], dim=-1).to(x.dtype)


CONVOLUTIONS = ("attention_conv", "mlp_conv")
"""Names of DFlash2's convolutions in a layer."""


class Sums(NamedTuple):
    """Sums of loss and hits over rows. The sums of micro-batches are added up.

    loss: sum of losses, weighted by step; weight: divisor of the loss; hits, counts: i64 [n_steps], number of
    rows whose best token is the target's, and number of counted rows.
    """

    loss: Tensor
    weight: Tensor
    hits: Tensor
    counts: Tensor


class DraftLayer(nn.Module):
    """Weights of one layer of a `DraftModel`. The first layer of EAGLE-3 reads the embedding (normalised by
    `attn_norm`) next to the state (normalised by `hidden_norm`). EAGLE-1's layer has no norms before
    attention.
    """

    def __init__(self, spec: DraftSpec, index: int) -> None:
        super().__init__()
        n_embd, n_q = spec.hidden_size, spec.n_heads * spec.head_dim
        taps, group = (spec.block and spec.block.conv) or (0, 1)
        is_wide = index == 0 and not spec.fuses_embedding and spec.block is None
        self.attn_norm = ones(n_embd) if index or not spec.fuses_embedding else None
        self.hidden_norm = ones(n_embd) if is_wide else None
        self.qkv = matrix(n_q + 2 * spec.n_kv_heads * spec.head_dim, n_embd * (2 if is_wide else 1))
        self.q_norm = ones(spec.head_dim) if spec.qk_norm else None
        self.k_norm = ones(spec.head_dim) if spec.qk_norm else None
        self.o = matrix(n_embd, n_q)
        self.mlp_norm = ones(n_embd)
        self.gate_up = matrix(2 * spec.intermediate_size, n_embd)
        self.down = matrix(n_embd, spec.intermediate_size)
        for name in CONVOLUTIONS if spec.block and spec.block.conv else ():
            self.register_parameter(f"{name}_base", _no_mixing(taps, n_embd))
            self.register_parameter(
                f"{name}_projection", nn.Parameter(torch.zeros(2 * taps * (n_embd // group), n_embd))
            )


class DraftModel(nn.Module):
    """A drafter with its frozen embedding. If `head` is the target's, it is frozen as well."""

    def __init__(
        self,
        spec: DraftSpec,
        embedding: Tensor,
        *,
        share_head: bool,
        dtype: torch.dtype,
        loss_vocab: int = 0,
        loss: Loss = "cross-entropy",
    ) -> None:
        """Creates a drafter. Matrices start with random values, and norms with ones. embedding: f32 [n_vocab,
        n_embd]; dtype: type of the computation; loss_vocab, loss: number of tokens and kind of the loss, see
        `head_loss`.
        """
        super().__init__()
        self.spec, self.dtype, self.share_head = spec, dtype, share_head
        self.loss_vocab, self.loss = loss_vocab, loss
        n_embd, n_feature = spec.hidden_size, spec.n_aux * spec.target_hidden_size
        is_first = spec.fuses_embedding  # true for EAGLE-1
        self.fc = matrix(n_embd, 2 * n_embd if is_first else n_feature)
        self.fc_norm = ones(n_feature) if spec.fc_norm else None
        self.input_norm = ones(n_feature) if spec.norm_before_fc else None
        self.layers = nn.ModuleList(DraftLayer(spec, index) for index in range(spec.n_layers))
        self.norm = None if is_first else ones(n_embd)
        self.head = matrix(spec.draft_vocab_size, n_embd)
        self.head.requires_grad_(not share_head)
        self.embedding: Tensor
        self.register_buffer("embedding", embedding.to(dtype), persistent=False)
        self.inv_freq = inv_freq(spec)

    @torch.no_grad()
    def read_unnormed(self, features: NDArray[np.float32]) -> None:
        """Adapts an fc that was trained on normalised features to features without normalisation. Divides the
        weights of each feature by the feature's typical size in a text, `[n_aux, N, n_embd_target]`, so that
        each feature keeps its share of the sum.
        """
        size = torch.from_numpy(features).square().mean(-1).sqrt().median(-1).values
        self.fc.div_(size.repeat_interleave(self.spec.target_hidden_size))

    def forward(self, batch: Batch) -> Sums:
        """Returns the loss and the hits of all counted rows of a batch."""
        weights = step_weights(batch.n_steps)
        states, at, weight = [], [], []
        for k, normed in enumerate(self.steps(batch)):
            states.append(normed.index_select(0, batch.places[k]))
            at.append(batch.counted[k] + 1 + k)
            weight.append(torch.full((len(at[-1]),), batch.weights[k], device=at[-1].device) * weights[k])
        counts = torch.tensor([len(rows) for rows in batch.counted], device=batch.tokens.device)
        if not counts.any():
            nothing = sum((p.sum() * 0.0 for p in self.parameters()), torch.zeros((), device=counts.device))
            return Sums(nothing, nothing.detach(), torch.zeros_like(counts), counts)
        label, row_weight = torch.cat(at), torch.cat(weight)
        head_input = torch.cat(states)
        labels = Labels(
            batch.label_ids[label].long(),
            batch.label_p[label],
            batch.best[label],
            row_weight,
            self.loss_vocab,
            self.loss,
            batch.outside[label],
        )
        loss, hit, accepted = head_loss(head_input, self.heads(), labels)
        loss = loss + self.further_loss(head_input, accepted, labels)
        hits = torch.stack([part.sum() for part in torch.split(hit, counts.tolist())])
        return Sums(loss, row_weight.sum(), hits, counts)

    def heads(self) -> Sequence[Tensor]:
        """Returns the matrices of the draft head. Concatenated, they have the shape [n_draft_vocab, width of
        a state].
        """
        return [self.head]

    def _whole_head(self) -> Tensor:
        return torch.cat([head.to(self.dtype) for head in self.heads()], dim=1)

    def further_loss(self, states: Tensor, accepted: Tensor, labels: Labels) -> Tensor | float:
        """Returns the weighted sum of additional losses over rows.

        states: the head's input; accepted: f32 [n_rows], chance of acceptance; labels: see `head_loss`.
        """
        return 0.0

    @torch.no_grad()
    def drafts(self, batch: Batch) -> list[Tensor]:
        """Returns for each step whether the drafter's best token at each counted row is the target's, bool
        [n_counted_rows].
        """
        head = self._whole_head()
        hits = []
        for k, normed in enumerate(self.steps(batch)):
            states = normed.index_select(0, batch.places[k])
            best = torch.cat([(part @ head.T).argmax(-1) for part in torch.split(states, 1024)])
            hits.append(best == batch.best[batch.counted[k] + 1 + k])
        return hits

    def logits(self, batch: Batch) -> list[Tensor]:
        """Returns the draft logits of each step's rows, [n_rows, n_draft_vocab]."""
        return [F.linear(normed, self._whole_head()) for normed in self.steps(batch)]

    def steps(self, batch: Batch) -> Iterator[Tensor]:
        """Yields the head's input at each step, [n_rows, n_embd], for the rows of `batch.run`. Without
        `batch.run`, the last 2 + k rows of each sample at step k have invalid values and no label. No other
        row reads these values, because attention is causal. (Rows are selected by `index_select`: in bf16 the
        gradient of an index takes ten times as long.)
        """
        spec, w, run = self.spec, self._copies(), batch.run
        n_embd, n_tokens, n_steps = spec.hidden_size, len(batch.features), batch.n_steps
        attention = attention_for(batch.tokens.device, self.dtype)
        # The last rows of a sample get tokens of the next sample, so the values of these rows are invalid
        # (see the docstring).
        from_tokens = self._from_tokens(F.pad(batch.tokens, (0, n_steps)), w)
        state = self._fuse(batch.features, w)
        # RoPE positions are counted in the batch, not in the sample, because only differences matter.
        cos, sin = self._rotation(n_tokens + n_steps)
        caches: list[list[tuple[Tensor, Tensor]]] = [[] for _ in range(spec.n_layers)]
        layers = [of_layer(w, i) for i in range(spec.n_layers)]
        for k in range(n_steps):
            layout = batch.layout
            if k and run is not None:
                layout, rows = run.layout, run.later + k
                from_token = from_tokens.index_select(0, rows + 1)
                angles = cos[rows], sin[rows]
                if k == 1:
                    state = state.index_select(0, run.places)
            else:
                at = slice(k, k + n_tokens)
                from_token, angles = from_tokens[1 + k : 1 + k + n_tokens], (cos[at], sin[at])
            qkv, hidden = self._layer_input(from_token, state, w, layers[0])
            for i, (cache, layer) in enumerate(zip(caches, layers, strict=True)):
                if i:
                    normed = F.rms_norm(hidden, (n_embd,), layer["attn_norm"], spec.rms_norm_eps)
                    qkv = F.linear(normed, layer["qkv"])
                q, key, value = self._heads(qkv, *angles, layer)
                cache.append((key, value))
                first, *later = cache
                seen = attention(q, *first, [a for a, _ in later], [b for _, b in later], layout)
                seen = seen.transpose(0, 1).flatten(1)
                # Only the last layer can select rows. Earlier layers need the keys of all rows.
                if k == 0 and run is not None and layer is layers[-1]:
                    seen, hidden = (x.index_select(0, run.first) for x in (seen, hidden))
                hidden = hidden + F.linear(seen, layer["o"])
                hidden = hidden + self._mlp(hidden, layer)
            out = hidden
            if self.norm is not None:
                out = F.rms_norm(hidden, (n_embd,), w["norm"], spec.rms_norm_eps)
            yield out
            state = out if spec.norm_output else hidden

    def _copies(self) -> dict[str, Tensor]:
        """Returns the weights in the compute type. The autograd graph leads back to the fp32 weights. The
        part of the matrix that reads the embedding is separate from the part that reads the state
        (`from_state`), and the norms of frozen inputs are multiplied into the matrix that follows. This
        avoids products for gradients of inputs that are not trained.
        """
        n_embd = self.spec.hidden_size
        w: dict[str, Tensor] = dict(self.named_parameters())
        del w["head"]
        whole = w.pop("fc" if self.spec.fuses_embedding else "layers.0.qkv")
        w["from_token"], w["from_state"] = torch.split(whole, n_embd, dim=1)
        if not self.spec.fuses_embedding:
            w["from_token"] = w["from_token"] * w.pop("layers.0.attn_norm")
            norm = w.pop("input_norm", None) if self.fc_norm is None else w.pop("fc_norm")
            w["fc"] = w["fc"] if norm is None else w["fc"] * norm
        return {name: p.to(self.dtype) for name, p in w.items()}

    def _from_tokens(self, tokens: Tensor, w: dict[str, Tensor]) -> Tensor:
        """Returns the product of the tokens' embeddings with the part of the qkv weights that reads
        embeddings (in EAGLE-1, with this part of fc).
        """
        embedded = self.embedding[tokens]
        if not self.spec.fuses_embedding:
            embedded = F.rms_norm(embedded, (self.spec.hidden_size,), None, self.spec.rms_norm_eps)
        return F.linear(embedded, w["from_token"])

    def _layer_input(
        self, from_token: Tensor, state: Tensor, w: dict[str, Tensor], layer: dict[str, Tensor]
    ) -> tuple[Tensor, Tensor]:
        """Returns the concatenated q, k and v of a layer, and the residual."""
        spec = self.spec
        if spec.fuses_embedding:
            fused = from_token + F.linear(state, w["from_state"])
            return F.linear(fused, layer["qkv"]), fused
        normed = F.rms_norm(state, (spec.hidden_size,), layer["hidden_norm"], spec.rms_norm_eps)
        residual = normed if spec.norm_before_residual else state
        return from_token + F.linear(normed, w["from_state"]), residual

    def _fuse(self, features: Tensor, w: dict[str, Tensor]) -> Tensor:
        """Maps features, fp32 `[N, n_aux * n_embd_target]`, to the state that the first step reads."""
        spec, x, eps = self.spec, features, self.spec.rms_norm_eps
        if spec.fuses_embedding:
            return x.to(self.dtype)
        if self.input_norm is not None:
            x = F.rms_norm(x, (x.shape[-1],), None if self.fc_norm is None else self.input_norm, eps)
        if self.fc_norm is not None:
            parts = x.view(-1, spec.n_aux, spec.target_hidden_size)
            x = F.rms_norm(parts, (spec.target_hidden_size,), None, eps).flatten(1)
        return F.linear(x.to(self.dtype), w["fc"])

    def _heads(
        self, qkv: Tensor, cos: Tensor, sin: Tensor, w: dict[str, Tensor]
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Returns queries, keys and values with the full number of heads, `[n_heads, n_rows, head_dim]`. If
        qkv contains no queries, the returned queries are empty.
        """
        spec = self.spec
        n_heads = qkv.shape[1] // spec.head_dim - 2 * spec.n_kv_heads
        heads = qkv.view(len(qkv), n_heads + 2 * spec.n_kv_heads, spec.head_dim)
        qk, v = heads[:, : n_heads + spec.n_kv_heads], heads[:, n_heads + spec.n_kv_heads :]
        if spec.qk_norm:
            q = F.rms_norm(qk[:, :n_heads], (spec.head_dim,), w["q_norm"], spec.rms_norm_eps)
            k = F.rms_norm(qk[:, n_heads:], (spec.head_dim,), w["k_norm"], spec.rms_norm_eps)
            qk = torch.cat([q, k], dim=1)
        qk = rotate(qk, cos, sin).transpose(0, 1)
        groups = spec.n_heads // spec.n_kv_heads
        keys = qk[n_heads:].repeat_interleave(groups, dim=0)
        return qk[:n_heads], keys, v.transpose(0, 1).repeat_interleave(groups, dim=0)

    def _rotation(self, n_positions: int) -> tuple[Tensor, Tensor]:
        """Returns RoPE's cos and sin for all positions, fp32 [n_positions, rope_dim / 2]."""
        angle = torch.arange(n_positions)[:, None] * self.inv_freq
        cos, sin = angle.cos(), angle.sin()
        return cos.float().to(self.fc.device), sin.float().to(self.fc.device)

    def _mlp(self, hidden: Tensor, w: dict[str, Tensor]) -> Tensor:
        x = F.rms_norm(hidden, (self.spec.hidden_size,), w["mlp_norm"], self.spec.rms_norm_eps)
        return feed_forward(x, w)


def of_layer(w: dict[str, Tensor], index: int) -> dict[str, Tensor]:
    """Returns the weights of `layers[index]` by the names of the fields of `DraftLayer`."""
    prefix = f"layers.{index}."
    return {name.removeprefix(prefix): p for name, p in w.items() if name.startswith(prefix)}


def feed_forward(x: Tensor, w: dict[str, Tensor]) -> Tensor:
    gate, up = F.linear(x, w["gate_up"]).chunk(2, dim=-1)
    return F.linear(F.silu(gate) * up, w["down"])


def _no_mixing(taps: int, n_embd: int) -> nn.Parameter:
    """Returns the kernels of two convolutions that do not change their input, [2, taps, n_embd]. The first
    comes before a part of a layer, and the second after this part.
    """
    base = torch.zeros(2, taps, n_embd)
    base[:, 0] = 1.0
    return nn.Parameter(base)


def matrix(n_out: int, n_in: int) -> nn.Parameter:
    return nn.Parameter(torch.randn(n_out, n_in) * 0.02)


def ones(n: int) -> nn.Parameter:
    return nn.Parameter(torch.ones(n))
