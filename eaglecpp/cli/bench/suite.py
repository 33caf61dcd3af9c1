# SPDX-License-Identifier: MIT
"""`eaglecpp bench --suite`: a suite of prompts by category, beside plain decoding and, with `--compare`,
beside another server.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from eaglecpp.cli.bench import plot as bench_plot
from eaglecpp.cli.options import possible_strategies
from eaglecpp.cli.table import table
from eaglecpp.cli.terminal import note, show_progress, write, write_json

if TYPE_CHECKING:
    from eaglecpp.bench.suite_run import Cell, SuiteResult

__all__ = ["STRATEGIES", "Settings", "run", "summary"]

STRATEGIES = ("chain:5", "auto")
"""Beside plain decoding. The chain of five gives the acceptance length that publications name."""


@dataclass(frozen=True)
class Settings:
    """As the command's options; seconds: None = until the suite's end; users: questions asked side by side, a
    run for each.
    """

    n_tokens: int
    temperature: float
    seed: int
    limit: int | None
    seconds: float | None
    compare: str | None
    users: tuple[int, ...] = (1,)


def run(
    reference: str,
    open_model: Callable[[], Any],
    strategies: Sequence[str],
    settings: Settings,
    *,
    as_json: bool,
    png: str | None,
) -> None:
    """Reads the suite before the model, asks, prints."""
    from eaglecpp.bench.server import ChatServer
    from eaglecpp.bench.suite import in_turns, read_suite
    from eaglecpp.bench.suite_run import run_suite

    suite = read_suite(reference)
    if suite.n_masked:
        note(f"skipping {suite.n_masked} questions whose text is not in {suite.name}")
    server = ChatServer(settings.compare) if settings.compare else None
    with open_model() as engine:
        if not engine.has_chat_template:
            note("this model has no chat template: the first turn of each question is continued as text")
        strategies = possible_strategies(engine, strategies or STRATEGIES)
        results: list[SuiteResult] = []
        for n_users in settings.users:
            try:
                result = run_suite(
                    engine,
                    in_turns(suite.questions, settings.limit),
                    strategies,
                    n_tokens=settings.n_tokens,
                    temperature=settings.temperature,
                    seed=settings.seed,
                    seconds=math.inf if settings.seconds is None else settings.seconds / len(settings.users),
                    server=server,
                    n_users=n_users,
                    progress=show_progress,
                )
            except KeyboardInterrupt:  # before the first answer of this number
                if not results:
                    raise
                break
            results.append(result)
            if result.interrupted:
                break
    show_progress("")
    if as_json:
        told = {"suite": suite.name, "settings": asdict(settings)}
        found = [result.as_dict() for result in results]
        write_json(told | (found[0] if len(settings.users) == 1 else {"results": found}))
    else:
        write("\n".join(summary(result) for result in results))
    for result in results if png is not None else ():
        path = Path(str(png))
        if len(settings.users) > 1:
            path = path.with_stem(f"{path.stem}-{result.n_users}")
        bench_plot.draw_suite(path, result)
        note(f"wrote {path}")


def summary(result: SuiteResult) -> str:
    """The table by category and strategy, and what was compared."""
    from eaglecpp.bench.suite_run import SERVER

    rows = []
    for category in [*result.categories, "all"]:
        for strategy in result.strategies:
            cell = result.total(strategy) if category == "all" else result.cells[category, strategy]
            rows.append([category if strategy == "off" else "", *_columns(strategy, cell)])
    header = ["category", "strategy", "questions", "tokens", "length", "by depth", "tokens/s", "speed", "95%"]
    text = table(header, rows)
    if result.n_users > 1:
        speeds = [
            f"{'plain' if strategy == 'off' else strategy} {result.together(strategy):.1f}"
            for strategy in result.strategies
        ]
        text = f"{result.n_users} users\n{text}tokens/s of all together: {', '.join(speeds)}\n"
    if SERVER in result.strategies:
        for strategy in result.strategies:
            if strategy != SERVER and (speed := result.over(strategy, SERVER).speed):
                name = "plain decoding" if strategy == "off" else strategy
                text += f"{name} over the server: {speed[0]:.2f}x ({speed[1]:.2f} to {speed[2]:.2f})\n"
    if result.n_long:
        text += f"{result.n_long} questions did not fit into the context and are left out\n"
    if not result.complete:
        text += f"ended early, after {result.n_asked} questions\n"
    return text


def _columns(strategy: str, cell: Cell) -> list[str]:
    mean, low, high = cell.speed or (0.0, 0.0, 0.0)
    return [
        "plain" if strategy == "off" else strategy,
        str(cell.n_questions),
        str(cell.n_tokens),
        f"{cell.acceptance_length:.2f}" if cell.rounds and strategy != "off" else "",
        " ".join(f"{rate:.2f}" for rate in cell.rates[:8]),
        f"{cell.tokens_per_second:.1f}",
        f"{mean:.2f}x" if cell.ratios else "",
        f"{low:.2f} to {high:.2f}" if len(cell.ratios) > 1 and strategy != "off" else "",
    ]
