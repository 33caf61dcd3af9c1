# SPDX-License-Identifier: MIT
"""How fast the three halves of training are: writing texts, reading them for their states, and the step.

    python benchmarks/training_speed.py --target T.gguf [--llama-server PATH --llama-bench PATH] [-t 2]

*writing*: tokens per second of one text at a time, of `--sequences` at once, and of llama.cpp's server with
as many slots and requests; the same prompts, lengths and sampling, prompts included in the time.
*reading*: states, logits of every row and the 64 best tokens, over llama-bench's prompt speed of the same
file (which computes the logits of one row); and of chats of 120 to 480 tokens, as they fill a cache.
*step*: an optimiser step of an EAGLE 3.1 drafter of this target on samples of 120 to 480 tokens, as chats
have them, two thirds with loss: tokens per second, and the share of matrix products in the time PyTorch
accounts for.
The two sides of each comparison take turns; the medians of `--turns` are printed.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from common import arguments, facts, median, note, table, warn_if_busy, write_json
from llama_server import LlamaServer
from torch.profiler import ProfilerActivity, profile

import eaglecpp
from eaglecpp.convert import read_gguf
from eaglecpp.options import ModelOptions, SamplingOptions
from eaglecpp.train.capture import batched
from eaglecpp.train.capture.batched import GenerateJob, Task
from eaglecpp.train.capture.features import TargetSource, default_layers
from eaglecpp.train.capture.parallel import samples_of
from eaglecpp.train.data.chats import open_tokenizer
from eaglecpp.train.fit.batch import make_batch
from eaglecpp.train.fit.model import DraftModel
from eaglecpp.train.fit.optim import Optimizer
from eaglecpp.train.fit.spec import new_spec
from eaglecpp.train.fit.weights import from_target, target_embedding
from eaglecpp.train.samples import Sample, TrainText

PROMPT = "Write about number {} and its neighbours, in as many words as you like."
PRODUCTS = ("aten::mm", "aten::addmm", "aten::bmm", "mkldnn::_linear_pointwise")
LENGTHS = (120, 210, 290, 300, 480)  # of the samples of a step
N_CHATS = 6  # of each length and for each thread, to be read


def main() -> None:
    args = parse()
    warn_if_busy()
    torch.set_num_threads(args.threads)
    rows: list[list[Any]] = []
    result = facts({"target": args.target}, n_threads=args.threads, n_sequences=args.sequences)
    measures = {"writing": writing, "reading": reading, "step": step}
    for name in args.parts:
        found = measures[name](args)
        result[name] = found
        rows += [[name, *row] for row in found]
    print(table(["", "what", "tokens/s", "over llama.cpp"], rows))
    write_json(args.json, result)


# Writing


def writing(args: argparse.Namespace) -> list[list[Any]]:
    found: dict[str, list[float]] = {}
    for _ in range(args.turns):
        for n in (1, args.sequences):
            found.setdefault(f"{n} at once", []).append(our_writing(args, n))
        if args.llama_server:
            found.setdefault("server", []).append(their_writing(args, args.sequences))
    theirs = found.pop("server", None)
    lines: list[list[Any]] = [[name, median(values), ""] for name, values in found.items()]
    if theirs:
        ratio = median(a / b for a, b in zip(found[f"{args.sequences} at once"], theirs, strict=True))
        lines[-1][-1] = ratio
        lines.append([f"llama-server, {args.sequences} slots", median(theirs), 1.0])
    return lines


def our_writing(args: argparse.Namespace, n_sequences: int) -> float:
    """One text at a time writes an eighth of the texts."""
    n_texts = args.sequences * args.rounds // (1 if n_sequences > 1 else 8)
    model = batched.batch_options(
        ModelOptions(n_ctx=n_sequences * args.context, n_threads=args.threads), n_sequences
    )
    with eaglecpp.Engine.open(args.target, **vars(model)) as engine:
        started = time.perf_counter()
        n = sum(batched.run(engine, (written(engine, i, args.n_tokens) for i in range(n_texts))))
        return n / (time.perf_counter() - started)


def written(engine: eaglecpp.Engine, number: int, n_tokens: int) -> Task[int]:
    prompt = engine.prompt_tokens(engine.chat_prompt([{"role": "user", "content": PROMPT.format(number)}]))
    options = SamplingOptions(temperature=0.7, seed=number, max_tokens=n_tokens, ignore_eos=True)
    generated = yield GenerateJob(prompt, options, watch=False)
    return len(generated.tokens)


def their_writing(args: argparse.Namespace, n_slots: int) -> float:
    """As many requests as slots at any time."""
    extra = ("-np", str(n_slots), "--no-kv-unified")
    with (
        LlamaServer(
            args.llama_server, args.target, n_ctx=n_slots * args.context, n_threads=args.threads, extra=extra
        ) as server,
        open_tokenizer(args.target) as engine,
        ThreadPoolExecutor(n_slots) as pool,
    ):

        def ask(number: int) -> int:
            prompt = engine.chat_prompt([{"role": "user", "content": PROMPT.format(number)}])
            said = server.complete(
                engine.prompt_tokens(prompt), args.n_tokens, temperature=0.7, seed=number, id_slot=-1
            )
            return len(said.tokens)

        started = time.perf_counter()
        n = sum(pool.map(ask, range(n_slots * args.rounds)))
        return n / (time.perf_counter() - started)


# Reading


def reading(args: argparse.Namespace) -> list[list[Any]]:
    rng = np.random.default_rng(1)
    n_vocab = read_gguf(args.target).tensors["token_embd.weight"].shape[0]
    chats = [
        TrainText(rng.integers(10, n_vocab, n, dtype=np.int32), np.ones(n, np.int16))
        for n in (args.n_read, *LENGTHS * N_CHATS * args.threads)
    ]
    source = TargetSource(args.target, chats, model=ModelOptions(n_threads=args.threads))
    source.sample(0)
    rest = range(1, len(chats))
    ways: dict[str, Callable[[], Iterable[Sample]]] = {
        f"{args.n_read} tokens, all logits": lambda: (source.sample(0) for _ in range(3)),
        f"{len(rest)} chats, one after the other": lambda: map(source.sample, rest),
        "the same side by side, loading included": lambda: samples_of(source, rest),
    }
    ours: dict[str, list[float]] = {name: [] for name in ways}
    theirs = []
    for _ in range(args.turns):
        for name, way in ways.items():
            started = time.perf_counter()
            n_tokens = sum(len(one.tokens) for one in way())
            ours[name].append(n_tokens / (time.perf_counter() - started))
        if args.llama_bench:
            theirs.append(their_reading(args))
    source.close()
    lines: list[list[Any]] = []
    for name, found in ours.items():
        over = median(a / b for a, b in zip(found, theirs, strict=True)) if theirs else ""
        lines.append([name, median(found), over])
    if theirs:
        lines.append(["llama-bench, one row's logits", median(theirs), 1.0])
    return lines


def their_reading(args: argparse.Namespace) -> float:
    command = [args.llama_bench, "-m", args.target, "-p", args.n_read, "-n", 0, "-t", args.threads, "-r", 3]
    done = subprocess.run([*map(str, command), "-o", "json"], capture_output=True, text=True, check=True)
    return float(json.loads(done.stdout)[0]["avg_ts"])


# The step


def step(args: argparse.Namespace) -> list[list[Any]]:
    file = read_gguf(args.target)
    n_vocab = int(file.tensors["token_embd.weight"].shape[0])
    n_layer = int(file.get(f"{file.architecture}.block_count"))
    lines = []
    for n_draft in args.draft_vocab:
        ids = np.arange(min(n_draft, n_vocab))
        draft_ids = np.full(n_vocab, -1, np.int64)
        draft_ids[ids] = ids
        spec = replace(new_spec(file, n_vocab, n_layer, default_layers(n_layer)), draft_vocab_size=len(ids))
        start = from_target(file, spec, ids, 1)
        model = DraftModel(spec, target_embedding(file), share_head=False, dtype=args.dtype)
        model.load_state_dict(start.state)
        optimizer = Optimizer(model.parameters())
        samples = list(made_up(spec.target_hidden_size, ids))

        def one(
            every: int, loss_vocab: int, model: DraftModel = model, optimizer: Optimizer = optimizer,
            draft_ids: Any = draft_ids, samples: list[Sample] = samples,
        ) -> None:  # fmt: skip
            model.loss_vocab = loss_vocab
            batch = make_batch(samples, draft_ids, args.ttt_steps, torch.device("cpu"), every)
            sums = model(batch)
            sums.loss.backward()
            optimizer.step(torch.tensor(1.0 / float(sums.weight)), 1e-4)

        times: dict[tuple[int, int], list[float]] = {
            (every, loss_vocab): [] for every in args.later_every for loss_vocab in args.loss_vocab
        }
        for turn in range(args.turns + 1):
            for settings, found in times.items():
                started = time.perf_counter()
                one(*settings)
                if turn:  # the first one warms up
                    found.append(time.perf_counter() - started)
        for (every, loss_vocab), found in times.items():
            with profile(activities=[ProfilerActivity.CPU]) as seen:
                one(every, loss_vocab)
            spent = {event.key: event.self_cpu_time_total for event in seen.key_averages()}
            share = sum(spent.get(key, 0.0) for key in PRODUCTS) / sum(spent.values())
            dtype = str(args.dtype).removeprefix("torch.")
            what = f"draft vocabulary {len(ids)}, {dtype}, --later-every {every}, "
            what += f"--loss-vocab {loss_vocab}, products {share:.0%}"
            lines.append([what, sum(LENGTHS) / median(found), ""])
    return lines


def made_up(n_embd: int, ids: Any) -> Iterator[Sample]:
    """Random states and labels: the time does not depend on them."""
    rng = np.random.default_rng(1)
    for n in LENGTHS:
        turns = np.zeros(n, np.int16)
        turns[n // 3 :] = 1
        labels = np.stack([rng.choice(ids, 64, replace=False) for _ in range(n)]).astype(np.int32)
        p = -np.sort(-rng.dirichlet(np.full(64, 0.05), n), 1)
        yield Sample(
            rng.choice(ids, n).astype(np.int32),
            turns,
            rng.normal(size=(3, n, n_embd)).astype(np.float32),
            labels,
            np.log(p + 1e-9).astype(np.float32),
        )


def parse() -> argparse.Namespace:
    parser = arguments(__doc__)
    parser.add_argument("--target", type=Path, required=True)
    parser.add_argument("--llama-server", type=Path)
    parser.add_argument("--llama-bench", type=Path)
    parser.add_argument("-t", "--threads", type=int, default=2)
    parser.add_argument("--sequences", type=int, default=32)
    parser.add_argument("--rounds", type=int, default=2, help="texts per sequence")
    parser.add_argument("--n-tokens", type=int, default=64, help="of a text")
    parser.add_argument("--context", type=int, default=256, help="of a text, prompt included")
    parser.add_argument("--n-read", type=int, default=512)
    parser.add_argument("--draft-vocab", type=int, nargs="+", default=[8192, 16384])
    parser.add_argument("--ttt-steps", type=int, default=3)
    parser.add_argument("--later-every", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--loss-vocab", type=int, nargs="+", default=[0, 4096], help="0 = all")
    parser.add_argument("--parts", nargs="+", default=["writing", "reading", "step"])
    parser.add_argument("--dtype", type=lambda name: getattr(torch, name), default=torch.bfloat16)
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--json", type=Path)
    return parser.parse_args()


if __name__ == "__main__":
    note("fresh memory is slow on some machines: set MALLOC_MMAP_MAX_=0 and so on as docs/train.md says")
    main()
