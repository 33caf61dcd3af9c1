# SPDX-License-Identifier: MIT
"""`eaglecpp bench`: measures plain decoding, fixed strategies and the planner one after the other, again and
again, and compares them as ratios; shows what the planner has learned about this machine.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from eaglecpp.cli.command import Command, complete_model, option
from eaglecpp.cli.open_engine import open_engine
from eaglecpp.cli.options import (
    engine_options,
    given,
    hub_option,
    hub_reference,
    model_option,
    only_model,
    possible_strategies,
    read_input,
)
from eaglecpp.cli.table import table
from eaglecpp.cli.terminal import not_drafted, note, show_progress, write, write_json
from eaglecpp.files import replace_bytes
from eaglecpp.options import DraftOptions, ModelOptions

__all__ = ["bench"]


@click.command(
    cls=Command,
    examples=[
        ("eaglecpp bench smollm2", "plain decoding against drafting, in about a minute"),
        ("eaglecpp bench model.gguf --draft d.gguf --strategy chain:4", "one strategy"),
        ("eaglecpp bench model.gguf --draft d.gguf --draft mtp --draft text", "several drafters"),
    ],
)
@click.argument("model", required=False, shell_complete=complete_model)
@model_option
@option(
    "--draft",
    "drafts",
    multiple=True,
    metavar="D",
    help="The drafter: as for `generate`. Repeated: compares them, each with its own planner.",
)
@hub_option
@option(
    "--strategy",
    "strategies",
    multiple=True,
    metavar="S",
    help="Compare this one with plain decoding (repeatable).  [default: six fixed ones and auto]",
)
@option("-f", "--file", "files", multiple=True, type=click.Path(), help="A prompt (repeatable).")
@option("-n", "--max-tokens", "n_tokens", type=click.IntRange(2), help="Tokens per answer.")
@option("--seconds", type=click.FloatRange(0), default=60.0, show_default=True, help="Approximate duration.")
@option("--temp", "temperature", type=click.FloatRange(0), default=0.0, show_default=True, help="0 = greedy.")
@option("--seed", type=int, default=1, show_default=True, help="Seed for sampled answers.")
@option("--plan", "with_plan", is_flag=True, help="Show what the planner has learned: costs and acceptance.")
@option(
    "--share", is_flag=True, help="Measure beside llama.cpp, print a table row and write a file to publish."
)
@option("-v", "--verbose", is_flag=True, help="Show what is opened, and where each option comes from.")
@option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@option(
    "--png", type=click.Path(), metavar="FILE", help="Draw the results into this file (needs matplotlib)."
)
@engine_options(ModelOptions, DraftOptions)
def bench(
    model: str | None,
    model_named: str | None,
    drafts: tuple[str, ...],
    on_hub: bool,
    strategies: tuple[str, ...],
    files: tuple[str, ...],
    n_tokens: int | None,
    seconds: float,
    temperature: float,
    seed: int,
    with_plan: bool,
    share: bool,
    verbose: bool,
    as_json: bool,
    png: str | None,
    **options: Any,
) -> None:
    """Measure how fast MODEL decodes here, with and without its drafter, in about a minute."""
    from eaglecpp import bench as measuring
    from eaglecpp.cli.bench import plot as bench_plot

    reference = hub_reference(only_model(model, model_named), on_hub=on_hub)
    if png is not None:
        bench_plot.require()
    if share:
        if len(drafts) > 1 or strategies or files:
            raise click.UsageError(
                "--share measures one pair its own way: leave out further --draft, --strategy, -f"
            )
        fresh = given(options) | {"planner_cache": False}  # what other runs measured is not this one's
        with open_engine(reference, next(iter(drafts), None), None, False, fresh) as engine:
            _share(engine, n_tokens)
        return
    if len(set(drafts)) < len(drafts):
        raise click.UsageError("--draft: the same drafter is named twice")
    with ExitStack() as opened:
        engines = [
            opened.enter_context(open_engine(reference, d, None, False, given(options), verbose=verbose))
            for d in drafts or [None]
        ]
        engine = engines[0]
        labels = [f"auto, {d}" for d in drafts[1:]]
        others = dict(zip(labels, engines[1:], strict=True))
        few = measuring.STRATEGIES if not others else ("off", "auto")
        chosen = possible_strategies(engine, strategies, few)
        measured = measuring.measure(
            engine,
            chosen,
            [read_input(file) for file in files] or measuring.PROMPTS,
            seconds=seconds,
            n_tokens=n_tokens or 0,
            others=others,
            progress=show_progress,
            temperature=temperature,
            seed=seed,
        )
        plan = measuring.plan_report(engine)
        verdict = measuring.known_verdict(engine)
    show_progress("")
    if others:
        measured = [
            replace(one, strategy=f"{one.strategy}, {drafts[0]}") if one.strategy in chosen[1:] else one
            for one in measured
        ]
    if as_json:
        results = [one.as_dict() for one in measured]
        write_json(
            {
                "results": results,
                "plan": plan,
                "verdict": verdict.as_dict(),
                "settings": {"temperature": temperature},
            }
        )
    else:
        write(speeds(measured))
        if with_plan:
            write(plan_text(plan))
        if str(verdict):
            write(f"\n{verdict}\n")
    if png is not None:
        bench_plot.draw(Path(png), measured, plan)
        note(f"wrote {png}")


def _share(engine: Any, n_tokens: int | None) -> None:
    """Prints the row and writes the record into the current folder, if it can be published."""
    from eaglecpp.bench.share import HEAD, cells, fault, file_name, measure_pair

    record = measure_pair(engine, n_tokens=n_tokens or 96, progress=show_progress)
    show_progress("")
    for line in (HEAD, ["---"] * len(HEAD), cells(record)):
        write(f"| {' | '.join(line)} |\n")
    if why := fault(record):
        raise click.ClickException(f"this row cannot be published: {why}")
    path = Path(file_name(record))
    replace_bytes(path, (json.dumps(record, indent=1) + "\n").encode())
    note(
        f"wrote {path}; read what it says. To publish it, add it to benchmarks/measured in a pull request "
        "(CONTRIBUTING.md)"
    )


def speeds(measured: Sequence[Any]) -> str:
    """The table of strategies; spread: the middle half of the ratios."""
    rows = []
    for one in measured:
        low, high = _quartiles(one.ratios)
        is_plain = one.strategy == "off"
        rows.append(
            [
                "plain" if is_plain else one.strategy,
                f"{one.tokens_per_second:.1f}",
                f"{one.ratio:.2f}x",
                "" if is_plain else f"{low:.2f} to {high:.2f}",
                "" if is_plain else f"{one.acceptance_length:.2f}",
                _reason(one) if one.strategy.startswith("auto") else "",
            ]
        )
    return table(["strategy", "tokens/s", "speed", "spread", "length", "plan"], rows)


def _reason(one: Any) -> str:
    """What the planner did and why, in plain words."""
    why = one.plan.get("why", "").partition(";")[0]
    if not why.startswith("off") and why:
        return f"drafted {why.partition(':')[0]}"
    return not_drafted(why) if one.acceptance_length <= 1.0 else "mostly without drafts: plain is faster here"


def plan_text(plan: dict[str, Any] | None) -> str:
    """The planner's cost table, the speeds it expects, and how reliable its predictions were."""
    if plan is None:
        return "\nno plan: there is no drafter, or no plain step was measured\n"
    parts = [
        f"\none token without drafting takes {plan['plain_ms']:.2f} ms (give or take "
        f"{100 * plan['noise']:.0f}%); to plan and accept a draft takes {plan['host_ms']:.3f} ms\n",
        "\n",
        table(["tokens checked", "ms", "x one token", "drafter ms", "and per level"], _cost_rows(plan)),
        "\n",
        table(["drafted", "chain", "tree", "depth", "expected tokens", "x one token"], _curve_rows(plan)),
        "\n",
        *_reliability_lines(plan),
    ]
    return "".join(parts)


def _cost_rows(plan: dict[str, Any]) -> list[list[str]]:
    """Sizes up to the largest one measured; ~ marks values inferred from their neighbours."""
    largest = max((rows for rows, _, n in plan["verify"] if n > 0), default=1)
    others = [{rows: (ms, n) for rows, ms, n in plan[kind]} for kind in ("commit", "level")]
    out = []
    for rows, ms, n in plan["verify"]:
        if rows > largest:
            break
        cells = [str(rows), _ms(ms, n), f"{ms / plan['plain_ms']:.2f}"]
        out.append(cells + [_ms(*other.get(rows, (0.0, 0.0))) for other in others])
    return out


def _ms(ms: float, n_samples: float) -> str:
    return "" if ms <= 0 else f"{ms:.2f}" if n_samples > 0 else f"~{ms:.2f}"


def _curve_rows(plan: dict[str, Any]) -> list[list[str]]:
    chains = {point["nodes"]: point for point in plan["chains"]}
    out = []
    for tree in plan["trees"]:
        if tree["nodes"] > 8 and tree["nodes"] % 4:
            continue
        chain = chains.get(tree["nodes"])
        out.append(
            [
                str(tree["nodes"]),
                f"{chain['speed']:.2f}x" if chain else "",
                f"{tree['speed']:.2f}x",
                str(tree["depth"]),
                f"{tree['tokens']:.2f}",
                f"{tree['ms'] / plan['plain_ms']:.2f}",
            ]
        )
    return out


def _reliability_lines(plan: dict[str, Any]) -> list[str]:
    lines = []
    for kind, found in plan["acceptance"].items():
        if found["labels"] == 0:
            continue
        error = 100 * found["calibration_error"]
        lines.append(
            f"predicted chance that a draft is accepted, {kind}: off by {error:.1f}% on average of "
            f"{found['labels']:.0f} drafts\n"
        )
        rows = [[f"{p:.2f}", f"{true:.2f}", f"{n:.0f}"] for n, p, true in found["bins"] if n > 0]
        lines.append(table(["predicted", "true", "drafts"], rows))
    return lines


def _quartiles(ratios: Sequence[float]) -> tuple[float, float]:
    ordered = sorted(ratios)
    n = len(ordered)
    return (ordered[n // 4], ordered[(3 * n) // 4 if n > 1 else 0]) if ordered else (0.0, 0.0)
