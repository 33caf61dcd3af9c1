# SPDX-License-Identifier: MIT
"""Decoding speed: plain, eaglecpp with several strategies and, given its server, llama.cpp, side by side.

    python benchmarks/decode.py --target T.gguf --draft D.gguf --prompts FILE
        [--strategy chain:2 --strategy chain:3 ...] [--llama-server PATH --n-max 2 --n-max 3] [--json OUT]

All runs are greedy and interleaved: one prompt through every configuration, starting with another one each
time, then the next, so that a noisy machine is noisy for all. Only one process decodes at a time; the servers
stay loaded in between. Tokens per second are each engine's own (`predicted_n / predicted_ms`); ratios are
medians of the ratios within one prompt and repetition. "best" takes each prompt's fastest repetition.
"""

from __future__ import annotations

import argparse
import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from common import Prompt, facts, median, note, read_prompts, table, warn_if_busy, write_json
from llama_server import LlamaServer

import eaglecpp

PLAIN, LLAMA_PLAIN = "eaglecpp off", "llama.cpp none"

Generate = Callable[[list[int], int], tuple[list[int], dict[str, Any]]]


@dataclass
class Configuration:
    """One thing to measure; `plain` names the configuration it is a speed-up over."""

    name: str
    plain: str
    generate: Generate
    runs: list[dict[str, Any]] = field(default_factory=list)

    def speeds(self) -> list[float]:
        """Tokens per second of each run, in the order all configurations share."""
        return [1000.0 * run["predicted_n"] / run["predicted_ms"] for run in self.runs]

    def best_speed(self, n_prompts: int) -> float:
        """Tokens per second over all prompts, each at its fastest repetition."""
        fastest: list[tuple[float, int]] = [
            min((run["predicted_ms"], run["predicted_n"]) for run in self.runs[i::n_prompts])
            for i in range(n_prompts)
        ]
        return 1000.0 * sum(n for _, n in fastest) / sum(ms for ms, _ in fastest)

    def drafted(self) -> tuple[int, int]:
        """Tokens drafted and accepted in all runs."""
        return sum(r.get("draft_n", 0) for r in self.runs), sum(
            r.get("draft_n_accepted", 0) for r in self.runs
        )


def ours(engine: eaglecpp.Engine, strategy: str) -> Generate:
    """Runs in a conversation of its own, so that no prefix is reused."""

    def generate(ids: list[int], n_tokens: int) -> tuple[list[int], dict[str, Any]]:
        with engine.session() as session:
            done = session.generate(
                ids, max_tokens=n_tokens, temperature=0.0, strategy=strategy, ignore_eos=True
            )
        return done.tokens, done.timings

    return generate


def theirs(server: LlamaServer) -> Generate:
    def generate(ids: list[int], n_tokens: int) -> tuple[list[int], dict[str, Any]]:
        answer = server.complete(ids, n_tokens)
        return answer.tokens, answer.timings

    return generate


@contextlib.contextmanager
def configurations(args: argparse.Namespace, engine: eaglecpp.Engine) -> Iterator[list[Configuration]]:
    """All that was asked for; servers run until the end."""
    found = [Configuration(PLAIN, PLAIN, ours(engine, "off"))]
    found += [Configuration(f"eaglecpp {s}", PLAIN, ours(engine, s)) for s in args.strategy]
    with contextlib.ExitStack() as stack:
        if args.llama_server:
            for n_max in [0, *args.n_max]:
                note(f"starting llama-server, n_max {n_max}")
                server = LlamaServer(
                    args.llama_server,
                    args.target,
                    draft=args.llama_draft or args.draft,
                    n_max=n_max,
                    n_ctx=args.n_ctx,
                    n_threads=args.threads,
                )
                name = f"llama.cpp draft-eagle3 n={n_max}" if n_max else LLAMA_PLAIN
                found.append(Configuration(name, LLAMA_PLAIN, theirs(stack.enter_context(server))))
        yield found


def measure(found: list[Configuration], prompts: list[Prompt], args: argparse.Namespace) -> dict[str, int]:
    """Runs everything; returns how many prompts gave other tokens than plain eaglecpp, by configuration."""
    differing = dict.fromkeys((c.name for c in found), 0)
    for one in found:  # pages in weights and builds graphs
        one.generate(prompts[0].ids, min(16, args.n_tokens))
    for repeat in range(args.repeats):
        for i, prompt in enumerate(prompts):
            outputs = {}
            first = (repeat * len(prompts) + i) % len(found)
            for one in found[first:] + found[:first]:
                outputs[one.name], timings = one.generate(prompt.ids, args.n_tokens)
                one.runs.append(timings)
            for name, tokens in outputs.items():
                differing[name] += repeat == 0 and tokens != outputs[PLAIN]
            note(
                f"repetition {repeat + 1}, prompt {i + 1}: "
                + ", ".join(f"{c.name} {c.speeds()[-1]:.1f}" for c in found)
            )
    return differing


def ratio(one: Configuration, other: Configuration) -> float:
    """Median of the speed ratios of paired runs."""
    return median(a / b for a, b in zip(one.speeds(), other.speeds(), strict=True))


def summary(found: list[Configuration], differing: dict[str, int], n_prompts: int) -> list[dict[str, Any]]:
    """One row per configuration."""
    by_name = {c.name: c for c in found}
    best = {c.name: c.best_speed(n_prompts) for c in found}
    rows = []
    for one in found:
        n_drafted, n_accepted = one.drafted()
        row: dict[str, Any] = {
            "configuration": one.name,
            "tokens_per_second": median(one.speeds()),
            "over_own_plain": ratio(one, by_name[one.plain]),
            "over_llama_plain": ratio(one, by_name[LLAMA_PLAIN]) if LLAMA_PLAIN in by_name else None,
            "best_tokens_per_second": best[one.name],
            "best_over_own_plain": best[one.name] / best[one.plain],
            "best_over_llama_plain": best[one.name] / best[LLAMA_PLAIN] if LLAMA_PLAIN in best else None,
            "acceptance_rate": n_accepted / n_drafted if n_drafted else None,
            "prompt_ms": median(run["prompt_ms"] for run in one.runs),
            "outputs_differing": differing[one.name],
            "runs": one.runs,
        }
        rows.append(row)
    return rows


def as_table(rows: list[dict[str, Any]], n_prompts: int) -> str:
    head = [
        "configuration",
        "tokens/s",
        "x own plain",
        "x llama.cpp plain",
        "best tokens/s",
        "x own plain",
        "x llama.cpp plain",
        "accepted",
        "prompt ms",
        "other tokens",
    ]
    cells = [
        [
            row["configuration"],
            f"{row['tokens_per_second']:.1f}",
            row["over_own_plain"],
            row["over_llama_plain"] if row["over_llama_plain"] is not None else "",
            f"{row['best_tokens_per_second']:.1f}",
            row["best_over_own_plain"],
            row["best_over_llama_plain"] if row["best_over_llama_plain"] is not None else "",
            f"{100 * row['acceptance_rate']:.0f} %" if row["acceptance_rate"] is not None else "",
            f"{row['prompt_ms']:.0f}",
            f"{row['outputs_differing']} of {n_prompts}",
        ]
        for row in rows
    ]
    return table(head, cells)


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--target", type=Path, required=True)
    parser.add_argument("--draft", type=Path, required=True)
    parser.add_argument("--prompts", type=Path, required=True, help="JSON with a list 'prompts', or a text")
    parser.add_argument("--strategy", action="append", help="repeatable; default chain:2, chain:3, chain:5")
    parser.add_argument("--llama-server", type=Path, default=None, help="llama.cpp's server, for comparison")
    parser.add_argument(
        "--llama-draft", type=Path, default=None, help="drafter for llama.cpp; default: --draft"
    )
    parser.add_argument("--n-max", type=int, action="append", help="repeatable; default 2 and 3")
    parser.add_argument("--n-prompts", type=int, default=6)
    parser.add_argument("--n-tokens", type=int, default=96)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--n-ctx", type=int, default=1024)
    parser.add_argument("--json", type=Path, default=None)
    args = parser.parse_args()
    args.strategy = args.strategy or ["chain:2", "chain:3", "chain:5"]
    args.n_max = args.n_max or [2, 3]
    return args


def main() -> None:
    args = parse()
    warn_if_busy()
    with (
        eaglecpp.Engine.open(
            args.target,
            draft=args.draft,
            strategy="off",
            n_ctx=args.n_ctx,
            n_threads=args.threads,
            n_draft_max=64,
            n_leaves_max=16,
        ) as engine,
        configurations(args, engine) as found,
    ):
        prompts = read_prompts(args.prompts, engine, args.n_prompts)
        result = facts({"target": args.target, "draft": args.draft}, seed=None, threads=args.threads)
        differing = measure(found, prompts, args)
    result["rows"] = summary(found, differing, len(prompts))
    print(as_table(result["rows"], len(prompts)))
    write_json(args.json, result)


if __name__ == "__main__":
    main()
