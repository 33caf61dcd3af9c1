# SPDX-License-Identifier: MIT
"""Compares our kernels with llama.cpp's: cost of batches, prompts, loading and memory.

    python benchmarks/kernels.py --target smollm2-Q8_0.gguf --target wide-Q8_0.gguf ...
        [--llama-bench PATH] [--ik PATH] [--only PART,...] [--json OUT]

llama.cpp runs with its default options in processes that never load our code (`kernel_workers.py`). A process
with llama.cpp and a process with eaglecpp are open at the same time and take turns. Each part of each target
takes less than 90 s. EAGLECPP_KERNELS=avx2 in the environment selects AVX2 for our kernels only. For
llama.cpp, give builds of the same version for AVX2 (-DGGML_NATIVE=OFF -DGGML_AVX2=ON -DGGML_FMA=ON
-DGGML_F16C=ON) to --llama-libs and --llama-bench. Parts:

    rows       batches of 1 to 16 tokens with logits for all tokens. As a check, llama-bench measures a single
               token. With --ik, ik_llama.cpp is measured too.
    behind     batches of 1 and 4 tokens after 1000 tokens
    prompt     prompts of 512 and 4096 tokens
    load       time to load a file that is in the page cache, and memory after loading
    bandwidth  time of one token of a memory-bound target, compared with a loop that only reads

`speed.py` measures decoding on these targets. `busy.py` measures decoding on busy cores.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gguf
from bandwidth import read_bandwidth
from common import arguments, cpu_name, facts, median, note, option, table, warn_if_busy, write_json
from kernel_workers import Worker

from eaglecpp.lowlevel import system_info

ROWS = (1, 2, 3, 4, 5, 6, 8, 12, 16)
PROMPTS = (512, 4096)
N_CTX = max(PROMPTS) + 256
BEHIND = 1000


@dataclass(frozen=True)
class Bench:
    """One target and the settings of every part."""

    args: argparse.Namespace
    path: Path

    def worker(self, kind: str, n_ctx: int = N_CTX) -> Worker:
        options = dict(self.args.option)
        libraries = None
        if kind == "theirs":  # llama.cpp gets the same cache types as eaglecpp
            options = {n: v for n, v in options.items() if n.startswith("type_")} | {
                "repack": self.args.repack
            }
            libraries = self.args.llama_libs
        return Worker(kind, self.path, n_ctx, self.args.threads, libraries, **options)


def paired(over: Sequence[float], under: Sequence[float]) -> float:
    """Returns the median over all turns of the ratio `over / under` within a turn."""
    return statistics.median(a / b for a, b in zip(over, under, strict=True))


def of_rows(bench: Bench) -> dict[str, Any]:
    found = in_turns(bench, ROWS, 0, bench.args.ik)
    if bench.args.llama_bench:
        found["llama-bench"] = {"1": llama_bench(bench, bench.args.llama_bench, 1)}
    return found


def of_behind(bench: Bench) -> dict[str, Any]:
    return in_turns(bench, (1, 4), BEHIND)


def in_turns(bench: Bench, rows: Sequence[int], behind: int, ik: Path | None = None) -> dict[str, Any]:
    """Returns for each turn the median milliseconds of a few batches, and prints these times and their
    ratios. llama.cpp and eaglecpp run the same batch size directly after each other. The first turn builds
    graphs and does not count. ik: ik_llama.cpp's llama-batched-bench, which runs last in each turn.
    """
    with bench.worker("rows") as ours, bench.worker("theirs") as theirs:
        workers = {"ours": ours, "theirs": theirs}
        found: dict[str, dict[str, list[float]]] = {
            who: {str(n): [] for n in rows} for who in (*workers, *(["ik"] if ik else []))
        }
        for turn in range(bench.args.turns + 1):
            for n in rows:
                for who in list(workers) if turn % 2 else list(workers)[::-1]:
                    ms = workers[who].ask("rows", n=n, behind=behind, repeats=bench.args.repeats)
                    if turn:
                        found[who][str(n)].append(median(ms))
            if ik and turn:
                for n, one in batched_bench(bench, ik, rows).items():
                    found["ik"][str(n)].append(one)
    lines = [[f"{who}, ms", *(median(ms) for ms in of.values())] for who, of in found.items()]
    single = found["theirs"]["1"]
    lines.append(["ours over llama.cpp's T(1)", *(paired(ms, single) for ms in found["ours"].values())])
    for who in found:
        if who != "ours":
            both = zip(found["ours"].values(), found[who].values(), strict=True)
            lines.append([f"ours over T(n) of {who}", *(paired(a, b) for a, b in both)])
    print(table(["", *(f"T({n})" for n in rows)], lines))
    return dict(found)


def batched_bench(bench: Bench, program: Path, rows: Sequence[int]) -> Mapping[int, float]:
    """Returns the mean milliseconds of twelve batches, for each batch size n. A batch has one token of each
    of n conversations, all with logits. ik_llama.cpp repacks weights when it loads them, as our kernels do.
    """
    command = [program.resolve(), "-m", bench.path.resolve(), "-rtr", "-t", bench.args.threads, "-c", 1024]
    done = finished([*command, "-npp", 1, "-ntg", 12, "-npl", ",".join(map(str, rows))])
    lines = [line.split("|") for line in done.stderr.splitlines() if line.startswith("|")]
    # Column 3 is the number of conversations. Column 8 is the total number of tokens per second.
    found = {int(row[3]): 1000 * int(row[3]) / float(row[8]) for row in lines if row[3].strip().isdigit()}
    if set(found) != set(rows):
        raise SystemExit(f"{program} measured batches of {sorted(found)} instead of {rows}")
    return found


def llama_bench(bench: Bench, program: Path, n: int) -> list[float]:
    """Returns the milliseconds that llama-bench takes to process a prompt of n tokens. program: path of
    llama-bench.
    """
    command = [program.resolve(), "-m", bench.path.resolve(), "-n", 0, "-p", n, "-t", bench.args.threads]
    found = json.loads(finished([*command, "-o", "json", "-r", 10 if n < 64 else 3]).stdout)
    ms = [ns / 1e6 for ns in found[0]["samples_ns"]]
    print(f"llama-bench, {n} tokens: {median(ms):.2f} ms")
    return ms


def finished(command: list[Any]) -> subprocess.CompletedProcess[str]:
    # ik_llama.cpp's program writes a log into the current folder, so the program runs in a temporary folder.
    with tempfile.TemporaryDirectory() as folder:
        done = subprocess.run(
            [str(part) for part in command], capture_output=True, text=True, check=False, cwd=folder
        )
    if done.returncode != 0:
        raise SystemExit(f"{command[0]} ended with {done.returncode}\n{done.stderr[-2000:]}")
    return done


def of_prompt(bench: Bench) -> dict[str, Any]:
    in_processor_time = bench.args.processor_time
    found: dict[str, Any] = {}
    with bench.worker("engine") as ours, bench.worker("theirs") as theirs:
        for worker in (ours, theirs):
            worker.ask("prompt", n=64)
        for n in PROMPTS[:1] if in_processor_time else PROMPTS:
            turns: dict[str, list[float]] = {"ours": [], "theirs": []}
            for _ in range(bench.args.turns if in_processor_time else 3 if n < 1000 else 1):
                for who, worker in (("ours", ours), ("theirs", theirs)):
                    turns[who].append(worker.ask("prompt", n=n, is_processor_time=in_processor_time))
            found[str(n)] = turns
    rows = [
        [n, median(t["ours"]), median(t["theirs"]), paired(t["theirs"], t["ours"])] for n, t in found.items()
    ]
    print(table(["prompt", "ours, ms", "llama.cpp, ms", "speed over llama.cpp"], rows))
    if bench.args.llama_bench and not in_processor_time:
        llama_bench(bench, bench.args.llama_bench, PROMPTS[0])
    return found


def of_load(bench: Bench) -> dict[str, Any]:
    """Measures loading the target, each time in a separate process. The first pair of processes fills the
    page cache.
    """
    found: dict[str, Any] = {who: {"load_ms": [], "ready_ms": []} for who in ("ours", "theirs")}
    for turn in range(4):
        for who, kind in (("ours", "engine"), ("theirs", "theirs")):
            with bench.worker(kind, 1024) as worker:
                found[who]["memory"] = memory = worker.ask("memory")
                if turn:
                    found[who]["load_ms"].append(worker.load_ms)
                    # The time includes the first prompt, because loading defers some work to the first
                    # prompt.
                    found[who]["ready_ms"].append(worker.load_ms + memory["prompt_ms"])
    kinds = ("rss", "pss", "pss_anonymous", "pss_file")
    rows = [
        [who, *(f"{median(one[t]):.0f}" for t in ("load_ms", "ready_ms"))]
        + [f"{one['memory'][kind] / 2**20:.0f}" for kind in kinds]
        for who, one in found.items()
    ]
    head = ["load, ms", "load and 16 tokens, ms", "RSS, MiB", "PSS", "anonymous", "file-backed"]
    print(table(["", *head], rows))
    return found


def of_bandwidth(bench: Bench) -> dict[str, Any]:
    """Compares the bandwidth of reading weights for one token with a loop that only reads. The fastest of a
    few tokens and of a few passes counts, because memory of shared machines is slow at times.
    """
    n_bytes = bytes_per_token(bench.path)
    speeds: dict[str, list[float]] = {"token": [], "machine": []}  # speeds in GB/s
    with bench.worker("rows") as ours:
        for turn in range(bench.args.turns + 1):
            ms = min(ours.ask("rows", n=1, behind=0, repeats=bench.args.repeats))
            machine = read_bandwidth(bench.args.threads)
            if turn:
                speeds["token"].append(n_bytes / 1e6 / ms)
                speeds["machine"].append(machine)
    print(f"share of the read bandwidth: {paired(speeds['token'], speeds['machine']):.2f}")
    return {"bytes": n_bytes, **speeds}


def bytes_per_token(path: Path) -> int:
    """Returns the bytes of weights that the model reads for a single token: all weights of the file except
    embeddings that are only looked up.
    """
    tensors = gguf.GGUFReader(path).tensors
    is_tied = all(tensor.name != "output.weight" for tensor in tensors)
    return sum(int(t.n_bytes) for t in tensors if is_tied or t.name != "token_embd.weight")


PARTS: dict[str, Callable[[Bench], dict[str, Any]]] = {
    "rows": of_rows,
    "behind": of_behind,
    "prompt": of_prompt,
    "load": of_load,
    "bandwidth": of_bandwidth,
}


def parts(text: str) -> list[str]:
    found = text.split(",")
    for word in found:
        if word not in PARTS:
            raise argparse.ArgumentTypeError(f"{word!r}: expected some of {', '.join(PARTS)}")
    return found


def parse() -> argparse.Namespace:
    parser = arguments(__doc__)
    parser.add_argument("--target", type=Path, action="append", required=True, help="GGUF; repeatable")
    parser.add_argument("--llama-bench", type=Path, help="path of llama-bench, used as a check")
    parser.add_argument(
        "--llama-libs", type=Path, help="folder with another build's libggml-cpu, for llama.cpp"
    )
    parser.add_argument("--ik", type=Path, help="path of ik_llama.cpp's llama-batched-bench")
    parser.add_argument("--only", type=parts, default=list(PARTS), help=f"some of {','.join(PARTS)}")
    parser.add_argument(
        "--option", type=option, action="append", default=[], help="NAME=VALUE for our engines"
    )
    parser.add_argument("--turns", type=int, default=6)
    parser.add_argument("--repeats", type=int, default=5, help="number of batches in a turn")
    parser.add_argument("--threads", type=int, default=0, help="0 = number of physical cores")
    parser.add_argument(
        "--processor-time",
        action="store_true",
        help="processor time of prompts of 512 tokens, for busy machines; use --threads 1",
    )
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    info = system_info()
    args.threads = args.threads or info["n_cores"]
    args.repack = not info["amx"]["claimed"] or info["amx"]["works"]
    return args


def main() -> None:
    args = parse()
    warn_if_busy()
    kernels = system_info()["kernels"]
    print(f"{cpu_name()}; our kernels: {kernels['table'] if kernels['active'] else 'off'}")
    result = facts({path.stem: path for path in args.target}, options=dict(args.option))
    for part in args.only:
        for path in args.target:
            note(f"{path.stem}: {part}")
            print(f"\n## {path.stem}: {part}\n", flush=True)
            result[f"{path.stem} {part}"] = PARTS[part](Bench(args, path))
    write_json(args.json, result)


if __name__ == "__main__":
    main()
