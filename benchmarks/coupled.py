# SPDX-License-Identifier: MIT
"""Coupled sampling: do drafts agree with sampled text, is the planner's belief true, what does a draw cost?

    python benchmarks/coupled.py --target T-Q8_0.gguf --draft A.gguf --draft B.gguf --prompts prompts.json
    python benchmarks/coupled.py --target T-Q8_0.gguf --draft A.gguf --prompts prompts.json --speed
    python benchmarks/coupled.py --target T-Q8_0.gguf --draft A.gguf --bound
    python benchmarks/coupled.py --cost

First table: acceptance length of chains with `rng` coupled and llama, by temperature and top-k (top-p and
min-p off), same prompts and seeds. Second: what the planner predicted against what came true, in tenths, over
the first children of nodes that the text reached, in trees. `--speed`: `auto` at 0.8 over `auto` greedy, the
parts of a round, and the fixed strategies at 0.8, in turns; use it on a padded target (`pad_target.py`), as a
step costs there what it costs in real models. `--bound`: how often drafts agree with text sampled at
`--bound-at`, and how often any coupling of the two distributions could make them, with one, two and four
children; greedy texts beside. Without `--prompts` these two take code, as copying.py does. `--cost`: one draw
with everything but temperature off, from 32,000 to 262,144 tokens.
"""

from __future__ import annotations

import argparse
import contextlib
import statistics
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from common import Prompt, arguments, facts, median, note, read_prompts, table, write_json
from numpy.typing import NDArray
from prompt_sets import make_prompts

import eaglecpp
from eaglecpp.lowlevel import Drafter, DraftFile, EngineOptions, Sampler, SamplingParams, Target

OFF = {"top_p": 1.0, "min_p": 0.0}
CASES: dict[str, dict[str, Any]] = {
    "0.5, top-k 40": OFF | {"temperature": 0.5, "top_k": 40},
    "0.8, top-k 40": OFF | {"temperature": 0.8, "top_k": 40},
    "1.0, top-k 0": OFF | {"temperature": 1.0, "top_k": 0},
    "0.8, our defaults": {"temperature": 0.8},
    "greedy": {"temperature": 0.0},
}
GOALS = {"0.8, top-k 40": 2.4, "1.0, top-k 0": 2.2}
BOUND_DEPTH, BOUND_DRAWS = 5, 16
WIDTHS = (1, 2, 4)
KINDS = ("coupled_cool", "coupled_warm", "coupled_hot")
FIXED = (
    *("chain:1", "chain:2", "chain:3", "chain:4"),
    *("tree:k=2,depth=2,nodes=4", "tree:k=2,depth=3,nodes=7", "tree:k=4,depth=4,nodes=15"),
)
TREE = "tree:k=4,depth=5,nodes=16"
VOCABULARIES = (32_000, 128_256, 262_144)
LIMIT_MS = 0.3


def parse() -> argparse.Namespace:
    parser = arguments(__doc__)
    parser.add_argument("--target", type=Path)
    parser.add_argument("--draft", type=Path, action="append", default=[])
    parser.add_argument("--prompts", type=Path)
    parser.add_argument("--limit", type=int, help="first N prompts only")
    parser.add_argument("--strategy", default="chain:5", help="of the acceptance lengths")
    parser.add_argument("--n-tokens", type=int, default=96)
    parser.add_argument("--seeds", type=int, default=1, help="texts per prompt")
    parser.add_argument("--threads", type=int, default=0)
    parser.add_argument("--speed", action="store_true", help="auto and fixed strategies at 0.8, nothing else")
    parser.add_argument("--bound", action="store_true", help="the most drafts could agree, nothing else")
    parser.add_argument("--bound-at", type=float, default=0.8, metavar="T", help="temperature of the bound")
    parser.add_argument("--cost", action="store_true", help="what one draw costs, nothing else")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    if not args.cost and (args.target is None or not args.draft):
        parser.error("--target and --draft are needed, or --cost alone")
    return args


def texts(
    engine: eaglecpp.Engine, prompts: list[Prompt], args: argparse.Namespace, **options: Any
) -> Iterator[eaglecpp.Completion]:
    """One completion per prompt and seed, each in a conversation without a past."""
    for i, prompt in enumerate(prompts):
        for seed in range(args.seeds):
            with engine.session() as session:
                yield session.generate(
                    prompt.ids, max_tokens=args.n_tokens, ignore_eos=True, seed=100 * i + seed, **options
                )


def acceptance_length(
    engine: eaglecpp.Engine, prompts: list[Prompt], args: argparse.Namespace, **options: Any
) -> float:
    """Generated tokens per round; the first token comes with the prompt."""
    n_tokens = n_rounds = 0
    for text in texts(engine, prompts, args, **options):
        n_tokens += text.timings.predicted_n - 1
        n_rounds += text.timings.rounds
    return n_tokens / n_rounds


def open_engine(args: argparse.Namespace, draft: Path, strategy: str, **options: Any) -> eaglecpp.Engine:
    return eaglecpp.Engine.open(
        args.target,
        draft=draft,
        strategy=strategy,
        n_ctx=1024,
        n_threads=args.threads,
        n_leaves_max=8,
        planner_cache=False,
        **options,
    )


def prompts_of(args: argparse.Namespace, engine: eaglecpp.Engine) -> list[Prompt]:
    """The file's, or code as in copying.py."""
    if args.prompts is not None:
        return read_prompts(args.prompts, engine, args.limit)
    return [Prompt(ids, {}) for ids in make_prompts("code", engine, args.limit or 6, 96, seed=1)]


def lengths(args: argparse.Namespace, result: dict[str, Any]) -> bool:
    """The first two tables; whether the goals are reached."""
    rows, reached = [], True
    report: dict[str, list[tuple[float, float, float]]] = {kind: [] for kind in KINDS}
    for draft in args.draft:
        with open_engine(args, draft, args.strategy) as engine:
            prompts = prompts_of(args, engine)
            for name, options in CASES.items():
                found = {
                    rng: acceptance_length(engine, prompts, args, rng=rng, **options)
                    for rng in ("llama", "coupled")
                }
                goal = GOALS.get(name) if args.strategy == "chain:5" else None
                verdict = "" if goal is None else "PASS" if found["coupled"] >= goal else "FAIL"
                reached = reached and verdict != "FAIL"
                gain = found["coupled"] / found["llama"]
                rows.append([draft.stem, name, found["llama"], found["coupled"], gain, goal or "", verdict])
                note(f"{draft.stem}, {name}: {found['llama']:.2f} -> {found['coupled']:.2f}")
                result["lengths"].append({"draft": draft.stem, "case": name} | found)
        with open_engine(args, draft, TREE) as engine:
            for options in CASES.values():
                if options["temperature"] > 0:
                    for _ in texts(engine, prompts, args, **options):
                        pass
            for kind, bins in reliability(engine).items():
                report[kind] += bins
                result["reliability"].append({"draft": draft.stem, "kind": kind, "bins": bins})
    print(table(["drafter", "temperature", "llama", "coupled", "gain", "goal", ""], rows))
    print()
    print(table(["predicted", *KINDS], reliability_rows(report)))
    return reached


def reliability(engine: eaglecpp.Engine) -> dict[str, list[tuple[float, float, float]]]:
    """(labels, mean predicted, mean true) per tenth of the predicted chance."""
    with engine.session():  # the report is about one conversation; this part is the same for all
        acceptance = engine.native.planner_report(0)["acceptance"]
    return {kind: [tuple(b) for b in acceptance[kind]["bins"]] for kind in KINDS}


def reliability_rows(report: dict[str, list[tuple[float, float, float]]]) -> list[list[str]]:
    rows = []
    errors = ["mean error"]
    for tenth in range(10):
        row = [f"{tenth / 10:.1f} to {(tenth + 1) / 10:.1f}"]
        for kind in KINDS:
            n, predicted, true = merged(report[kind][tenth::10])
            row.append(f"{predicted:.2f} -> {true:.2f} ({n:.0f})" if n >= 10 else "")
        rows.append(row)
    for kind in KINDS:
        total = sum(n for n, _, _ in report[kind])
        wrong = sum(
            n * abs(predicted - true)
            for n, predicted, true in (merged(report[kind][tenth::10]) for tenth in range(10))
        )
        errors.append(f"{wrong / total:.3f}" if total else "")
    return [*rows, errors]


def merged(bins: list[tuple[float, float, float]]) -> tuple[float, float, float]:
    n = sum(b[0] for b in bins)
    if n == 0:
        return 0.0, 0.0, 0.0
    return n, sum(b[0] * b[1] for b in bins) / n, sum(b[0] * b[2] for b in bins) / n


def speed(args: argparse.Namespace, result: dict[str, Any]) -> None:
    """`auto` at 0.8 over `auto` greedy, drafts from the text on and off, and the fixed strategies at 0.8:
    what a round takes, and how near the planner comes to the best of them in hindsight.
    """
    rows = []
    for draft in args.draft:
        with contextlib.ExitStack() as stack:
            engine, lone = (
                stack.enter_context(open_engine(args, draft, "auto", text_drafts=text))
                for text in ("auto", "off")
            )
            arms: dict[str, tuple[eaglecpp.Engine, dict[str, Any]]] = {
                "auto, greedy": (engine, {"temperature": 0.0}),
                "auto, 0.8": (engine, {"temperature": 0.8}),
                "auto, greedy, no text": (lone, {"temperature": 0.0}),
                "auto, 0.8, no text": (lone, {"temperature": 0.8}),
                "auto, 0.8, no text, rng llama": (lone, {"temperature": 0.8, "rng": "llama"}),
                "plain, 0.8": (lone, {"temperature": 0.8, "strategy": "off"}),
            }
            arms |= {f"{name}, 0.8": (lone, {"temperature": 0.8, "strategy": name}) for name in FIXED}
            prompts = prompts_of(args, engine)
            for one, options in arms.values():  # the planner learns what this machine costs
                acceptance_length(one, prompts[:1], args, **options)
            found: dict[str, list[Rounds]] = {name: [] for name in arms}
            for prompt in prompts:
                for name, (one, options) in arms.items():
                    found[name].append(Rounds.of(texts(one, [prompt], args, **options)))
        greedy = [one.speed for one in found["auto, greedy"]]
        for name, runs in found.items():
            ratios = [one.speed / other for one, other in zip(runs, greedy, strict=True)]
            rows.append([draft.stem, name, *Rounds.sum(runs).row(), f"{median(ratios):.3f}"])
            result["speed"].append({"draft": draft.stem, "arm": name, "prompts": [vars(one) for one in runs]})
        fixed = max(Rounds.sum(found[f"{name}, 0.8"]).speed for name in FIXED)
        auto = Rounds.sum(found["auto, 0.8, no text"]).speed
        note(f"{draft.stem}: auto at 0.8, no text, over the best fixed: {auto / fixed:.3f}")
    head = ["drafter", "", "tokens/s", "tokens per round", "ms per round", "verify", "draft", "nodes"]
    print(table([*head, "over auto greedy"], rows))


@dataclass(frozen=True)
class Rounds:
    """What texts took, in milliseconds."""

    tokens: int
    rounds: int
    nodes: int
    total: float
    verify: float
    draft: float

    @classmethod
    def of(cls, done: Iterable[eaglecpp.Completion]) -> Rounds:
        timings = [one.timings for one in done]
        return cls(
            sum(t.predicted_n - 1 for t in timings),
            sum(t.plan.get("rounds") or t.predicted_n - 1 for t in timings),
            sum(t.draft_n for t in timings),
            sum(t.predicted_ms for t in timings),
            sum(t.verify_ms for t in timings),
            sum(t.draft_ms for t in timings),
        )

    @classmethod
    def sum(cls, all_of: Iterable[Rounds]) -> Rounds:
        return cls(*(sum(column) for column in zip(*(vars(one).values() for one in all_of), strict=True)))

    @property
    def speed(self) -> float:
        return 1000 * self.tokens / self.total

    def row(self) -> list[str]:
        of_round = (self.total, self.verify, self.draft)
        return [
            f"{self.speed:.0f}",
            f"{self.tokens / self.rounds:.2f}",
            *(f"{ms / self.rounds:.2f}" for ms in of_round),
            f"{self.nodes / self.rounds:.1f}",
        ]


def bound(args: argparse.Namespace, result: dict[str, Any]) -> None:
    """How often drafts agree with sampled text, and how often they could; greedy text beside."""
    rows = []
    for draft in args.draft:
        study = Study(args, draft)
        with open_engine(args, draft, args.strategy) as engine:
            prompts = prompts_of(args, engine)
            sampled, greedy = (
                [
                    (prompt.ids, list(text.tokens))
                    for prompt, text in zip(prompts, texts(engine, prompts, args, **options), strict=True)
                ]
                for options in ({"temperature": args.bound_at}, {"temperature": 0.0})
            )
        found = {
            "sampled": [places for prompt, answer in sampled for places in study.places(prompt, answer)],
            "greedy": [places for prompt, answer in greedy for places in study.places(prompt, answer)],
        }
        for n in WIDTHS:
            ways = {
                "likeliest": [[one.likeliest[n] for one in places] for places in found["sampled"]],
                "shared noise": [[one.shared[n] for one in places] for places in found["sampled"]],
                "any coupling": [[one.best[n] for one in places] for places in found["sampled"]],
                "greedy text": [[one.greedy[n] for one in places] for places in found["greedy"]],
            }
            reached = {name: _reach(chances) for name, chances in ways.items()}
            for i, what in enumerate(("one of them is right", f"tokens a round, depth {BOUND_DEPTH}")):
                values = {name: both[i] for name, both in reached.items()}
                share = values["any coupling"] / values["greedy text"]
                rows.append([draft.stem, n, what, *(f"{v:.3f}" for v in values.values()), f"{share:.3f}"])
                result["bound"].append({"draft": draft.stem, "children": n, "what": what} | values)
    head = ["drafter", "children", "", "likeliest", "shared noise", "any coupling", "greedy text"]
    print(table([*head, "any coupling over greedy"], rows))


def _reach(chances: list[list[float]]) -> tuple[float, float]:
    """Mean chance at the first depth; mean tokens of a round that goes on as long as a child is right."""
    steps = np.array(chances)
    return float(steps[:, 0].mean()), float(1.0 + np.cumprod(steps, axis=1).sum(axis=1).mean())


@dataclass(frozen=True)
class Place:
    """What the drafter says of one token of a text, by number of children.

    `best`: n drafts that each follow the drafter's distribution q hold a token drawn from the target's p no
    more often than the sum of min(p, n q), however they are coupled; for one draft that is 1 - TV(p, q).
    `shared`: shared noise, mean over draws. `likeliest`: the drafter's likeliest against a sampled target.
    `greedy`: against the likeliest of the target.
    """

    best: dict[int, float]
    shared: dict[int, float]
    likeliest: dict[int, float]
    greedy: dict[int, float]


class Study:
    """Target and drafter side by side over a text that is there already."""

    def __init__(self, args: argparse.Namespace, draft: Path) -> None:
        options = EngineOptions()
        options.target_path, options.n_ctx, options.n_threads = str(args.target), 1024, args.threads
        info = DraftFile(str(draft)).info
        self.target = Target(options, info["target_layers"])
        weights = {t.name: t for t in gguf.GGUFReader(args.target).tensors}
        table_ = weights["token_embd.weight"]
        head = weights.get("output.weight", table_)
        self.drafter = Drafter(
            str(draft),
            options,
            None if info["has_embedding"] else _floats(table_),
            None if info["has_head"] else _floats(head),
        )
        maps = [t.data for t in gguf.GGUFReader(draft).tensors if t.name == "d2t"]
        self.ids = np.arange(info["n_draft_vocab"])
        if maps:
            self.ids = maps[0].view(np.int64).reshape(-1)
        self.random, self.temperature = np.random.default_rng(1), args.bound_at

    def places(self, prompt: list[int], answer: list[int]) -> Iterator[list[Place]]:
        """At each token of the answer: drafts from there, given that those before came true."""
        tokens = prompt + answer
        features, logits = self.target.forward(tokens)
        logits = np.asarray(logits)
        first = len(prompt) - 2
        self.drafter.reset()
        self.drafter.append(np.ascontiguousarray(features[:, :first]), tokens[1 : first + 1])
        for i in range(first, len(tokens) - 1 - BOUND_DEPTH):
            row, state = self.drafter.commit(np.ascontiguousarray(features[:, i : i + 1]), [tokens[i + 1]])
            out = []
            for depth in range(BOUND_DEPTH):
                out.append(self.place(logits[i + 1 + depth], row))
                if depth + 1 < BOUND_DEPTH:
                    fed = state[None], [tokens[i + 2 + depth]], [depth - 1]
                    rows, states = self.drafter.extend(*fed, depth + 1)
                    row, state = rows[0], states[0]
            yield out

    def place(self, logits: NDArray[np.float32], drafted: NDArray[np.float32]) -> Place:
        said = np.full(len(logits), -np.inf)
        said[self.ids] = drafted
        p, q = (_probabilities(x, self.temperature) for x in (logits.astype(float), said))
        likeliest = _best(said, max(WIDTHS))
        possible = np.flatnonzero((p > 0) | (q > 0))
        noise = self.random.gumbel(size=(BOUND_DRAWS, len(possible)))
        with np.errstate(divide="ignore"):
            emitted = np.argmax(np.log(p[possible]) + noise, axis=1)
            sums = np.log(q[possible]) + noise
        proposed = np.argsort(-sums, axis=1)[:, : max(WIDTHS)]
        hits = (proposed == emitted[:, None]) & np.isfinite(np.take_along_axis(sums, proposed, axis=1))
        return Place(
            {n: float(np.minimum(p, n * q).sum()) for n in WIDTHS},
            {n: float(hits[:, :n].any(axis=1).mean()) for n in WIDTHS},
            {n: float(p[likeliest[:n]].sum()) for n in WIDTHS},
            {n: float(np.argmax(logits) in likeliest[:n]) for n in WIDTHS},
        )


def _floats(tensor: gguf.ReaderTensor) -> NDArray[np.float32]:
    return np.ascontiguousarray(gguf.quants.dequantize(tensor.data, tensor.tensor_type), dtype=np.float32)


def _best(values: NDArray[np.float64], n: int) -> NDArray[np.intp]:
    """Places of the n largest, best first."""
    found = np.argpartition(-values, n)[:n]
    best: NDArray[np.intp] = found[np.argsort(-values[found], kind="stable")]
    return best


def _probabilities(logits: NDArray[np.float64], temperature: float) -> NDArray[np.float64]:
    """After our default sampler: top-k 40, top-p 0.95, min-p 0.05, then the temperature."""
    order = _best(logits, 40)
    clean = np.exp(logits[order] - logits[order[0]])
    n = int(np.searchsorted(np.cumsum(clean / clean.sum()), 0.95)) + 1
    order, clean = order[:n], clean[:n]
    order, clean = order[clean >= 0.05], clean[clean >= 0.05]
    out = np.zeros(len(logits))
    out[order] = clean ** (1.0 / temperature)
    return out / out.sum()


def cost(result: dict[str, Any]) -> bool:
    """Milliseconds of one draw; whether the limit is kept."""
    rows, kept = [], True
    for n_vocab in VOCABULARIES:
        for spread in (0.0, 2.0, 5.0):
            logits = np.random.default_rng(1).normal(0.0, spread, n_vocab).astype(np.float32)
            row: list[Any] = [n_vocab, f"{spread:g}"]
            for rng in ("coupled", "llama"):
                params = SamplingParams()
                params.rng, params.seed, params.temperature = rng, 1, 0.8
                params.top_k, params.top_p, params.min_p = 0, 1.0, 0.0
                sampler = Sampler(params, n_vocab)
                times = []
                for pos in range(60):
                    start = time.perf_counter()
                    sampler.sample(logits, pos)
                    times.append(1000 * (time.perf_counter() - start))
                row.append(f"{statistics.median(times):.3f}")
                result["cost"].append({"n_vocab": n_vocab, "spread": spread, "rng": rng, "ms": times})
            kept = kept and float(row[2]) <= LIMIT_MS
            rows.append([*row, "PASS" if float(row[2]) <= LIMIT_MS else "FAIL"])
    print(table(["vocabulary", "spread of logits", "coupled ms", "llama ms", ""], rows))
    return kept


def main() -> int:
    args = parse()
    result = facts({} if args.cost else {"target": args.target}, strategy=args.strategy, seeds=args.seeds)
    result |= {"lengths": [], "reliability": [], "speed": [], "bound": [], "cost": []}
    passed = True
    if args.cost:
        passed = cost(result)
    elif args.speed:
        speed(args, result)
    elif args.bound:
        bound(args, result)
    else:
        passed = lengths(args, result)
    write_json(args.json, result)
    return 0 if passed else 1


if __name__ == "__main__":
    raise SystemExit(main())
