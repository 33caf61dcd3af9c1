# SPDX-License-Identifier: MIT
"""Many users at once: `eaglecpp serve` beside llama-server, in turns, on one machine.

    python benchmarks/serve.py --server llama-server --target T.gguf --draft D.gguf --users 1,4,16

Every user asks for one streamed completion of fixed length at the same time. Shown for each number of users:
tokens per second of all together, the slowest user's speed over the mean, the time to the first token (median
and 95th percentile), and ours over theirs. Prompts are token ids, different for every user and every turn, so
that nothing is found in a cache. llama-server runs plainly with as many slots as users (`-np`, `-cb`);
--best-draft also runs its own drafting, where it can load the drafter.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from llama_server import LlamaServer, free_port

SECONDS = 600


@dataclass(frozen=True)
class Run:
    """One crowd of users. tokens_s: of all together; least: the slowest user's speed over the mean."""

    tokens_s: float
    least: float
    first_s: float
    first_p95_s: float
    accepted: float


async def one_user(
    port: int, prompt: Sequence[int], n_tokens: int, temperature: float
) -> tuple[float, float, int, int]:
    """Asks over a plain socket; returns the times of the first and the last token, their number, and how many
    of them were drafted.
    """
    body = json.dumps({
        "model": "target", "prompt": list(prompt), "max_tokens": n_tokens, "n_predict": n_tokens,
        "stream": True,
        "temperature": temperature, "seed": 1, "options": {"ignore_eos": True}, "ignore_eos": True,
        "cache_prompt": False,
    }).encode()  # fmt: skip
    started = time.perf_counter()
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(
        b"POST /v1/completions HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
        b"Connection: close\r\nContent-Length: %d\r\n\r\n" % len(body) + body
    )
    first = last = 0.0
    n_out, n_accepted = n_tokens, 0
    async for line in reader:
        if not line.startswith(b"data: {"):
            continue
        told = json.loads(line[6:])
        if "error" in told:
            raise RuntimeError(told["error"])
        if told.get("timings"):
            n_out = told["timings"]["predicted_n"]
            n_accepted = told["timings"].get("draft_n_accepted", 0)
        if told["choices"] and told["choices"][0].get("text"):
            last = time.perf_counter() - started
            first = first or last
    writer.close()
    return first, last, n_out, n_accepted


async def crowd(port: int, prompts: Sequence[Sequence[int]], n_tokens: int, temperature: float) -> Run:
    started = time.perf_counter()
    asked = (one_user(port, prompt, n_tokens, temperature) for prompt in prompts)
    ended = await asyncio.wait_for(asyncio.gather(*asked), SECONDS)
    took = time.perf_counter() - started
    speeds = [n / last for _, last, n, _ in ended]
    firsts = sorted(first for first, _, _, _ in ended)
    n_all = sum(n for _, _, n, _ in ended)
    return Run(
        tokens_s=n_all / took,
        least=min(speeds) / statistics.mean(speeds),
        first_s=statistics.median(firsts),
        first_p95_s=firsts[min(len(firsts) - 1, int(0.95 * len(firsts)))],
        accepted=sum(n for _, _, _, n in ended) / n_all,
    )


@contextlib.contextmanager
def ours(args: argparse.Namespace, n_users: int) -> Iterator[int]:
    """`eaglecpp serve` with a place for every user."""
    port = free_port()
    draft = ["--draft", str(args.draft)] if args.draft else []
    with tempfile.TemporaryDirectory() as folder:
        link = Path(folder, "target.gguf")  # its name is the model's
        link.symlink_to(args.target.resolve())
        command = [sys.executable, "-m", "eaglecpp", "serve", str(link), *draft, "--port", str(port),
                   "-np", str(n_users), "-c", str(args.n_ctx), "-t", str(args.threads)]  # fmt: skip
        log = Path(folder, "log")
        environment = {**os.environ, "EAGLECPP_MODELS": folder}
        with log.open("w") as out:
            process = subprocess.Popen(command, stdout=out, stderr=out, env=environment)
        try:
            for _ in range(10 * SECONDS):
                with contextlib.suppress(OSError):
                    import urllib.request

                    urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=SECONDS).close()
                    break
                if process.poll() is not None:
                    raise SystemExit(f"eaglecpp serve ended:\n{log.read_text()}")
                time.sleep(0.1)
            yield port
        finally:
            process.send_signal(signal.SIGINT)
            process.wait(60)


@contextlib.contextmanager
def theirs(args: argparse.Namespace, n_users: int, *, drafts: bool = False) -> Iterator[int]:
    """llama-server with a slot for every user."""
    extra = ["-np", str(n_users), "-cb", "--no-cache-prompt"]
    with LlamaServer(
        args.server,
        args.target,
        draft=args.draft if drafts else None,
        n_max=args.depth if drafts else 0,
        n_ctx=args.n_ctx * n_users,
        n_threads=args.threads,
        extra=extra,
    ) as server:
        yield server.port


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--server", type=Path, required=True)
    parser.add_argument("--target", type=Path, required=True)
    parser.add_argument("--draft", type=Path)
    parser.add_argument("--best-draft", action="store_true", help="llama-server with draft-eagle3, too")
    parser.add_argument("--depth", type=int, default=3, help="of llama-server's drafts")
    parser.add_argument("--users", default="1,4,16")
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--prompt-tokens", type=int, default=100)
    parser.add_argument(
        "--prompts", type=Path, help="JSON with prompt_ids; without it, tokens that mean nothing"
    )
    parser.add_argument("--temperature", type=float, default=0.0)
    parser.add_argument("--turns", type=int, default=2)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--n-ctx", type=int, default=1024)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    results = []
    print(
        "| users | server | tokens/s | least user | first token | p95 | from drafts |\n" + "| --- " * 7 + "|"
    )
    for n_users in map(int, args.users.split(",")):
        prompts = make_prompts(args, n_users)
        kinds = {"eaglecpp": ours(args, n_users), "llama-server": theirs(args, n_users)}
        if args.best_draft:
            kinds["llama-server, drafts"] = theirs(args, n_users, drafts=True)
        runs: dict[str, list[Run]] = {}
        with contextlib.ExitStack() as stack:
            ports = {name: stack.enter_context(kind) for name, kind in kinds.items()}
            for turn in range(args.turns + 1):  # the first warms up
                for name, port in ports.items():
                    fresh = [[*ids[:1], 200 + turn, *ids[1:]] for ids in prompts]  # in no cache yet
                    run = asyncio.run(crowd(port, fresh, args.tokens, args.temperature))
                    if turn:
                        runs.setdefault(name, []).append(run)
        for name, of_kind in runs.items():
            middle = Run(
                *(
                    statistics.median(values)
                    for values in zip(*(asdict(r).values() for r in of_kind), strict=True)
                )
            )
            results.append({"users": n_users, "server": name, **asdict(middle)})
            print(f"| {n_users} | {name} | {middle.tokens_s:.1f} | {middle.least:.2f} | "
                  f"{middle.first_s:.2f} s | "
                  f"{middle.first_p95_s:.2f} s | {middle.accepted:.0%} |", flush=True)  # fmt: skip
    if args.json:
        args.json.write_text(
            json.dumps({"arguments": {k: str(v) for k, v in vars(args).items()}, "runs": results})
        )


def make_prompts(args: argparse.Namespace, n_users: int) -> list[list[int]]:
    if args.prompts:
        entries = json.loads(args.prompts.read_text(encoding="utf-8"))["prompts"]
        ids = [entry["prompt_ids"] for entry in entries]
        return [ids[i % len(ids)] for i in range(n_users)]
    n = args.prompt_tokens
    return [[100 + (7919 * (i + 1) * (j + 1)) % 5000 for j in range(n)] for i in range(n_users)]


if __name__ == "__main__":
    main()
