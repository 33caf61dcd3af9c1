# SPDX-License-Identifier: MIT
"""Trains the demo target. `make.py` starts it under torchrun, with one process and thread per core.

The data comes from the running Python. Writes `tokenizer.json` and `target.pt`; a checkpoint every four
minutes lets the same command resume. Computes in bf16 with fp32 master weights.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import random
import shutil
import time
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

import torch
import torch.distributed as dist
from dialogues import Dialogues
from facts import collect
from network import Network, Shape
from tokenizer import END, START, train_tokenizer
from tokenizers import Tokenizer
from torch import Tensor

_QUESTION_WEIGHT = 0.1


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("-o", "--out", type=Path, default=Path("build"))
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--batch-tokens", type=int, default=8192, help="tokens per step, in all processes")
    parser.add_argument("--lr", type=float, default=2e-3)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument(
        "--compile", action=argparse.BooleanOptionalAction, default=shutil.which("gcc") is not None
    )
    options = parser.parse_args()
    rank, n_ranks = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
    if n_ranks > 1:
        dist.init_process_group("gloo")
    torch.set_flush_denormal(True)
    torch.manual_seed(options.seed)
    options.out.mkdir(parents=True, exist_ok=True)
    dialogues = Dialogues(collect())
    tokenizer = _tokenizer(options.out / "tokenizer.json", dialogues, rank)
    training = _Training(Shape(), options, rank, n_ranks)
    seed = f"{options.seed}/{rank}/{training.step}"  # with another seed, a resumed run draws new dialogues
    training.run(_batches(dialogues, tokenizer, options.batch_tokens // n_ranks, seed))


def _tokenizer(path: Path, dialogues: Dialogues, rank: int) -> Tokenizer:
    if rank == 0 and not path.exists():
        rng = random.Random(0)
        questions = [dialogues.about(fact, rng) for fact in dialogues.known]
        questions += [dialogues.draw(rng) for _ in range(20000)]
        trained = train_tokenizer((f"{q.text}\n{q.answer}\n" for q in questions), Shape().n_vocab)
        trained.save(str(path))
    if dist.is_initialized():
        dist.barrier()
    return Tokenizer.from_file(str(path))


def _batches(
    dialogues: Dialogues, tokenizer: Tokenizer, n_tokens: int, seed: str
) -> Iterator[tuple[Tensor, Tensor]]:
    """Yields tokens i64 [B, S] and loss weights f32 [B, S] without end; S is 128 or 1024."""
    rng = random.Random(seed)
    start, end = tokenizer.token_to_id(START), tokenizer.token_to_id(END)
    words = {text: tokenizer.encode(text).ids for text in ("user\n", "assistant\n", "\n")}
    while True:
        length = 128 if rng.random() < 0.8 else 1024
        rows = [_row(dialogues, tokenizer, rng, length, start, end, words) for _ in range(n_tokens // length)]
        yield torch.tensor([row[0] for row in rows]), torch.tensor([row[1] for row in rows])


def _row(
    dialogues: Dialogues,
    tokenizer: Tokenizer,
    rng: random.Random,
    length: int,
    start: int,
    end: int,
    words: dict[str, list[int]],
) -> tuple[list[int], list[float]]:
    tokens: list[int] = []
    weights: list[float] = []
    while len(tokens) < length:
        question = dialogues.draw(rng)
        text = tokenizer.encode(question.text).ids
        prompt = [start, *words["user\n"], *text, end, *words["\n"], start, *words["assistant\n"]]
        answer = [*tokenizer.encode(question.answer).ids, end]
        tokens += [*prompt, *answer, *words["\n"]]
        weights += [_QUESTION_WEIGHT] * len(prompt) + [1.0] * len(answer) + [0.0] * len(words["\n"])
    return tokens[:length], weights[:length]


class _Training:
    """The training state: bf16 weights to compute with, fp32 masters for the optimiser, a checkpoint."""

    def __init__(self, shape: Shape, options: argparse.Namespace, rank: int, n_ranks: int) -> None:
        self.options, self.rank, self.n_ranks = options, rank, n_ranks
        master = Network(shape)
        self.network = Network(shape).to(torch.bfloat16)
        self.forward = torch.compile(self.network, dynamic=False) if options.compile else self.network
        self.names = [name for name, _ in master.named_parameters()]
        self.weights = list(self.network.parameters())
        self.masters = [parameter.detach().clone() for parameter in master.parameters()]
        matrices = [m for m in self.masters if m.ndim == 2]
        vectors = [m for m in self.masters if m.ndim == 1]
        groups = [{"params": matrices, "weight_decay": 0.05}, {"params": vectors, "weight_decay": 0.0}]
        self.optimizer = torch.optim.AdamW(groups, lr=options.lr, betas=(0.9, 0.95), fused=True)
        self.path = options.out / "target.pt"
        self.step, self.seconds, self.n_tokens, self.mean_loss = 0, 0.0, 0, 0.0
        if self.path.exists():
            self._load()

    def run(self, batches: Iterator[tuple[Tensor, Tensor]]) -> None:
        saved = self.seconds
        while self.seconds < 60 * self.options.minutes:
            began = time.perf_counter()
            loss = self._step(*next(batches))
            self.mean_loss = loss if self.step == 0 else 0.98 * self.mean_loss + 0.02 * loss
            self.step += 1
            self.n_tokens += self.options.batch_tokens
            self.seconds = self._agreed(self.seconds + time.perf_counter() - began)
            if self.rank == 0 and self.step % 10 == 0:
                rate = self.n_tokens / self.seconds
                line = f"{self.seconds / 60:6.1f} min  step {self.step}  loss {self.mean_loss:.4f}"
                print(f"{line}  {self.n_tokens / 1e6:.1f} M tokens  {rate:.0f} tokens/s", flush=True)
            if self.seconds - saved > 240:
                saved = self.seconds
                self._save()
        self._save()

    def _step(self, tokens: Tensor, weights: Tensor) -> float:
        with torch.no_grad():
            for weight, master in zip(self.weights, self.masters, strict=True):
                weight.copy_(master)
                weight.grad = None
        loss = self.forward(tokens, weights[:, 1:])
        loss.backward()
        self._update()
        return float(loss.detach())

    def _update(self) -> None:
        flat = torch.cat([weight.grad.float().flatten() for weight in self.weights])
        if self.n_ranks > 1:
            dist.all_reduce(flat)
            flat /= self.n_ranks
        norm = float(flat.norm())
        if not math.isfinite(norm):
            return
        flat *= min(1.0, 1.0 / (norm + 1e-6))
        for master, grad in zip(self.masters, flat.split([m.numel() for m in self.masters]), strict=True):
            master.grad = grad.view_as(master)
        for group in self.optimizer.param_groups:
            group["lr"] = self._learning_rate()
        self.optimizer.step()

    def _learning_rate(self) -> float:
        """Returns the rate: warm-up, then constant, then linear to zero over the second half of the time."""
        done = self.seconds / (60 * self.options.minutes)
        return self.options.lr * min(1.0, (self.step + 1) / 150) * min(1.0, max(0.0, 2 * (1 - done)))

    def _agreed(self, seconds: float) -> float:
        """Returns the first process's time, so that all processes stop at the same step."""
        if self.n_ranks == 1:
            return seconds
        value = torch.tensor([seconds])
        dist.broadcast(value, 0)
        return float(value)

    def _save(self) -> None:
        if self.rank:
            return
        state = {
            "weights": dict(zip(self.names, self.masters, strict=True)),
            "optimizer": self.optimizer.state_dict(),
            "shape": asdict(self.network.shape),
            "progress": [self.step, self.seconds, self.n_tokens, self.mean_loss],
        }
        torch.save(state, self.path.with_suffix(".new"))
        self.path.with_suffix(".new").replace(self.path)
        report = {
            "steps": self.step,
            "minutes": self.seconds / 60,
            "tokens": self.n_tokens,
            "loss": self.mean_loss,
        }
        self.path.with_suffix(".json").write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")

    def _load(self) -> None:
        state = torch.load(self.path, weights_only=True)
        for name, master in zip(self.names, self.masters, strict=True):
            master.copy_(state["weights"][name])
        self.optimizer.load_state_dict(state["optimizer"])
        self.step, self.seconds, self.n_tokens, self.mean_loss = state["progress"]


if __name__ == "__main__":
    main()
