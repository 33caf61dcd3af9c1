# SPDX-License-Identifier: MIT
"""`eaglecpp bench`: alternates target-only decoding, fixed strategies and the planner, and compares their
speeds as ratios.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import Any

import click

from eaglecpp.cli.command import command
from eaglecpp.cli.figures import not_drafted
from eaglecpp.cli.open_engine import open_engine
from eaglecpp.cli.options import engine_options, given, model_argument, options_of, read_input
from eaglecpp.cli.terminal import fitted, note, show_progress, table, write, write_json
from eaglecpp.human import counted
from eaglecpp.options import DraftOptions, ModelOptions, Strategy, declare

_FORM = 'open an issue with the form "Benchmark", or add this block to docs/hardware.toml'


@dataclass(frozen=True)
class BenchOptions:
    """Options that only `bench` has, in addition to the common options."""

    drafts: tuple[str, ...] = declare(
        (),
        "The drafter, as for `generate`. Repeat the option to compare drafters.",
        flags="--draft",
        metavar="D",
    )
    strategies: tuple[str, ...] = declare(
        (),
        "Compare this strategy with target-only decoding (repeatable).  [default: six strategies and auto]",
        flags="--strategy",
        metavar="S",
    )
    files: tuple[str, ...] = declare(
        (), "File with a prompt (repeatable).", flags="-f --file", type=click.Path(), metavar=None
    )
    n_tokens: int = declare(
        0, "Tokens per answer.  [default: as many as --seconds allows]", low=2, flags="-n --max-tokens"
    )
    seconds: float = declare(60.0, "Approximate duration.", low=0)
    temperature: float | None = declare(
        None,
        "Measure only this temperature; 0 = greedy.  [default: 0 and 0.8]",
        kind=float,
        low=0,
        flags="--temp",
    )
    seed: int = declare(1, "Seed for sampled answers.")
    verbose: bool = declare(
        False, "Show the opened files, and the origin of each option.", flags="-v --verbose"
    )
    share: bool = declare(
        False, "Print a block to share: machine, versions, model and speeds, without paths or names."
    )
    as_json: bool = declare(
        False, "Print one JSON object, including the planner's measurements.", flags="--json"
    )


@command(
    ("eaglecpp bench smollm2", "target-only decoding against drafting, in about a minute"),
    ("eaglecpp bench model.gguf --draft d.gguf --strategy chain:4", "one strategy"),
    ("eaglecpp bench model.gguf --draft d.gguf --draft mtp --draft text", "several drafters"),
    usual="drafts strategies files n_tokens seconds temperature as_json n_ctx n_threads n_gpu_layers",
)
@model_argument(on_hub=True)
@options_of(asked=BenchOptions)
@engine_options(ModelOptions, DraftOptions)
def bench(model: str, asked: BenchOptions, **options: Any) -> None:
    """Measure how fast MODEL decodes here, with and without its drafter, in about a minute.

    The model answers built-in questions with its chat template, greedily and at temperature 0.8; files given
    with -f are used as raw text.
    """
    from eaglecpp.bench.strategies import STRATEGIES, TEMPERATURES, measure, plan_report

    if len(set(asked.drafts)) < len(asked.drafts):
        raise click.UsageError("--draft: the same drafter is named twice")
    with ExitStack() as opened:
        engines = [
            opened.enter_context(open_engine(model, d, None, given(options), verbose=asked.verbose))
            for d in asked.drafts or [None]
        ]
        engine = engines[0]
        others = dict(zip([f"auto, {d}" for d in asked.drafts[1:]], engines[1:], strict=True))
        chosen = _strategies(engine, asked.strategies, ("off", "auto") if others else STRATEGIES)
        measured = measure(
            engine,
            chosen,
            [read_input(file) for file in asked.files] or None,
            temperatures=TEMPERATURES if asked.temperature is None else (asked.temperature,),
            seconds=asked.seconds,
            n_tokens=asked.n_tokens,
            others=others,
            progress=show_progress,
            seed=asked.seed,
        )
        plan = plan_report(engine)
        verdict, best = _judged(engine, others, measured)
        block = _block(engine, measured) if asked.share else ""
    show_progress("")
    if asked.share:
        write(block)
        note(f"to add these results to the hardware table: {_FORM}")
        return
    if others:
        measured = [
            replace(one, strategy=f"{one.strategy}, {asked.drafts[0]}") if one.strategy in chosen[1:] else one
            for one in measured
        ]
        best = best if best in others else f"auto, {asked.drafts[0]}"
    if asked.as_json:
        judged = verdict.as_dict() | ({"best": best} if others else {})
        write_json({"results": [one.as_dict() for one in measured], "plan": plan, "verdict": judged})
    else:
        write(speeds(measured))
        if str(verdict):
            name = best.partition(", ")[2]
            named = f"The best of these drafters is {name}. " if name and not verdict.is_busy else ""
            write(fitted(f"\n{named}{verdict}\n"))


def _block(engine: Any, measured: Sequence[Any]) -> str:
    from eaglecpp.bench.share import shared_block
    from eaglecpp.cli.doctor import native_facts

    return shared_block(engine, measured, native_facts())


def _strategies(engine: Any, asked: Sequence[str], usual: Sequence[str]) -> list[str]:
    """Returns the strategies to measure: target-only decoding, then the requested strategies, or else the
    usual strategies that this engine supports.

    Raises ValueError for a strategy that the engine does not support.
    """
    if asked:
        wanted = [engine.resolve(Strategy.parse(text))[0] for text in asked]
        return [*dict.fromkeys(["off", *map(str, wanted)])]
    if not engine.has_draft:
        note("no drafter: only target-only decoding is measured")
        return ["off"]
    n_heads = (engine.draft_info or {}).get("n_heads", 1)  # each prediction head drafts one token
    unable = "tree" if engine.chains_only or n_heads > 1 else ""
    possible = [one for one in map(Strategy.parse, usual) if one.kind != unable]
    return [str(one) for one in possible if n_heads == 1 or one.depth <= n_heads]


def _judged(engine: Any, others: Mapping[str, Any], measured: Sequence[Any]) -> tuple[Any, str]:
    """Returns the verdict on the drafter that is fastest with the strategy `auto`, and the drafter's name in
    the measurements.

    Also stores the measurements, so that `doctor` and `run` report them from now on.
    """
    from eaglecpp.bench.verdict import keep, verdict_of

    of = _by_strategy(measured)
    plain = of["off"]
    engines = {"auto": engine, **others}
    is_steady = True
    for name in engines.keys() & of.keys():
        is_steady = keep(engines[name], [*plain, *of[name]]) and is_steady
    verdicts = {name: verdict_of(one) for name, one in engines.items()}
    best = max(verdicts, key=lambda name: verdicts[name].speed)
    return replace(verdicts[best], is_busy=not is_steady), best


def speeds(measured: Sequence[Any]) -> str:
    """Formats the speeds as text of 60 columns: for each temperature a table of the strategies, with the
    planner's reasons.
    """
    tables, plans = [], []
    for first in _by_strategy(measured)["off"]:
        kind = "greedy" if first.temperature <= 0 else f"temperature {first.temperature:g}"
        rows = []
        for one in (one for one in measured if one.temperature == first.temperature):
            length = "" if one.strategy == "off" else f"{one.acceptance_length:.2f}"
            name = "plain" if one.strategy == "off" else one.strategy
            rows.append([name, f"{one.tokens_per_second:.1f}", f"{one.ratio:.2f}x", length])
            if one.strategy.startswith("auto"):
                plans.append(fitted(f"{one.strategy}, {kind}: {_reason(one)}") + "\n")
                if one.acceptance_by_position:
                    rates = ", ".join(f"{rate:.2f}" for rate in one.acceptance_by_position)
                    plans.append(fitted(f"accepted at position 1, 2, ...: {rates}") + "\n")
        title = f"{kind}, {counted(len(first.ratios), 'turn')}"
        tables.append(table([title, "tokens/s", "speed", "length"], rows) + "\n")
    return "".join([*tables, *plans])


def _by_strategy(measured: Sequence[Any]) -> dict[str, list[Any]]:
    groups: dict[str, list[Any]] = {}
    for one in measured:
        groups.setdefault(one.strategy, []).append(one)
    return groups


def _reason(one: Any) -> str:
    """Describes the planner's decision and its reason."""
    why = one.plan.get("why", "")
    if why and not one.plan.get("reason"):
        return f"drafted {why.partition(':')[0]}"
    return (
        not_drafted(one.plan)
        if one.acceptance_length <= 1.0
        else "mostly not drafted: target-only decoding is faster here"
    )
