# SPDX-License-Identifier: MIT
"""Decoding speed, all against all in one run: plain, planner, fixed strategies, llama.cpp.

    python benchmarks/compare.py --source target-f16.gguf --draft eagle3.gguf --draft eagle31.gguf
        --llama-server PATH --out DIR [--quick] [--targets wide-Q8_0,...] [--sets code,...] [--resume]
    python benchmarks/compare.py --target T.gguf --draft D.gguf [--prompts FILE] --out DIR

The first form pads and quantises a small target on the spot (`compare_targets.py`), the second takes a target
as it is. One prompt goes through all contestants, starting with another one each time, then the next, cell by
cell, so that a noisy machine is noisy for all. Tokens per second are each program's own (`predicted_n /
predicted_ms`). Results are written after every prompt to DIR/TARGET.json, from which `--resume` goes on;
tables go to stdout, everything to DIR/compare.json, a chart to DIR/compare.png.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from common import arguments, facts, note, read_prompts, resumed, warn_if_busy, write_json, write_whole
from compare_report import as_rows, draw, noise, print_results, print_verdicts
from compare_stats import OUR_PLAIN, Cell, Contestant, Results, Run, label, still_in, verdicts
from compare_targets import TARGETS, BenchmarkTarget, drafters_by_kind, make_target, shuffled
from contestants import Field, Request, Settings, line_up, open_field
from prompt_sets import SETS, make_prompts

from eaglecpp.lowlevel import system_info
from eaglecpp.options import Strategy

TEMPERATURES = (0.0, 0.8)
FIXED = (
    *(f"chain:{depth}" for depth in range(1, 7)),
    *("tree:k=2,depth=2,nodes=3", "tree:k=2,depth=3,nodes=5", "tree:k=4,depth=4,nodes=8"),
)
WARM = (
    "warm: every contestant stayed loaded and had discarded prompts first, planners {planner} and others "
    "{others} tokens each; planners began with nothing from disk"
)
# options that must be the same when a run goes on
IDENTITY = (
    *("n_tokens", "prompt_tokens", "warm_tokens", "seed", "threads", "n_ctx", "prune", "sets"),
    *("temperatures", "fixed", "n_max"),
)
WARM_TOKENS = 16  # enough to page weights in and build graphs


class Journal:
    """The runs on one target, on disk after every prompt, so that a killed run can go on.

    The file holds what they were measured on (`about`), the settings that must not change for a run to go on
    (`identity`), and the runs.
    """

    def __init__(self, path: Path, identity: dict[str, Any], about: dict[str, Any], resume: bool) -> None:
        """Raises `SystemExit` when the file is there and is not to be, or cannot be, gone on with."""
        before = resumed(path, identity, resume)
        self.path, self.runs = path, [Run(**run) for run in before.get("runs", [])]
        self.document = {"identity": identity, **about}
        if before:
            self.document["commits_before"] = [*before.get("commits_before", []), before["commit"]]

    def has(self, cell: Cell, prompt: int) -> bool:
        return any(run.cell == cell and run.prompt == prompt for run in self.runs)

    def add(self, runs: Sequence[Run]) -> None:
        self.runs += runs
        write_whole(self.path, self.document | {"runs": [dataclasses.asdict(run) for run in self.runs]})


def requests(args: argparse.Namespace, field: Field) -> tuple[dict[Cell, list[Request]], list[Request]]:
    """Prompts by cell, and those to warm up with. Of the sets made here no prompt is in two cells: a server
    that looks up n-grams has seen what it generated before.
    """
    found: dict[Cell, list[Request]] = {}
    warm = []
    for name in args.sets:
        n_all = 1 + len(args.temperatures) * args.n_prompts
        if name == "file":
            texts = [prompt.ids for prompt in read_prompts(args.prompts, field.engine, args.n_prompts)]
            pool = [texts[0], *(ids for ids in texts for _ in args.temperatures)]
        else:
            pool = make_prompts(name, field.engine, n_all, args.prompt_tokens, args.seed)
        for i, temperature in enumerate(args.temperatures):
            warm.append(Request(pool[0], args.warm_tokens, temperature, args.seed))
            prompts = pool[1 + i :: len(args.temperatures)]
            made = [Request(ids, args.n_tokens, temperature, args.seed + j) for j, ids in enumerate(prompts)]
            found[name, temperature] = made
    return found, warm


def warm_up(field: Field, warm: list[Request]) -> None:
    """Planners go through one prompt of each set at each temperature, the others begin one."""
    for one, generate in field.generate.items():
        if one.kind == "planner":
            for request in warm:
                generate(request)
        else:
            generate(dataclasses.replace(warm[0], n_tokens=min(WARM_TOKENS, warm[0].n_tokens)))


def one_prompt(
    field: Field, who: list[Contestant], first: int, cell: Cell, i: int, request: Request
) -> list[Run]:
    """One prompt through all of `who`, beginning with number `first`."""
    load = os.getloadavg()[0] if hasattr(os, "getloadavg") else 0.0
    outputs: dict[Contestant, tuple[list[int], dict[str, Any]]] = {}
    for one in who[first:] + who[:first]:
        outputs[one] = field.generate[one](request)
    known = {"n": "predicted_n", "ms": "predicted_ms"}
    known |= {name: name for name in ("verify_ms", "prompt_ms", "draft_n", "draft_n_accepted")}
    runs = []
    for one in who:
        tokens, timings = outputs[one]
        counters = {name: timings[source] for name, source in known.items() if source in timings}
        same = tokens == outputs[OUR_PLAIN][0]
        runs.append(Run(one.name, *cell, i, same=same, load=load, **counters))
    speed = {run.contestant: f"{run.contestant} {run.speed:.1f}" for run in runs}
    main = ", ".join(speed[one.name] for one in who if one.sweep is None)
    note(f"{label(cell)}, prompt {i + 1}, {len(who)} runs: {main}")
    return runs


def measure(
    args: argparse.Namespace, target: BenchmarkTarget, journal: Journal, deadline: float, end: float
) -> None:
    """Prompt by prompt through all cells, until all are done or it is `deadline`. First prompts go on until
    `end`. Both in seconds of `time.monotonic`.
    """
    with open_field(target, of_field(args)) as field:
        cells, warm = requests(args, field)
        warm_up(field, warm)
        n_done = 0
        for i in range(args.n_prompts):
            for cell, made in cells.items():
                if i >= len(made) or journal.has(cell, i):
                    continue
                if time.monotonic() > (deadline if i else end):
                    note(f"{target.name}: time is up before prompt {i + 1} of {label(cell)}")
                    return
                who = still_in(Results(field.contestants, journal.runs), cell, args.prune)
                journal.add(one_prompt(field, who, n_done % len(who), cell, i, made[i]))
                n_done += 1


def of_field(args: argparse.Namespace) -> Settings:
    return Settings(
        args.fixed, args.n_max, args.llama_server, args.n_ctx, args.threads, text_drafts=args.text_drafts
    )


def all_done(args: argparse.Namespace, journal: Journal) -> bool:
    cells = [(name, temperature) for name in args.sets for temperature in args.temperatures]
    return all(journal.has(cell, i) for cell in cells for i in range(args.n_prompts))


def open_journal(args: argparse.Namespace, target: BenchmarkTarget) -> Journal:
    identity = {name: getattr(args, name) for name in IDENTITY}
    identity["contestants"] = [one.name for one in line_up(target.drafts, of_field(args))]
    models = {"target": target.path, **target.drafts}
    identity["bytes"] = {role: path.stat().st_size for role, path in models.items()}
    about = facts(models, warm=warm_text(args))
    return Journal(args.out / f"{target.name}.json", json.loads(json.dumps(identity)), about, args.resume)


def warm_text(args: argparse.Namespace) -> str:
    planner = f"{len(args.sets) * len(args.temperatures)} x {args.warm_tokens}"
    return WARM.format(planner=planner, others=min(WARM_TOKENS, args.warm_tokens))


def targets_of(args: argparse.Namespace) -> list[BenchmarkTarget]:
    drafts = drafters_by_kind(args.draft)
    if args.useless:
        drafts = {kind: shuffled(path, args.out / f"useless-{kind}.gguf") for kind, path in drafts.items()}
    if args.target is not None:
        return [BenchmarkTarget(args.target.stem, args.target, drafts)]
    folder = args.models or args.out / "models"
    return [make_target(name, args.source, drafts, folder, args.threads) for name in args.targets]


def report(
    args: argparse.Namespace, journals: dict[str, Journal], contestants: dict[str, list[Contestant]]
) -> None:
    results = {name: Results(contestants[name], journal.runs) for name, journal in journals.items()}
    document: dict[str, Any] = {"targets": {}}
    for name, one in results.items():
        print_results(name, one)
        quiet = noise(one, [run.load for run in journals[name].runs])
        print(f"\n{quiet}\n{warm_text(args)}")
        document["targets"][name] = journals[name].document | {"noise": quiet, "rows": as_rows(one)}
    found = verdicts(results)
    print_verdicts(found)
    document["verdicts"] = [
        dataclasses.asdict(verdict) | {"wanted": verdict.wanted, "reached": verdict.reached}
        for verdict in found
    ]
    write_json(args.out / "compare.json", document)
    draw(args.out / "compare.png", results)


def words(text: str) -> list[str]:
    return [word for word in text.split(",") if word]


def strategies(text: str) -> list[str]:
    """ "chain:2,tree:k=2,depth=3,nodes=5": a comma begins another strategy only before a kind."""
    found: list[str] = []
    for word in words(text):
        if word.partition(":")[0] in ("chain", "tree"):
            found.append(word)
        elif found:
            found[-1] += f",{word}"
        else:
            raise argparse.ArgumentTypeError(f"{word!r}: expected chain:DEPTH or tree:k=K,depth=D,nodes=N")
    try:
        return [str(Strategy.parse(one)) for one in found]
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def parse() -> argparse.Namespace:
    parser = arguments(__doc__)
    kind = parser.add_mutually_exclusive_group(required=True)
    kind.add_argument("--source", type=Path, help="small F32, F16 or BF16 target, to be padded and quantised")
    kind.add_argument("--target", type=Path, help="a target to be taken as it is")
    parser.add_argument("--draft", type=Path, action="append", required=True, help="repeatable, one per kind")
    parser.add_argument("--llama-server", type=Path, help="llama.cpp's server; without it only ours run")
    parser.add_argument("--out", type=Path, required=True, help="folder for results")
    parser.add_argument("--models", type=Path, help="folder for padded targets; default: models in --out")
    parser.add_argument("--targets", type=words, default=list(TARGETS), help=f"of {','.join(TARGETS)}")
    parser.add_argument(
        "--sets", type=words, help=f"of {','.join(SETS)},copy; default the first three, or --prompts"
    )
    parser.add_argument("--useless", action="store_true", help="shuffle the drafters' output rows")
    parser.add_argument("--text-drafts", action="store_true", help="also draft from the text alone")
    parser.add_argument("--prompts", type=Path, help="JSON with a list 'prompts', or a text: the set 'file'")
    parser.add_argument("--temperatures", type=lambda text: [float(word) for word in words(text)])
    parser.add_argument("--fixed", type=strategies, default=list(FIXED), help="comma-separated strategies")
    parser.add_argument(
        "--n-max", type=lambda text: [int(word) for word in words(text)], default=[*range(1, 9)]
    )
    parser.add_argument("--n-prompts", type=int, help="most prompts per cell; default 4, quick 1")
    parser.add_argument("--n-tokens", type=int, help="tokens generated; default 64, quick 24")
    parser.add_argument("--prompt-tokens", type=int, default=64, help="length of the prompts made here")
    parser.add_argument("--warm-tokens", type=int, help="of a planner per set, discarded; 128, quick 24")
    parser.add_argument(
        "--prune", type=float, default=0.75, help="see compare_stats.still_in; 0: all run all"
    )
    parser.add_argument("--minutes", type=float, default=32, help="for all targets; --resume goes on")
    parser.add_argument("--threads", type=int, default=0, help="0 = physical cores")
    parser.add_argument("--n-ctx", type=int, default=512)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--quick", action="store_true", help="one short generation per cell: does it work?")
    parser.add_argument("--resume", action="store_true", help="go on with what is in --out")
    return complete(parser, parser.parse_args())


def complete(parser: argparse.ArgumentParser, args: argparse.Namespace) -> argparse.Namespace:
    """Defaults that depend on other options, and checks before anything is loaded."""
    args.n_prompts = args.n_prompts or (1 if args.quick else 4)
    args.n_tokens = args.n_tokens or (24 if args.quick else 64)
    args.warm_tokens = args.warm_tokens or (24 if args.quick else 128)
    args.threads = args.threads or system_info()["n_cores"]
    args.temperatures = args.temperatures or list(TEMPERATURES)
    args.sets = args.sets or (["file"] if args.prompts else list(SETS))
    unknown = [
        name for name in args.sets if name not in (*SETS, "copy") and not (name == "file" and args.prompts)
    ]
    unknown += [name for name in args.targets if name not in TARGETS]
    if unknown:
        parser.error(f"unknown set or target {unknown[0]!r}; 'file' is the set of --prompts")
    given = [args.source, args.target, args.llama_server, args.prompts, *args.draft]
    missing = [path for path in given if path is not None and not path.is_file()]
    if missing:
        parser.error(f"{missing[0]} is not a file")
    return args


def main() -> None:
    args = parse()
    warn_if_busy()
    args.out.mkdir(parents=True, exist_ok=True)
    end = time.monotonic() + 60 * args.minutes
    targets = targets_of(args)
    journals = {target.name: open_journal(args, target) for target in targets}
    for i, target in enumerate(targets):
        if all_done(args, journals[target.name]):
            continue
        now = time.monotonic()
        if now > end:
            note(f"{target.name}: time is up; --resume with more --minutes measures it")
            continue
        measure(args, target, journals[target.name], now + (end - now) / (len(targets) - i), end)
    report(args, journals, {target.name: line_up(target.drafts, of_field(args)) for target in targets})


if __name__ == "__main__":
    main()
