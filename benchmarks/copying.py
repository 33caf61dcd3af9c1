# SPDX-License-Identifier: MIT
"""Sampled drafts and drafts from the text itself: every goal in one run, as ratios, each reached or not.

    python benchmarks/copying.py --target wide-Q8_0.gguf --draft wide-eagle31.gguf --llama-server llama-server
    python benchmarks/copying.py --target smollm2-Q8_0.gguf --llama-server llama-server
    python benchmarks/copying.py --target T.gguf --draft D.gguf --only copy,off --n-tokens 96 --limit 4

Parts, chosen with `--only`:

lengths  acceptance length of chains of five with shared noise, at 0.8, and at 1.0 without top-k (--draft)
sampled  `auto` at 0.8 over `auto` greedy, over llama.cpp's plain and its best setting (needs --draft and a
         server for the last two)
copy     the copy-heavy prompts of benchmarks/data/copy.jsonl, greedy: drafts from the text without a drafter
         and beside one, over our plain decoding; over llama.cpp's `ngram-mod` and `ngram-simple` (needs a
         server)
off      other text (the standard library's code, and prose): drafts from the text on against off; beside
         the drafter, without one over plain decoding

All contestants are loaded at once and take turns prompt by prompt. A figure is the median of the prompts'
ratios of tokens per second; for copies, and for on against off, the ratio of all tokens to all time. Before
anything counts each runs the first prompt once. Run it on a machine that does nothing else. Exit code 1 when
a goal is missed.
"""

from __future__ import annotations

import argparse
import contextlib
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from common import arguments, facts, median, note, table, warn_if_busy, write_json
from llama_server import LlamaServer
from prompt_sets import make_prompts

import eaglecpp

DATA = Path(__file__).with_name("data") / "copy.jsonl"
PARTS = ("lengths", "sampled", "copy", "off")
N_MAX = (2, 4)  # of llama.cpp's draft-eagle3
NGRAMS = ("ngram-mod", "ngram-simple")
N_PROMPT = 64  # tokens; the prose has no more under a large vocabulary
WARM: dict[str, Any] = {"temperature": 0.8, "top_k": 40, "top_p": 0.95, "min_p": 0.05}
OFF = {"top_p": 1.0, "min_p": 0.0}

Run = Callable[[Sequence[int], dict[str, Any]], dict[str, Any]]  # prompt, sampling and seed -> timings


@dataclass(frozen=True)
class Goal:
    """One line of the table."""

    name: str
    found: float
    least: float

    @property
    def row(self) -> list[str]:
        verdict = "reached" if self.found >= self.least else "missed"
        return [self.name, f"{self.found:.3f}", f"{self.least:g}", verdict]


def parse() -> argparse.Namespace:
    parser = arguments(__doc__)
    parser.add_argument("--target", type=Path, required=True)
    parser.add_argument("--draft", type=Path, help="its drafter; without one only the text is drafted from")
    parser.add_argument("--llama-server", type=Path)
    parser.add_argument("--only", default=",".join(PARTS))
    parser.add_argument("--n-tokens", type=int, default=128)
    parser.add_argument("--limit", type=int, help="first N prompts of each set only")
    parser.add_argument("--repeats", type=int, default=1)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--without-kernels", action="store_true", help="ggml's own kernels, and their goals")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    args.parts = args.only.split(",")
    unknown = set(args.parts) - set(PARTS)
    if unknown:
        parser.error(f"--only: expected some of {','.join(PARTS)}, found {','.join(sorted(unknown))}")
    return args


class Field:
    """Contestants by name, opened when they are first needed."""

    def __init__(self, args: argparse.Namespace, stack: contextlib.ExitStack) -> None:
        self.args, self.stack = args, stack
        self.runs: dict[str, Run] = {}
        self.speeds: dict[tuple[str, str], list[float]] = {}
        self.base = self.engine()

    def engine(self, draft: Path | str | None = None, **options: Any) -> eaglecpp.Engine:
        kernels = "off" if self.args.without_kernels else "auto"
        return self.stack.enter_context(
            eaglecpp.Engine.open(
                self.args.target,
                draft,
                n_ctx=2048,
                n_threads=self.args.threads,
                kernels=kernels,
                planner_cache=False,
                **options,
            )
        )

    def ours(self, name: str, draft: Path | str | None = None, **options: Any) -> str:
        if name not in self.runs:
            engine = self.base if draft is None and not options else self.engine(draft, **options)

            def run(prompt: Sequence[int], sampling: dict[str, Any]) -> dict[str, Any]:
                with engine.session() as session:
                    return session.generate(
                        list(prompt), max_tokens=self.args.n_tokens, ignore_eos=True, **sampling
                    ).timings.as_dict()

            self.runs[name] = run
        return name

    def theirs(self, name: str, *extra: str, draft: Path | None = None, n_max: int = 0) -> str:
        if name not in self.runs:
            server = self.stack.enter_context(
                LlamaServer(
                    self.args.llama_server,
                    self.args.target,
                    draft=draft,
                    n_max=n_max,
                    n_ctx=2048,
                    n_threads=self.args.threads,
                    extra=extra,
                )
            )

            def run(prompt: Sequence[int], sampling: dict[str, Any]) -> dict[str, Any]:
                return server.complete_and_rest(prompt, self.args.n_tokens, **sampling).timings

            self.runs[name] = run
        return name

    def race(
        self, names: Sequence[str], prompts: Sequence[Sequence[int]], sampling: dict[str, Any]
    ) -> dict[str, list[tuple[float, int]]]:
        """(ms, tokens) of each prompt by name, in turns, with another seed for each repeat."""
        found: dict[str, list[tuple[float, int]]] = {name: [] for name in names}
        for name in names:
            self.runs[name](prompts[0], sampling | {"seed": 1})
        for seed in range(1, 1 + self.args.repeats):
            for i, prompt in enumerate(prompts):
                for name in names if (seed + i) % 2 else reversed(names):
                    timings = self.runs[name](prompt, sampling | {"seed": seed})
                    found[name].append((timings["predicted_ms"], timings["predicted_n"] - 1))
        for name, runs in found.items():
            note(f"{name}: {1000 * sum(n for _, n in runs) / sum(ms for ms, _ in runs):.1f} tokens/s")
        return found


def over(ours: list[tuple[float, int]], theirs: list[tuple[float, int]]) -> float:
    """Median of the prompts' ratios."""
    speeds = [[n / ms for ms, n in runs] for runs in (ours, theirs)]
    return median([a / b for a, b in zip(*speeds, strict=True)])


def over_all(ours: list[tuple[float, int]], theirs: list[tuple[float, int]]) -> float:
    """All tokens over all time."""
    speed = [sum(n for _, n in runs) / sum(ms for ms, _ in runs) for runs in (ours, theirs)]
    return speed[0] / speed[1]


def code(field: Field) -> list[list[int]]:
    return make_prompts("code", field.base, field.args.limit or 6, N_PROMPT, seed=1)


def lengths(field: Field) -> list[Goal]:
    """As in coupled.py, which looks at more temperatures."""
    if field.args.draft is None:
        return []
    engine = field.engine(field.args.draft, strategy="chain:5", exact="off")
    goals = []
    for name, least, sampling in (
        ("0.8", 2.4, OFF | {"temperature": 0.8, "top_k": 40}),
        ("1.0, no top-k", 2.2, OFF | {"temperature": 1.0, "top_k": 0}),
    ):
        n_tokens = n_rounds = 0
        for i, prompt in enumerate(code(field)):
            with engine.session() as session:
                done = session.generate(
                    prompt, max_tokens=field.args.n_tokens, seed=i, ignore_eos=True, **sampling
                )
            n_tokens += done.timings.predicted_n - 1
            n_rounds += done.timings.rounds
        goals.append(Goal(f"acceptance length, chain of 5, temperature {name}", n_tokens / n_rounds, least))
    return goals


def sampled(field: Field) -> list[Goal]:
    args = field.args
    if args.draft is None:
        return []
    auto, prompts = field.ours("auto", args.draft), code(field)
    names, rivals = [auto], []
    if args.llama_server is not None:
        names.append(field.theirs("llama.cpp"))
        rivals = [
            field.theirs(f"llama.cpp eagle3 {n}", draft=args.draft, n_max=n) for n in N_MAX if reads(args)
        ]
        rivals.append(field.theirs("llama.cpp ngram-mod", "--spec-type", "ngram-mod"))
    warm = field.race([*names, *rivals], prompts, WARM)
    greedy = field.race([auto], prompts, {"temperature": 0.0})
    goals = [Goal("auto at 0.8 over auto greedy", over(warm[auto], greedy[auto]), 0.92)]
    if args.llama_server is not None:
        plain = over(warm[auto], warm["llama.cpp"])
        goals.append(Goal("auto at 0.8 over llama.cpp's plain", plain, 1.8 if args.without_kernels else 4.0))
        best = min(over(warm[auto], warm[rival]) for rival in [names[1], *rivals])
        goals.append(Goal("auto at 0.8 over llama.cpp's best", best, 1.25 if args.without_kernels else 2.0))
    return goals


def reads(args: argparse.Namespace) -> bool:
    """llama.cpp reads EAGLE-3 drafters only."""
    return "eagle3" in args.draft.stem and "eagle31" not in args.draft.stem


def copies(field: Field) -> list[Goal]:
    args = field.args
    entries = [json.loads(line) for line in DATA.read_text(encoding="utf-8").splitlines()][: args.limit]
    prompts = [field.base.tokenize(entry["prompt"]) for entry in entries]
    plain, text = field.ours("plain"), field.ours("text", "text")
    names = [plain, text]
    if args.draft is not None:
        names.append(field.ours("auto", args.draft))
    if args.llama_server is not None:
        names += [field.theirs(f"llama.cpp {kind}", "--spec-type", kind) for kind in NGRAMS]
    found = field.race(names, prompts, {"temperature": 0.0})
    goals = [Goal("copies, no drafter, over plain", over_all(found[text], found[plain]), 2.0)]
    if args.draft is not None:
        goals.append(Goal("copies, with drafter, over plain", over_all(found["auto"], found[plain]), 2.5))
    if args.llama_server is not None:
        for kind in NGRAMS:
            ratio = over_all(found[text], found[f"llama.cpp {kind}"])
            goals.append(Goal(f"copies, no drafter, over llama.cpp's {kind}", ratio, 1.1))
    return goals


def off(field: Field) -> list[Goal]:
    args, goals = field.args, []
    prose = make_prompts("prose", field.base, args.limit or 6, N_PROMPT, seed=1)
    arms = [(field.ours("text", "text"), field.ours("plain"), "no drafter")]
    if args.draft is not None:
        on = field.ours("auto", args.draft)
        arms.append((on, field.ours("auto, text off", args.draft, text_drafts="off"), "with drafter"))
    for kind, prompts in (("code", code(field)), ("prose", prose)):
        for one, other, who in arms:
            for sampling in ({"temperature": 0.0}, WARM):
                found = field.race([one, other], prompts, sampling)
                name = f"{kind} at {sampling['temperature']}, {who}: drafts from the text on over off"
                goals.append(Goal(name, over_all(found[one], found[other]), 0.995))
    return goals


def main() -> int:
    args = parse()
    warn_if_busy()
    models = {"target": args.target} | ({"draft": args.draft} if args.draft else {})
    result = facts(models, n_tokens=args.n_tokens, kernels=not args.without_kernels)
    goals: list[Goal] = []
    with contextlib.ExitStack() as stack:
        field = Field(args, stack)
        for part, run in zip(PARTS, (lengths, sampled, copies, off), strict=True):
            if part in args.parts:
                goals += run(field)
    print(table(["goal", "found", "at least", ""], [goal.row for goal in goals]))
    result["goals"] = [vars(goal) for goal in goals]
    write_json(args.json, result)
    return 0 if all(goal.found >= goal.least for goal in goals) else 1


if __name__ == "__main__":
    raise SystemExit(main())
