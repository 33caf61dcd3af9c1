# SPDX-License-Identifier: MIT
"""Trains drafters of SmolLM2 of several sizes on a GPU, from prepared answers, within a time limit.

    python benchmarks/gpu_train.py prepare answers.jsonl... --target T.gguf --out answers.npz
    python benchmarks/gpu_train.py train answers.npz --target T.gguf --draft D.gguf --layers 5 [--count]
           [--tokens 20000000] [--seconds 200] --out FOLDER

`prepare` tokenizes the answers of `eaglecpp train --generate` and holds 2 % of the answers out. `train`
computes the target's hidden states once in PyTorch in bf16 and keeps them on the device. Then it trains EAGLE
3.1 with `--layers` layers, starting from the drafter D. The head is not trained. The learning rate follows
the tokens or the clock, whichever is nearer to its end, so a run that is short of time still completes the
schedule. `--count` adds COUNT (arXiv 2610.20456): a mean of rows of the target's output matrix is added to
the input of each position. The rows belong to the tokens that followed the position's last 4, 3 or 2 tokens
elsewhere in the training answers. The weights without the head are written as bytes with a scale for each
row, in files of at most 15 MiB. `load` reads these files. `train` prints a row of a table: layers, COUNT,
million tokens, seconds, and the tokens per round of greedy chains of five on held-out answers, at the start,
at each quarter and at the end.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import signal
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import torch
from common import arguments, note
from torch import Tensor
from torch.nn import functional as F

from eaglecpp.convert import read_gguf, read_tensor
from eaglecpp.train.data import texts
from eaglecpp.train.data.chats import open_tokenizer
from eaglecpp.train.fit import model as fit_model
from eaglecpp.train.fit.attention import Spans
from eaglecpp.train.fit.batch import Batch
from eaglecpp.train.fit.evaluate import _walk
from eaglecpp.train.fit.loop import Optimizer, default_lr, lr_factor
from eaglecpp.train.fit.loss import counted_rows
from eaglecpp.train.fit.model import DraftModel, feed_forward, inv_freq, rotate
from eaglecpp.train.fit.process import choose_device
from eaglecpp.train.fit.weights import _block_of, target_embedding, target_head
from eaglecpp.train.options import TrainOptions
from eaglecpp.train.prepare import Corpus, TrainPlan, make_plan

N_CTX, N_TOP, N_STEPS, DEPTH = 320, 64, 4, 5
PIECE = 15 << 20
N_BEST = 4  # number of followers that COUNT keeps for each n-gram


def prepare(args: argparse.Namespace) -> None:
    with open_tokenizer(args.target) as engine:
        read = texts.load(args.answers, engine, N_CTX)
        train, held_out = texts.split(read.conversations, 0.02)
        np.savez_compressed(
            args.out,
            tokens=np.concatenate([one.tokens for one in (*train, *held_out)]).astype(np.uint16),
            turns=np.concatenate([one.turns for one in (*train, *held_out)]).astype(np.uint8),
            lengths=[len(one.tokens) for one in (*train, *held_out)],
            n_train=len(train), n_vocab=engine.n_vocab,
        )  # fmt: skip
    n_tokens = sum(len(one.tokens) for one in train)
    note(f"{n_tokens} tokens in {len(train)} conversations, {len(held_out)} held out")


class Answers:
    """Prepared answers and the target's hidden states, all on the device. A row is the index of a token among
    the tokens of all answers.
    """

    def __init__(self, found: Any, plan: TrainPlan, target: Path, device: torch.device) -> None:
        self.device, spec = device, plan.spec
        self.lengths = found["lengths"].tolist()
        self.starts = np.concatenate([[0], np.cumsum(self.lengths)])
        self.turns = found["turns"].astype(np.int16)
        self.turns[self.starts[:-1]] = 0
        self.tokens = torch.from_numpy(found["tokens"].astype(np.int64)).to(device)
        n = len(self.tokens)
        width = spec.n_aux * spec.target_hidden_size
        self.features = torch.empty(n, width, dtype=torch.bfloat16, device=device)
        self.ids = torch.empty(n, N_TOP, dtype=torch.int32, device=device)
        self.p = torch.empty(n, N_TOP, dtype=torch.bfloat16, device=device)
        run, draft_ids = TorchTarget(target, plan, device), torch.from_numpy(plan.vocab.draft_ids).to(device)
        order = np.argsort(self.lengths, kind="stable").tolist()
        for part in (order[i : i + 64] for i in range(0, len(order), 64)):
            rows, place, length = self.padded(part)
            padded = torch.zeros(len(part) * length, dtype=torch.int64, device=device)
            padded[place] = self.tokens[rows]
            features, logits = run(padded.view(len(part), length), place)
            logp, best = torch.log_softmax(logits.float(), -1).topk(N_TOP)
            self.features[rows], self.p[rows] = features.bfloat16(), logp.exp().bfloat16()
            self.ids[rows] = draft_ids[best].int()

    def padded(self, samples: Sequence[int]) -> tuple[Tensor, Tensor, int]:
        """Returns the rows of the given conversations, their positions padded to the length of the longest
        conversation, and this length.
        """
        rows = np.concatenate([np.arange(self.starts[i], self.starts[i + 1]) for i in samples])
        place, longest = places([self.lengths[i] for i in samples])
        return torch.from_numpy(rows).to(self.device), place.to(self.device), longest

    def batch(self, samples: Sequence[int], n_steps: int) -> Batch:
        rows, _, _ = self.padded(samples)
        turns = self.turns[rows.cpu().numpy()]
        counted = tuple(torch.from_numpy(r).to(self.device) for r in counted_rows(turns, n_steps))
        ids, p = self.ids[rows], self.p[rows].float()
        known = ids >= 0
        lengths = tuple(self.lengths[i] for i in samples)
        return Batch(
            self.tokens[rows], self.features[rows].float(), ids.clamp(min=0), p * known,
            (p * ~known).sum(1), ids[:, 0].long(), Spans(lengths, lengths, None), None, counted, counted,
            (1.0,) * n_steps,
        )  # fmt: skip


def places(lengths: Sequence[int]) -> tuple[Tensor, int]:
    longest = max(lengths)
    rows = np.concatenate([i * longest + np.arange(n) for i, n in enumerate(lengths)])
    return torch.from_numpy(rows), longest


class TorchTarget:
    """The target in PyTorch in bf16. It returns the hidden states at the drafter's layers, and logits."""

    def __init__(self, path: Path, plan: TrainPlan, device: torch.device) -> None:
        file = read_gguf(path)
        self.spec = spec = plan.spec
        blocks = (_block_of(file, spec, i) for i in range(spec.target_block_count))
        self.blocks = [{n: w.to(device, torch.bfloat16) for n, w in (b or {}).items()} for b in blocks]
        self.embedding, self.head = (
            table(file).to(device, torch.bfloat16) for table in (target_embedding, target_head)
        )
        self.norm = torch.from_numpy(read_tensor(file, "output_norm.weight")).to(device, torch.bfloat16)
        self.inv_freq = inv_freq(spec)

    @torch.no_grad()
    def __call__(self, tokens: Tensor, place: Tensor) -> tuple[Tensor, Tensor]:
        spec, (n, length) = self.spec, tokens.shape
        angle = torch.arange(length)[:, None] * self.inv_freq
        cos, sin = (f(angle).float().to(tokens.device).repeat(n, 1) for f in (torch.cos, torch.sin))
        x = self.embedding[tokens.flatten()]
        taken: dict[int, Tensor] = {}
        n_q, n_kv = spec.n_heads, spec.n_kv_heads
        for i, block in enumerate(self.blocks):
            taken[i] = x[place] if i in spec.aux_layers else x[:0]
            normed = F.rms_norm(x, x.shape[-1:], block["attn_norm"], spec.rms_norm_eps)
            qkv = F.linear(normed, block["qkv"]).view(n * length, n_q + 2 * n_kv, spec.head_dim)
            qk = rotate(qkv[:, : n_q + n_kv], cos, sin)
            q, k, v = (
                part.view(n, length, -1, spec.head_dim).transpose(1, 2)
                for part in (qk[:, :n_q], qk[:, n_q:], qkv[:, n_q + n_kv :])
            )
            k, v = (part.repeat_interleave(n_q // n_kv, 1) for part in (k, v))
            seen = F.scaled_dot_product_attention(q, k, v, is_causal=True)
            x = x + F.linear(seen.transpose(1, 2).reshape(n * length, -1), block["o"])
            x = x + feed_forward(F.rms_norm(x, x.shape[-1:], block["mlp_norm"], spec.rms_norm_eps), block)
        taken[len(self.blocks)] = x[place]
        out = F.rms_norm(x[place], x.shape[-1:], self.norm, spec.rms_norm_eps)
        return torch.cat([taken[i] for i in spec.aux_layers], 1), F.linear(out, self.head)


class Counts:
    """Table of COUNT: the tokens that follow each n-gram in the training answers ("followers")."""

    def __init__(self, tokens: Tensor, head: Tensor, *, is_used: bool) -> None:
        self.head, self.tables = head, []
        for n in (4, 3, 2) if is_used else ():
            pairs = torch.stack([grams(tokens, n)[n - 1 : -1], tokens[n:]], 1)
            pairs, counts = torch.unique(pairs, dim=0, return_counts=True)
            order = torch.argsort(counts, descending=True, stable=True)
            order = order[torch.argsort(pairs[order, 0], stable=True)]
            keys, of_key, n_of_key = torch.unique_consecutive(
                pairs[order, 0], return_inverse=True, return_counts=True
            )
            rank = torch.arange(len(order), device=tokens.device) - (n_of_key.cumsum(0) - n_of_key)[of_key]
            ids = torch.zeros(len(keys), N_BEST, dtype=torch.int64, device=tokens.device)
            times = torch.zeros_like(ids)
            kept = rank < N_BEST
            ids[of_key[kept], rank[kept]] = pairs[order[kept], 1]
            times[of_key[kept], rank[kept]] = counts[order[kept]]
            often = times.sum(1) > 1
            self.tables.append((n, keys[often], ids[often], times[often]))

    def __call__(self, tokens: Tensor) -> Tensor:
        """Returns the mean of the followers' rows in the target's output matrix, [N, n_embd]; zeros for
        unknown n-grams.
        """
        ids = torch.zeros(len(tokens), N_BEST, dtype=torch.int64, device=tokens.device)
        times = torch.zeros(ids.shape, device=tokens.device)
        following = F.pad(tokens[1:], (0, 1), value=-1)[:, None]
        for n, keys, its_ids, its_times in self.tables:
            wanted = grams(tokens, n)
            at = torch.searchsorted(keys, wanted).clamp(max=len(keys) - 1)
            found = its_times[at] * (keys[at] == wanted)[:, None]
            # During training, the counts contain the row's own occurrence, which is subtracted here.
            if torch.is_grad_enabled():
                found = (found - (its_ids[at] == following).long()).clamp(min=0)
            is_new = (times.sum(1) == 0)[:, None] & (found.sum(1) > 0)[:, None]
            ids, times = torch.where(is_new, its_ids[at], ids), torch.where(is_new, found.float(), times)
        share = (times / times.sum(1, keepdim=True).clamp(min=1)).to(self.head.dtype)
        return (share[:, :, None] * self.head[ids]).sum(1)


def grams(tokens: Tensor, n: int) -> Tensor:
    """Returns for each row a number that identifies the n tokens up to and including this row. The first n -
    1 rows wrap around to the end.
    """
    key = torch.zeros_like(tokens)
    for back in reversed(range(n)):
        key = key * 1000003 + tokens.roll(back)
    return key


class CountingModel(DraftModel):
    """EAGLE 3.1 drafter that adds COUNT's mean to its embeddings. The head is not trained."""

    counts: Counts

    def _from_tokens(self, tokens: Tensor, w: dict[str, Tensor]) -> Tensor:
        embedded = self.embedding[tokens] + self.counts(tokens)
        embedded = F.rms_norm(embedded, (self.spec.hidden_size,), None, self.spec.rms_norm_eps)
        return F.linear(embedded, w["from_token"])


def padded_attention(
    q: Tensor, k0: Tensor, v0: Tensor, later_k: Sequence[Tensor], later_v: Sequence[Tensor], layout: Spans
) -> Tensor:
    """Computes attention like `eaglecpp.train.fit.attention.dense`, but with one product for all samples,
    which is faster for many short samples.
    """
    n_heads, _, dim = q.shape
    place, longest = places(layout.n_keys)
    place, n = place.to(q.device), len(layout.n_keys)

    def padded(x: Tensor) -> Tensor:
        out = x.new_zeros(n_heads, n * longest, x.shape[-1]).index_copy(1, place, x)
        return out.view(n_heads, n, longest, -1)

    future = torch.ones(longest, longest, dtype=torch.bool, device=q.device).triu(1)
    scores = [(padded(q) @ padded(k0).transpose(-1, -2)).masked_fill(future, -torch.inf)]
    scores += [padded((q * k).sum(-1, keepdim=True)) for k in later_k]
    share = (torch.cat(scores, -1).float() * dim**-0.5).softmax(-1).to(q.dtype)
    seen = share[..., :longest] @ padded(v0)
    for i, v in enumerate(later_v):
        seen = seen + share[..., longest + i, None] * padded(v)
    return seen.view(n_heads, n * longest, dim).index_select(1, place)


def train(args: argparse.Namespace) -> None:
    began, device = psutil.Process().create_time(), choose_device(args.device)
    (file,) = args.answers
    with np.load(file) as archive:
        found = {name: archive[name] for name in archive.files}
    options = TrainOptions(args.target, args.out, finetune=str(args.draft), draft_layers=args.layers)
    corpus = Corpus([], 0, np.zeros(int(found["n_vocab"]), np.int64), [], 0)
    plan = make_plan(options, read_gguf(args.target), corpus, note)
    answers = Answers(found, plan, args.target, device)
    n_train = int(found["n_train"])
    name = f"eagle31-{args.layers}{'-count' if args.count else ''}"
    note(f"{name}: states of {answers.starts[-1]} tokens after {time.time() - began:.0f} s")
    torch.manual_seed(1)
    fit_model.attention_for = lambda *_: padded_attention  # type: ignore[assignment]
    model = CountingModel(plan.spec, plan.embedding, share_head=False, dtype=torch.bfloat16)
    model.load_state_dict(plan.start.state)
    model.head.requires_grad_(False)
    model = model.to(device)
    head = target_head(read_gguf(args.target)).to(device, torch.bfloat16)
    model.counts = Counts(answers.tokens[: answers.starts[n_train]], head, is_used=args.count)
    optimizer, lr = Optimizer(model.parameters()), 0.25 * default_lr(plan.spec.hidden_size)
    held_out = range(n_train, len(answers.lengths))
    n_tokens = n_steps = 0
    lengths = [length(model, answers, held_out)]
    stages = iter((0.25, 0.5, 0.75))
    next_stage = next(stages)
    with contextlib.suppress(SystemExit):  # an interrupted run writes its results too
        signal.signal(signal.SIGTERM, lambda *_: sys.exit())
        while (done := max(n_tokens / args.tokens, (time.time() - began) / args.seconds)) < 1:
            samples = next_step(answers, n_train, args.batch_tokens, n_steps)
            sums = model(answers.batch(samples, N_STEPS))
            sums.loss.backward()
            optimizer.step(1 / sums.weight.cpu().clamp(min=1e-9), lr * lr_factor(done, 0.03))
            n_tokens, n_steps = n_tokens + sum(answers.lengths[i] for i in samples), n_steps + 1
            if done > next_stage:
                lengths.append(length(model, answers, held_out))
                next_stage = next(stages, 2.0)
    write(model, args.out, name)
    lengths.append(length(model, answers, held_out))
    took = time.time() - began
    at = ", ".join(f"{n:.3f}" for n in lengths)
    row = [args.layers, "yes" if args.count else "no", f"{n_tokens / 1e6:.2f}", f"{took:.0f}", at]
    print(f"| {' | '.join(map(str, row))} |", flush=True)


def next_step(answers: Answers, n_train: int, n_tokens: int, step: int) -> list[int]:
    """Returns random conversations for a training step. Every run gets the same conversations at the same
    step.
    """
    chosen: list[int] = []
    for i in np.random.default_rng([1, step]).permutation(n_train).tolist():
        if sum(answers.lengths[j] for j in chosen) >= n_tokens:
            break
        chosen.append(i)
    return chosen


@torch.no_grad()
def length(model: DraftModel, answers: Answers, samples: Sequence[int]) -> float:
    """Returns the tokens per round of greedy chains of five tokens on held-out answers."""
    sums = np.zeros((2, DEPTH), np.float32)
    for part in (samples[i : i + 32] for i in range(0, len(samples), 32)):
        batch = answers.batch(part, DEPTH)
        sums += _walk(batch, model.drafts(batch))
    return 1.0 + float(sums[0].sum()) / max(float(sums[1][0]), 1.0)


def write(model: DraftModel, out: Path, name: str) -> None:
    stored = {}
    for key, weight in model.named_parameters():
        if weight.requires_grad:
            w = weight.detach().float().cpu()
            scale = w.abs().amax(-1, keepdim=True).clamp(min=1e-12) / 127 if w.ndim > 1 else None
            stored[key] = w if scale is None else ((w / scale).round().to(torch.int8), scale)
    file = io.BytesIO()
    torch.save(stored, file)
    data = file.getvalue()
    for i, start in enumerate(range(0, len(data), PIECE)):
        (out / f"{name}.{i:02}").write_bytes(data[start : start + PIECE])


def load(pieces: Sequence[Path]) -> Iterator[tuple[str, Tensor]]:
    """Yields the weights that `write` wrote, by the names of `DraftModel`'s parameters."""
    stored = torch.load(io.BytesIO(b"".join(piece.read_bytes() for piece in sorted(pieces))))
    for key, w in stored.items():
        yield key, w if isinstance(w, Tensor) else w[0].float() * w[1]


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("what", choices=("prepare", "train"))
    parser.add_argument("answers", nargs="+", type=Path)
    parser.add_argument("--target", type=Path, required=True)
    parser.add_argument("--draft", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--layers", type=int, default=3)
    parser.add_argument("--count", action="store_true")
    parser.add_argument("--tokens", type=float, default=20e6)
    parser.add_argument("--seconds", type=float, default=200)
    parser.add_argument("--batch-tokens", type=int, default=8192)
    parser.add_argument("--device", default="auto")
    args = parser.parse_args()
    (prepare if args.what == "prepare" else train)(args)


if __name__ == "__main__":
    main()
