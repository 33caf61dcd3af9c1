# SPDX-License-Identifier: MIT
"""Where the time of a round goes: the target's verification, the drafter, everything else.

    python benchmarks/anatomy.py --target T.gguf --draft D.gguf [--prompts FILE] [--json OUT]
    python benchmarks/anatomy.py --target T.gguf --draft D.gguf --other OTHER.gguf [--other ...]

All strategies run on the same prompts in turns, in one engine with the drafter; plain decoding also in one
without. Times are the engine's own, the best of the repeats; what neither verification nor drafter took is
`native` inside the extension (sampling, the planner, committing) and `Python` outside (binding, text). The
second table has verification behind longer prompts: attention makes every row cost more with each token
of the conversation. With `--other`, drafters of other types or shapes are compared instead, chain by chain.
"""

from __future__ import annotations

import argparse
import contextlib
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from common import arguments, facts, read_prompts, table, warn_if_busy, write_json
from prompt_sets import make_prompts

import eaglecpp
from eaglecpp.engine.sequence import NativeSequence

K = TypeVar("K", str, tuple[str, str])
DEPTHS = (0, 1, 2, 3)
CHAINS = (1, 3, 5)
N_PROMPT, N_LONG = 64, 320  # tokens
HEAD = ("tokens per round", "ms per round", "verify", "draft", "native", "Python", "verify's share")


@dataclass(frozen=True)
class Anatomy:
    """Sums over prompts, in milliseconds."""

    rounds: int
    tokens: int
    total: float
    verify: float
    draft: float
    steps: float
    """Inside the extension."""

    def row(self) -> list[Any]:
        native = self.steps - self.verify - self.draft
        per_round = [self.total, self.verify, self.draft, native, self.total - self.steps]
        share = f"{100 * self.verify / self.total:.1f} %"
        return [self.tokens / self.rounds, *(ms / self.rounds for ms in per_round), share]


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--target", type=Path, required=True)
    parser.add_argument("--draft", type=Path, required=True)
    parser.add_argument(
        "--other", type=Path, action="append", help="another drafter of the target to compare it with"
    )
    parser.add_argument("--prompts", type=Path, help="as for compare.py; default: standard library code")
    parser.add_argument("--n-prompts", type=int, default=6)
    parser.add_argument("--n-tokens", type=int, default=64)
    parser.add_argument("--temperature", type=float, default=0.0)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--threads", type=int, default=0)
    parser.add_argument("--n-ctx", type=int, default=1024)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    warn_if_busy()
    options: dict[str, Any] = {"n_ctx": args.n_ctx, "n_threads": args.threads, "planner_cache": False}
    with contextlib.ExitStack() as stack:
        plain = stack.enter_context(eaglecpp.Engine.open(args.target, **options))
        engine = stack.enter_context(eaglecpp.Engine.open(args.target, draft=args.draft, **options))
        if args.prompts:
            prompts = [prompt.ids for prompt in read_prompts(args.prompts, plain, args.n_prompts)]
        else:
            prompts = make_prompts("code", plain, args.n_prompts, N_PROMPT, 1)
        if args.other:
            drafters = {args.draft.name: engine}
            for path in args.other:
                drafters[path.name] = stack.enter_context(
                    eaglecpp.Engine.open(args.target, draft=path, **options)
                )
            compare_drafters(args, drafters, prompts)
            return
        rounds = of_strategies(args, plain, engine, prompts)
        lengths = of_lengths(args, engine)
    print(table(("strategy", *HEAD), [[name, *one.row()] for name, one in rounds.items()]))
    print()
    head_lengths = (
        "rows",
        f"verify ms, prompt of {N_PROMPT}",
        f"of {N_LONG}",
        "ms per 100 tokens more",
    )
    print(table(head_lengths, [[name, *row] for name, row in lengths.items()]))
    result = {
        "rounds": {name: vars(one) for name, one in rounds.items()},
        "lengths": lengths,
    }
    write_json(args.json, {**facts({"target": args.target, "draft": args.draft}), **result})


def compare_drafters(
    args: argparse.Namespace, drafters: dict[str, eaglecpp.Engine], prompts: list[list[int]]
) -> None:
    """Prints the parts of a round with each drafter, in turns."""
    found = in_turns(
        args,
        {(name, f"chain:{n}"): (engine, f"chain:{n}") for n in CHAINS for name, engine in drafters.items()},
        prompts,
    )
    print(table(("drafter", "strategy", *HEAD), [[*who, *one.row()] for who, one in found.items()]))
    rounds = {" ".join(who): vars(one) for who, one in found.items()}
    paths = {f"draft {i}": path for i, path in enumerate((args.draft, *args.other))}
    write_json(args.json, {**facts({"target": args.target, **paths}), "rounds": rounds})


def of_strategies(
    args: argparse.Namespace, plain: eaglecpp.Engine, engine: eaglecpp.Engine, prompts: list[list[int]]
) -> dict[str, Anatomy]:
    """By strategy."""
    who = {"plain, no drafter": (plain, "off"), "plain": (engine, "off")}
    for strategy in (*(f"chain:{depth}" for depth in range(1, 6)), "auto"):
        who[strategy] = engine, strategy
    return in_turns(args, who, prompts)


def in_turns(
    args: argparse.Namespace, who: dict[K, tuple[eaglecpp.Engine, str]], prompts: list[list[int]]
) -> dict[K, Anatomy]:
    """The fastest repeat of each; the first one builds graphs and does not count."""
    found: dict[K, list[Anatomy]] = {name: [] for name in who}
    for _ in range(args.repeats + 1):
        for name, (one, strategy) in who.items():
            found[name].append(measure(args, one, prompts, strategy=strategy))
    return {name: min(each[1:], key=lambda one: one.total) for name, each in found.items()}


def measure(
    args: argparse.Namespace, engine: eaglecpp.Engine, prompts: list[list[int]], **options: Any
) -> Anatomy:
    rounds = tokens = 0
    total = verify = draft = steps = 0.0
    for prompt in prompts:
        engine.clear()
        with timed_steps() as ms:
            done = engine.generate(
                prompt,
                max_tokens=args.n_tokens,
                temperature=args.temperature,
                seed=1,
                ignore_eos=True,
                **options,
            )
        # the first token comes with the prompt
        rounds += done.timings.plan.get("rounds") or done.timings.predicted_n - 1
        tokens += done.timings.predicted_n - 1
        total += done.timings.predicted_ms
        verify += done.timings.verify_ms
        draft += done.timings.draft_ms
        steps += sum(ms) - done.timings.prompt_ms
    return Anatomy(rounds, tokens, total, verify, draft, steps)


@contextlib.contextmanager
def timed_steps() -> Iterator[list[float]]:
    """Milliseconds of each call of the extension that runs a round or reads a part of the prompt."""
    ms: list[float] = []
    step = NativeSequence.step

    def timed(sequence: NativeSequence, generation: int) -> Any:
        start = time.perf_counter()
        try:
            return step(sequence, generation)
        finally:
            ms.append(1000.0 * (time.perf_counter() - start))

    NativeSequence.step = timed  # type: ignore[method-assign]
    try:
        yield ms
    finally:
        NativeSequence.step = step  # type: ignore[method-assign]


def of_lengths(args: argparse.Namespace, engine: eaglecpp.Engine) -> dict[str, list[float]]:
    """Verification behind short and behind long prompts, and its slope per 100 tokens."""
    ms: dict[tuple[int, int], float] = {}
    for n_prompt in (N_PROMPT, N_LONG):
        prompts = make_prompts("code", engine, min(args.n_prompts, 3), n_prompt, 1)
        for repeat in range(args.repeats + 1):
            for depth in DEPTHS:
                done = measure(args, engine, prompts, strategy=f"chain:{depth}" if depth else "off")
                if repeat:
                    one = done.verify / done.rounds
                    ms[depth, n_prompt] = min(ms.get((depth, n_prompt), one), one)
    return {
        f"{depth + 1}": [a, b, 100 * (b - a) / (N_LONG - N_PROMPT)]
        for depth in DEPTHS
        for a, b in [(ms[depth, N_PROMPT], ms[depth, N_LONG])]
    }


if __name__ == "__main__":
    main()
