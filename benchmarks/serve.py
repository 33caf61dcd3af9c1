# SPDX-License-Identifier: MIT
"""Measures many users at once: `eaglecpp serve` and llama-server, in turns, on one machine.

    python benchmarks/serve.py --server llama-server --target T.gguf --draft D.gguf --users 1,4,16
           --json R.json
    python benchmarks/serve.py --report R.json --picture serve.png

All users ask for one streamed completion of fixed length at the same time. For each number of users the
script prints total tokens per second, two ratios of the slowest user's speed, the time to the first token
(median and 95th percentile), and the ratios of our numbers to llama-server's. The first ratio compares the
slowest user's speed with the mean speed of our users. This ratio falls if drafting helps some users more than
others. The second ratio compares the slowest user's speed with a user's mean speed under llama-server's
target-only decoding. This ratio falls only if some users become slower. Prompts are token ids, different for
every user and every turn, so that no cache contains them. Both servers may share a common system prompt,
unless --no-cache is given. llama-server decodes target-only with as many slots as users (`-np`, `-cb`).
--their-draft also runs llama-server's own drafting with each of --depths, and the best depth counts.

Runs with the same --json file add their measurements to this file, so that the machine need not stay quiet
for all runs at once. A measurement with the same target, users, prompt length and temperature replaces the
earlier measurement. --report prints all measurements. It also draws total speed relative to llama-server's
target-only decoding, with published results of others as dashed lines.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import importlib.util
import json
import statistics
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from common import arguments, facts, note, read_prompts, table, warn_if_busy, write_json
from llama_server import LlamaServer, our_server

import eaglecpp

SECONDS = 600
N_WIDE = 3  # number of panels next to each other in the chart
N_WARM = 8  # number of tokens of the warm-up turn
OURS, PLAIN, DRAFTS = "eaglecpp", "llama-server", "llama-server, drafts"
PUBLISHED = {
    "Kimi-K2.6, EAGLE 3.1, vLLM": ([1, 4, 16], [2.03, 1.71, 1.66]),
    "MiniMax-M3, EAGLE 3.1, ATOM": ([4, 8, 16, 32], [1.63, 1.43, 1.42, 1.23]),
    "Qwen3-14B, EAGLE-3, TensorRT-LLM": ([1, 4, 16], [2.05, 2.06, 1.66]),
}
"""Published results: numbers of users, and speed relative to target-only decoding of the same server."""


@dataclass(frozen=True)
class Run:
    """Result of parallel users. tokens_s: tokens per second of all users together; least: the slowest user's
    speed, divided by the mean speed; least_tokens_s: the slowest user's tokens per second.
    """

    tokens_s: float
    least: float
    least_tokens_s: float
    first_s: float
    first_p95_s: float
    accepted: float


async def one_user(
    port: int, prompt: Sequence[int], n_tokens: int, temperature: float, cache: bool
) -> tuple[float, float, int, int]:
    """Sends a request as one user, over a socket. Returns the times of the first and the last token, the
    number of tokens, and the number of accepted drafts.
    """
    body = json.dumps({
        "model": "target", "prompt": list(prompt), "max_tokens": n_tokens, "n_predict": n_tokens,
        "stream": True,
        "temperature": temperature, "seed": 1, "options": {"ignore_eos": True}, "ignore_eos": True,
        "cache_prompt": cache,
    }).encode()  # fmt: skip
    started = time.perf_counter()
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(
        b"POST /v1/completions HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
        b"Connection: close\r\nContent-Length: %d\r\n\r\n" % len(body) + body
    )
    first = last = 0.0
    n_out, n_accepted = n_tokens, 0
    status = await reader.readline()
    if b" 200 " not in status:
        raise RuntimeError(f"{status!r} {await reader.read()!r}")
    async for line in reader:
        if not line.startswith(b"data: {"):
            continue
        payload = json.loads(line[6:])
        if "error" in payload:
            raise RuntimeError(payload["error"])
        if payload.get("timings"):
            n_out = payload["timings"]["predicted_n"]
            n_accepted = payload["timings"].get("draft_n_accepted", 0)
        choice = payload["choices"][0] if payload["choices"] else {"finish_reason": "stop"}
        if choice.get("text") or not choice.get("finish_reason"):  # some tokens have no text
            last = time.perf_counter() - started
            first = first or last
    writer.close()
    return first, last, n_out, n_accepted


async def ask_together(
    port: int, prompts: Sequence[Sequence[int]], n_tokens: int, temperature: float, cache: bool
) -> Run:
    started = time.perf_counter()
    asked = (one_user(port, prompt, n_tokens, temperature, cache) for prompt in prompts)
    ended = await asyncio.wait_for(asyncio.gather(*asked), SECONDS)
    took = time.perf_counter() - started
    speeds = [n / last for _, last, n, _ in ended]
    firsts = sorted(first for first, _, _, _ in ended)
    n_all = sum(n for _, _, n, _ in ended)
    return Run(
        tokens_s=n_all / took,
        least=min(speeds) / statistics.mean(speeds),
        least_tokens_s=min(speeds),
        first_s=statistics.median(firsts),
        first_p95_s=firsts[min(len(firsts) - 1, int(0.95 * len(firsts)))],
        accepted=sum(n for _, _, _, n in ended) / n_all,
    )


@contextlib.contextmanager
def ours(args: argparse.Namespace, n_users: int) -> Iterator[int]:
    """Runs `eaglecpp serve` with a slot for every user."""
    draft = ["--draft", args.draft] if args.draft else []
    sizes = ("-np", n_users, "-c", args.n_ctx, "-t", args.threads)
    with our_server(args.target, *draft, *sizes) as (port, _):
        yield port


@contextlib.contextmanager
def theirs(args: argparse.Namespace, n_users: int, *, depth: int = 0) -> Iterator[int]:
    """Runs llama-server with a slot for every user. depth: number of drafted tokens, 0 = no drafting."""
    extra = ["-np", str(n_users), "-cb"]
    with LlamaServer(
        args.server,
        args.target,
        draft=args.their_draft if depth else None,
        n_max=depth,
        n_ctx=args.n_ctx * n_users,
        n_threads=args.threads,
        extra=extra,
    ) as server:
        yield server.port


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--server", type=Path)
    parser.add_argument("--target", type=Path)
    parser.add_argument("--draft", type=Path)
    parser.add_argument(
        "--their-draft", type=Path, help="drafter for llama-server, which reads EAGLE-3 but not 3.1"
    )
    parser.add_argument("--depths", default="1,2,3,5", help="numbers of drafts; the best counts")
    parser.add_argument("--users", default="1,4,16")
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--prompt-tokens", type=int, default=100)
    parser.add_argument(
        "--prompts",
        type=Path,
        help="questions (JSONL, see questions.py) or JSON with prompt_ids; default: random tokens",
    )
    parser.add_argument("--temperature", type=float, default=0.0)
    parser.add_argument("--no-cache", action="store_true", help="read every prompt in full")
    parser.add_argument("--turns", type=int, default=2)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--n-ctx", type=int, default=1024)
    parser.add_argument("--json", type=Path, help="file to which results are added")
    parser.add_argument("--report", type=Path, help="only print the results in this file")
    parser.add_argument("--picture", type=Path, help="PNG file for a chart of the results in --report")
    args = parser.parse_args()
    if args.report:
        runs = json.loads(args.report.read_text(encoding="utf-8"))["runs"]
        print_runs(runs)
        if args.picture:
            draw(args.picture, runs)
        return
    if not args.server or not args.target:
        parser.error("--server and --target are needed to measure")
    warn_if_busy()
    for n_users in map(int, args.users.split(",")):
        found = measure(args, n_users)
        print_runs(found)
        if args.json:
            add(args, found)


def measure(args: argparse.Namespace, n_users: int) -> list[dict[str, Any]]:
    """Measures all servers in turns. Returns a row of results for each server."""
    prompts = make_prompts(args, n_users)
    kinds = {OURS: ours(args, n_users), PLAIN: theirs(args, n_users)}
    if args.their_draft:
        kinds |= {
            f"{DRAFTS} of {n}": theirs(args, n_users, depth=n) for n in map(int, args.depths.split(","))
        }
    runs: dict[str, list[Run]] = {}
    with contextlib.ExitStack() as stack:
        ports = {name: stack.enter_context(kind) for name, kind in kinds.items()}
        for turn in range(args.turns + 1):  # the first turn is a warm-up
            for name, port in ports.items():
                # No cache contains these prompts.
                fresh = [[*ids[:1], 200 + turn, *ids[1:]] for ids in prompts]
                n_tokens = args.tokens if turn else min(args.tokens, N_WARM)
                run = asyncio.run(ask_together(port, fresh, n_tokens, args.temperature, not args.no_cache))
                if turn:
                    runs.setdefault(name, []).append(run)
    prompt = args.prompts.stem if args.prompts else f"{args.prompt_tokens} tokens"
    what = {"target": args.target.stem, "temperature": args.temperature, "users": n_users,
            "prompt": prompt, "tokens": args.tokens}  # fmt: skip
    rows = []
    for name, of_kind in runs.items():
        each = zip(*(asdict(run).values() for run in of_kind), strict=True)
        middle = Run(*(statistics.median(values) for values in each))
        rows.append({**what, "server": name, **asdict(middle)})
    best = max(
        (row for row in rows if row["server"].startswith(DRAFTS)),
        key=lambda row: row["tokens_s"],
        default=None,
    )
    return [row for row in rows if not row["server"].startswith(DRAFTS)] + (
        [{**best, "server": DRAFTS, "drafts": best["server"]}] if best else []
    )


def add(args: argparse.Namespace, found: Sequence[dict[str, Any]]) -> None:
    """Adds rows to the --json file. A row replaces an earlier row of the same measurement."""
    models = {"target": args.target} | ({"draft": args.draft} if args.draft else {})
    result = facts(models, threads=args.threads, turns=args.turns, depths=args.depths)
    if args.json.exists():
        old = json.loads(args.json.read_text(encoding="utf-8"))
        new = {key_of(row) for row in found}
        found = [row for row in old["runs"] if key_of(row) not in new] + list(found)
        result["models"] = old["models"] | {args.target.stem: result["models"]["target"]}
    result["runs"] = sorted(found, key=key_of)
    write_json(args.json, result)


def key_of(row: dict[str, Any]) -> tuple[Any, ...]:
    return row["target"], row["prompt"], row["temperature"], row["users"], row["server"]


def print_runs(runs: Sequence[dict[str, Any]]) -> None:
    by_key = {key_of(row): row for row in runs}

    def of(row: dict[str, Any], name: str) -> dict[str, Any]:
        """Returns the row of another server for the same measurement; an empty row for the server itself."""
        return by_key.get((*key_of(row)[:-1], name), {}) if name != row["server"] else {}

    def over(row: dict[str, Any], name: str, field: str) -> str:
        other = of(row, name).get(field)
        return f"{row[field] / other:.2f}" if other else ""

    def share(row: dict[str, Any]) -> str:
        other = of(row, PLAIN).get("tokens_s")
        return f"{row['least_tokens_s'] * row['users'] / other:.2f}" if other else ""

    head = [
        "target",
        "prompt",
        "temp",
        "users",
        "server",
        "tokens/s",
        "over plain",
        "over drafts",
        "least user",
        "over plain's mean",
    ]
    head += ["first token, s", "p95, s", "over plain's", "p95", "from drafts"]
    rows = []
    for row in runs:
        server = row.get("drafts", row["server"])
        what = [row["target"], row["prompt"], f"{row['temperature']:g}", row["users"], server]
        speed = [
            f"{row['tokens_s']:.1f}",
            over(row, PLAIN, "tokens_s"),
            over(row, DRAFTS, "tokens_s"),
            f"{row['least']:.2f}",
            share(row),
        ]
        first = [
            row["first_s"],
            row["first_p95_s"],
            over(row, PLAIN, "first_s"),
            over(row, PLAIN, "first_p95_s"),
        ]
        rows.append([*what, *speed, *first, f"{row['accepted']:.0%}"])
    print(table(head, rows), flush=True)


def draw(path: Path, runs: Sequence[dict[str, Any]]) -> None:
    """Draws total speed relative to llama-server's target-only decoding, by number of users. There is a panel
    for each target and temperature.
    """
    if importlib.util.find_spec("matplotlib") is None:
        raise SystemExit("--picture needs matplotlib: pip install matplotlib")
    from matplotlib.figure import Figure

    speed = {key_of(row): row["tokens_s"] for row in runs}
    users_of: dict[tuple[Any, ...], set[int]] = {}
    for row in runs:
        users_of.setdefault(key_of(row)[:3], set()).add(row["users"])
    panels = [key for key, users in sorted(users_of.items()) if len(users) > 1]
    n_rows = (len(panels) + N_WIDE - 1) // N_WIDE
    figure = Figure(figsize=(10, 3.2 * n_rows), layout="constrained")
    axes = figure.subplots(n_rows, min(N_WIDE, len(panels)), squeeze=False, sharey=True).flat
    for axis in axes[len(panels) :]:
        axis.set_visible(False)
    for axis, panel in zip(axes, panels, strict=False):
        for name, style in ((OURS, "o-"), (DRAFTS, "s-")):
            users = [n for n in sorted(users_of[panel]) if (*panel, n, name) in speed]
            heights = [speed[*panel, n, name] / speed[*panel, n, PLAIN] for n in users]
            axis.plot(users, heights, style, label=name)
        for title, (users, heights) in PUBLISHED.items():
            axis.plot(users, heights, "--", linewidth=0.8, label=title)
        axis.axhline(1.0, color="black", linewidth=0.8)
        axis.set_xscale("log", base=2)
        axis.set_xticks(range_of_users := sorted({row["users"] for row in runs}), range_of_users)
        axis.set_title(f"{panel[0]}, temperature {panel[2]:g}", fontsize=9)
        axis.set_xlabel("users")
    axes[0].set_ylim(bottom=0)
    axes[0].legend(fontsize=6)
    figure.supylabel("total speed over target-only decoding", fontsize=9)
    figure.savefig(path, dpi=100)
    note(f"wrote {path}")


def make_prompts(args: argparse.Namespace, n_users: int) -> list[list[int]]:
    if args.prompts:
        with eaglecpp.Engine.open(args.target, draft=None, n_ctx=512) as engine:
            ids = [prompt.ids for prompt in read_prompts(args.prompts, engine)]
        return [ids[i % len(ids)] for i in range(n_users)]
    n = args.prompt_tokens
    return [[100 + (7919 * (i + 1) * (j + 1)) % 5000 for j in range(n)] for i in range(n_users)]


if __name__ == "__main__":
    main()
