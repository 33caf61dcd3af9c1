# SPDX-License-Identifier: MIT
"""What `kernels.py` measures of a target, part by part. Each takes less than 90 s and returns plain data."""

from __future__ import annotations

import argparse
import dataclasses
import json
import subprocess
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import gguf
from bandwidth import read_bandwidth
from common import median
from compare import one_prompt
from compare_targets import BenchmarkTarget
from contestants import Request, Settings, open_field
from kernel_workers import Worker
from prompt_sets import make_prompts

ROWS = (1, 2, 3, 4, 5, 6, 8, 12, 16)
PROMPTS = (512, 4096)
N_CTX = max(PROMPTS) + 256
BEHIND = 1000
TEMPERATURES = (0.0, 0.8)


@dataclasses.dataclass(frozen=True)
class Bench:
    """What every part needs to know."""

    args: argparse.Namespace
    path: Path

    @property
    def name(self) -> str:
        return self.path.stem

    def worker(self, kind: str, n_ctx: int = N_CTX) -> Worker:
        options = dict(self.args.option)
        libraries = None
        if kind == "theirs":  # the same caches
            options = {n: v for n, v in options.items() if n.startswith("type_")} | {
                "repack": self.args.repack
            }
            libraries = self.args.llama_libs
        return Worker(kind, self.path, n_ctx, self.args.threads, libraries, **options)


def of_rows(bench: Bench) -> dict[str, Any]:
    with bench.worker("rows") as ours, bench.worker("theirs") as theirs:
        found = in_turns(bench, {"ours": ours, "theirs": theirs}, ROWS, 0, bench.args.ik)
    times = llama_bench(bench, bench.args.llama_bench, ROWS[:1])
    return found | ({"bench": {n: median(ms) for n, ms in times.items()}} if times else {})


def of_behind(bench: Bench) -> dict[str, Any]:
    with bench.worker("rows") as ours, bench.worker("theirs") as theirs:
        return in_turns(bench, {"ours": ours, "theirs": theirs}, (1, 4), BEHIND)


def in_turns(
    bench: Bench, workers: Mapping[str, Worker], rows: tuple[int, ...], behind: int, ik: Path | None = None
) -> dict[str, Any]:
    """Median milliseconds of a few batches, by turn. Both run one number of rows right after each other. The
    first turn builds graphs and does not count. ik: ik_llama.cpp's llama-batched-bench, whose turn comes
    behind theirs.
    """
    found: dict[str, Any] = {who: {str(n): [] for n in rows} for who in (*workers, *(["ik"] if ik else []))}
    for turn in range(bench.args.turns + 1):
        for n in rows:
            for who in list(workers) if turn % 2 else list(workers)[::-1]:
                ms = workers[who].ask("rows", n=n, behind=behind, repeats=bench.args.repeats)
                if turn:
                    found[who][str(n)].append(median(ms))
        if ik and turn:
            for n, ms in batched_bench(bench, ik, rows).items():
                found["ik"][str(n)].append(ms)
    return found


def batched_bench(bench: Bench, program: Path, rows: tuple[int, ...]) -> dict[int, float]:
    """Milliseconds of a batch of so many rows, one of each conversation, all with logits: the mean of twelve.
    Weights are repacked when they are loaded, as ours are.
    """
    command = [program.resolve(), "-m", bench.path.resolve(), "-rtr", "-t", bench.args.threads, "-c", 1024]
    done = finished([*command, "-npp", 1, "-ntg", 12, "-npl", ",".join(map(str, rows))])
    table = [line.split("|") for line in done.stderr.splitlines() if line.startswith("|")]
    # columns 3 and 8: conversations, and tokens of all of them in a second
    found = {int(row[3]): 1000 * int(row[3]) / float(row[8]) for row in table if row[3].strip().isdigit()}
    if set(found) != set(rows):
        raise SystemExit(f"{program} measured {sorted(found)} rows instead of {rows}")
    return found


def finished(command: list[Any]) -> subprocess.CompletedProcess[str]:
    with tempfile.TemporaryDirectory() as folder:  # ik_llama.cpp's writes a log where it runs
        done = subprocess.run(
            [str(part) for part in command], capture_output=True, text=True, check=False, cwd=folder
        )
    if done.returncode != 0:
        raise SystemExit(f"{command[0]} ended with {done.returncode}\n{done.stderr[-2000:]}")
    return done


def llama_bench(
    bench: Bench,
    program: Path | None,
    prompts: tuple[int, ...],
    n_generated: int = 0,
    repeats: int = 0,
) -> dict[str, list[float]]:
    """Milliseconds of reading prompts of so many tokens, and under "0" of generating, by a llama-bench.
    Empty without one.
    """
    if program is None:
        return {}
    command = [program.resolve(), "-m", bench.path.resolve(), "-n", n_generated, "-p"]
    command += [",".join(map(str, prompts or (0,))), "-t", bench.args.threads, "-o", "json"]
    command += ["-r", repeats or (10 if max(prompts) < 64 else 3)]
    runs = json.loads(finished(command).stdout)
    return {str(run["n_prompt"]): [ns / 1e6 for ns in run["samples_ns"]] for run in runs}


def of_plain(bench: Bench) -> dict[str, Any]:
    args = bench.args
    settings = Settings((), (), args.llama_server, 512, args.threads, with_ngram=False, options=args.option)
    runs = []
    bench_ms: list[float] = []  # of a token, beside each prompt
    with open_field(BenchmarkTarget(bench.name, bench.path, {}), settings) as field:
        prompts = make_prompts("code", field.engine, args.n_prompts, 64, args.seed)
        for generate in field.generate.values():
            generate(Request(prompts[0], 16, 0.0, args.seed))
        for i, prompt in enumerate(prompts):
            for temperature in TEMPERATURES:
                request = Request(prompt, args.n_tokens, temperature, args.seed + i)
                runs += one_prompt(field, field.contestants, i % 2, ("code", temperature), i, request)
            for ms in llama_bench(bench, args.llama_bench, (), args.n_tokens, repeats=1).values():
                bench_ms.append(ms[0] / args.n_tokens)
    found = {"runs": [dataclasses.asdict(run) for run in runs]}
    return found | ({"bench": bench_ms} if bench_ms else {})


def of_prompt(bench: Bench) -> dict[str, Any]:
    found: dict[str, Any] = {}
    with bench.worker("engine") as ours, bench.worker("theirs") as theirs:
        for worker in (ours, theirs):
            worker.ask("prompt", n=64)
        is_processor_time = bench.args.processor_time
        for n in PROMPTS[:1] if is_processor_time else PROMPTS:
            n_turns = bench.args.turns if is_processor_time else 3 if n < 1000 else 1
            turns: dict[str, list[float]] = {"ours": [], "theirs": []}
            for _ in range(n_turns):
                for who, worker in (("ours", ours), ("theirs", theirs)):
                    turns[who].append(worker.ask("prompt", n=n, is_processor_time=is_processor_time))
            found[str(n)] = turns
    times = {} if is_processor_time else llama_bench(bench, bench.args.llama_bench, PROMPTS[:1])
    for n_text, ms in times.items():
        found[n_text]["bench"] = median(ms)
    return found


def of_load(bench: Bench) -> dict[str, Any]:
    """Each in a process of its own; the first pair warms the page cache and whatever is kept on disk."""
    found: dict[str, Any] = {"ours": [], "theirs": [], "memory": {}, "ready": {"ours": [], "theirs": []}}
    for turn in range(4):
        for who, kind in (("ours", "engine"), ("theirs", "theirs")):
            with bench.worker(kind, 1024) as worker:
                memory = worker.ask("memory")
                if turn:
                    found[who].append(worker.load_ms)
                    # what is put off while a model is loaded is done by then
                    found["ready"][who].append(worker.load_ms + memory.pop("prompt_ms"))
                found["memory"][who] = memory
    return found


def of_bandwidth(bench: Bench) -> dict[str, Any]:
    """The best of a few rows beside the best of a few passes: shared machines have slow memory at times."""
    found: dict[str, Any] = {"bytes": bytes_per_token(bench.path), "ours": [], "machine": []}
    with bench.worker("rows") as ours:
        for turn in range(bench.args.turns + 1):
            ms = ours.ask("rows", n=1, behind=0, repeats=bench.args.repeats)
            speed = read_bandwidth(bench.args.threads)
            if turn:
                found["ours"].append(min(ms))
                found["machine"].append(speed)
    return found


def bytes_per_token(path: Path) -> int:
    """Weights that a single row reads, as they are in the file: all but embeddings that are looked up."""
    tensors = gguf.GGUFReader(path).tensors
    is_tied = all(tensor.name != "output.weight" for tensor in tensors)
    return sum(int(t.n_bytes) for t in tensors if is_tied or t.name != "token_embd.weight")


PARTS: dict[str, Callable[[Bench], dict[str, Any]]] = {
    "rows": of_rows,
    "plain": of_plain,
    "prompt": of_prompt,
    "load": of_load,
    "behind": of_behind,
    "bandwidth": of_bandwidth,
}
WIDE_ONLY = ("behind", "bandwidth")
