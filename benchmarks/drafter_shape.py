# SPDX-License-Identifier: MIT
"""Which shape a drafter should have: its layers, its head, its steps of training, at small scale.

    python benchmarks/drafter_shape.py --target T.gguf --data answers.jsonl [--steps 200] [-t 1]

The target reads `--tokens` tokens once, with all layers that are compared. Then each variant is trained from
the target's last block for `--steps` steps of 1024 tokens, in the same order, and evaluated as `eaglecpp
train` does: tokens per round with chains of five on held-out answers. The first variant is the default; it
runs with `--seeds` seeds, which shows how far two equal drafters are apart.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from common import arguments, facts, median, note, table, write_json

from eaglecpp.convert import read_gguf
from eaglecpp.options import ModelOptions
from eaglecpp.train.capture.features import TargetSource, default_layers
from eaglecpp.train.data import texts, vocab
from eaglecpp.train.data.chats import open_tokenizer
from eaglecpp.train.fit.loop import Budget, Hyper, Limits, Trainer
from eaglecpp.train.fit.model import DraftModel
from eaglecpp.train.fit.optim import default_lr
from eaglecpp.train.fit.spec import new_spec, with_vocab
from eaglecpp.train.fit.weights import from_target, target_embedding
from eaglecpp.train.samples import Sample, TrainText


@dataclass(frozen=True)
class Variant:
    """n_steps: of training-time test; own_head: trained, not the target's rows."""

    name: str
    layers: tuple[int, ...]
    n_steps: int = 3
    own_head: bool = True


class Chosen:
    """Some of the layers that were captured, as a `FeatureSource`."""

    def __init__(self, samples: Sequence[Sample], rows: Sequence[int]) -> None:
        self._samples, self._rows = samples, list(rows)
        self.lengths = [len(sample.tokens) for sample in samples]

    def sample(self, index: int) -> Sample:
        one = self._samples[index]
        return replace(one, features=one.features[self._rows].astype(np.float32))


class Silent:
    """A `Reporter` that prints nothing."""

    def on_step(self, report: Any) -> None: ...

    def on_evaluation(self, step: int, found: Any, best: bool) -> None: ...

    def stop(self) -> bool:
        return False


def main() -> None:
    args = parse()
    torch.set_num_threads(args.threads)
    file = read_gguf(args.target)
    n_layer = int(file.get(f"{file.architecture}.block_count"))
    default, *others = compared(n_layer)
    variants = [default, *(one for one in others if any(part in one.name for part in args.only))]
    every_layer = sorted({k for variant in variants for k in variant.layers})
    conversations, n_train, counts, special = corpus(args)
    samples = captured(args, conversations, every_layer)
    n_vocab = len(counts)
    ids = vocab.choose(counts, min(args.draft_vocab, n_vocab), special).ids
    draft_ids = np.full(n_vocab, -1, np.int64)
    draft_ids[ids] = np.arange(len(ids))
    embedding = target_embedding(file)

    def trained(variant: Variant, seed: int) -> tuple[float, float, float]:
        """Acceptance length, chance of the first draft, tokens per second of training."""
        spec = with_vocab(new_spec(file, n_vocab, n_layer, variant.layers), len(ids))
        torch.manual_seed(seed)
        model = DraftModel(
            spec, embedding, share_head=not variant.own_head, dtype=args.dtype, loss_vocab=args.loss_vocab
        )
        model.load_state_dict(from_target(file, spec, ids, seed).state)
        source = Chosen(samples, [every_layer.index(k) for k in variant.layers])
        hyper = Hyper(variant.n_steps, default_lr(spec.hidden_size), later_every=2, seed=seed)
        parts = range(n_train), range(n_train, len(samples))
        with tempfile.TemporaryDirectory() as folder:
            trainer = Trainer(
                model, source, parts, draft_ids, Path(folder), Budget(steps=args.steps), hyper,
                Limits(eval_steps=args.steps), Silent(),
            )  # fmt: skip
            started = time.perf_counter()
            outcome = trainer.run()
        assert outcome.best is not None
        seconds = time.perf_counter() - started
        return outcome.best.length, outcome.best.rates[0], outcome.progress.tokens / seconds

    rows: list[list[Any]] = []
    for i, variant in enumerate(variants):
        seeds = range(1, 1 + (args.seeds if i == 0 else 1))
        found = [trained(variant, seed) for seed in seeds]
        lengths = [length for length, _, _ in found]
        spread = f"{min(lengths):.3f} to {max(lengths):.3f}" if len(found) > 1 else ""
        first, speed = median(rate for _, rate, _ in found), median(s for _, _, s in found)
        rows.append([variant.name, f"{median(lengths):.3f}", f"{first:.3f}", f"{speed:.0f}", spread])
        note(" | ".join(map(str, rows[-1])))
    print(table(["drafter", "length", "first draft", "tokens/s", "same, other seeds"], rows))
    shape = {"n_tokens": sum(len(s.tokens) for s in samples), "n_train": n_train, "steps": args.steps}
    write_json(args.json, facts({"target": args.target}, **shape) | {"rows": rows})


def compared(n_layer: int) -> list[Variant]:
    """The default, then one thing changed at a time."""
    default = tuple(default_layers(n_layer))
    quarter, last = n_layer // 4, n_layer - 1
    choices = {
        "near the end": (n_layer - 9, n_layer - 5, last),
        "no early one": (n_layer // 2, n_layer - 8, n_layer - 3),
        "spread, with the last": (quarter, 2 * quarter, 3 * quarter, last),
        "five": (2, quarter, 2 * quarter, 3 * quarter, n_layer - 3),
        "the last but two alone": (n_layer - 3,),
    }
    named = [Variant(f"layers {', '.join(map(str, k))} ({name})", k) for name, k in choices.items()]
    return [
        Variant(f"layers {', '.join(map(str, default))}, own head, 3 steps", default),
        *named,
        Variant("the target's head", default, own_head=False),
        *(Variant(f"{n} steps", default, n_steps=n) for n in (1, 2, 4, 5)),
    ]


def corpus(args: argparse.Namespace) -> tuple[list[TrainText], int, Any, list[int]]:
    """Conversations of `--tokens` tokens, those to train on first, with the counts of what is said."""
    with open_tokenizer(args.target) as engine:
        read = texts.load(args.data, engine, args.context)
        order = np.random.default_rng(1).permutation(len(read.conversations))
        taken, n = [], 0
        for index in order:
            if n >= args.tokens:
                break
            taken.append(read.conversations[index])
            n += len(taken[-1].tokens)
        train, held_out = texts.split(taken, 0.1)
        return (
            [*train, *held_out],
            len(train),
            vocab.count(train, engine.n_vocab),
            vocab.special_tokens(engine),
        )


def captured(args: argparse.Namespace, conversations: list[TrainText], layers: Sequence[int]) -> list[Sample]:
    """All samples in memory, features in half precision: layers x width x 2 bytes per token."""
    model = ModelOptions(n_threads=args.threads)
    source = TargetSource(args.target, conversations, layers, model=model)
    started = time.perf_counter()
    samples = []
    for i in range(len(conversations)):
        one = source.sample(i)
        largest = np.finfo(np.float16).max
        samples.append(replace(one, features=one.features.clip(-largest, largest).astype(np.float16)))
    source.close()
    n = sum(source.lengths)
    note(
        f"read {n} tokens of {len(samples)} conversations, {n / (time.perf_counter() - started):.0f} tokens/s"
    )
    return samples


def parse() -> argparse.Namespace:
    parser = arguments(__doc__)
    parser.add_argument("--target", type=Path, required=True)
    parser.add_argument("--data", type=Path, nargs="+", required=True, help="as for eaglecpp train")
    parser.add_argument("--tokens", type=int, default=150_000, help="to read, prompts included")
    parser.add_argument("--context", type=int, default=2048)
    parser.add_argument("--draft-vocab", type=int, default=13824)
    parser.add_argument("--loss-vocab", type=int, default=4096)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument(
        "--only", nargs="+", default=[""], help="variants with one of these in their names, and the default"
    )
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("-t", "--threads", type=int, default=1)
    parser.add_argument("--dtype", type=lambda name: getattr(torch, name), default=torch.bfloat16)
    parser.add_argument("--json", type=Path)
    return parser.parse_args()


if __name__ == "__main__":
    main()
