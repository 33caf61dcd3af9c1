# SPDX-License-Identifier: MIT
"""What `compare.py` shows: tables of ratios, the goals with their numbers, rows for JSON, a PNG.

Takes `Results`, measures nothing. Without matplotlib there is no PNG, and a note says so.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

from common import note, table
from compare_stats import (
    GOALS,
    LLAMA_PLAIN,
    OUR_PLAIN,
    Cell,
    Contestant,
    Results,
    Verdict,
    geometric_mean,
    label,
    spread,
)

NOISY = 0.05  # spread of plain decoding from which figures are not to be trusted to two digits


def own_plain(one: Contestant) -> Contestant:
    return OUR_PLAIN if one.system == OUR_PLAIN.system else LLAMA_PLAIN


def noise(results: Results, loads: Sequence[float]) -> str:
    """How quiet the machine was, in one line."""
    parts = []
    for plain in (OUR_PLAIN, LLAMA_PLAIN):
        found = spread(results, plain)
        if found is not None:
            parts.append(f"{plain.name} {100 * found:.0f} %{' (NOISY)' if found > NOISY else ''}")
    load = f"load average {min(loads):.1f} to {max(loads):.1f}" if loads else "load average unknown"
    return (
        f"spread of plain decoding (90th over 10th percentile): {', '.join(parts) or 'one run only'}; {load}"
    )


def as_rows(results: Results) -> list[dict[str, Any]]:
    """One row per cell and contestant, for JSON."""
    rows = []
    for cell in results.cells():
        finalists = results.finalists(cell)
        for one in results.contestants:
            runs = results.runs(cell, one)
            if not runs:
                continue
            n_drafted = sum(run.draft_n for run in runs)
            over_own = results.ratios(cell, one, own_plain(one))
            over_llama = results.ratios(cell, one, LLAMA_PLAIN)
            row = {
                "set": cell[0],
                "temperature": cell[1],
                "contestant": one.name,
                "tokens_per_second": results.speed(cell, one),
                "over_own_plain": results.ratio(cell, one, own_plain(one)),
                "over_llama_plain": results.ratio(cell, one, LLAMA_PLAIN),
                "over_own_plain_mean": geometric_mean(over_own) if over_own else None,
                "over_llama_plain_mean": geometric_mean(over_llama) if over_llama else None,
                "over_own_plain_by_prompt": over_own,
                "over_llama_plain_by_prompt": over_llama,
                "acceptance_rate": sum(run.draft_n_accepted for run in runs) / n_drafted
                if n_drafted
                else None,
                "share_of_limit": results.share_of_limit(cell, one),
                "prompts": len(runs),
                "on_all_prompts": one in finalists,
                "outputs_differing": sum(not run.same for run in runs),
            }
            rows.append(row)
    return rows


def print_results(name: str, results: Results) -> None:
    """One table per target: a line per contestant, a column per cell."""
    cells = results.cells()
    has_llama = LLAMA_PLAIN in results.contestants
    print(
        f"\n## {name}\n\nx own plain{' / x llama.cpp plain' if has_llama else ''}, medians over prompts;",
        end=" ",
    )
    print("in brackets: not run on all prompts, too far behind on the first\n")
    rows = []
    for one in results.contestants:
        speeds = [speed for cell in cells if (speed := results.speed(cell, one)) is not None]
        texts = [_cell_text(results, cell, one, has_llama) for cell in cells]
        n_differing = sum(not run.same for cell in cells for run in results.runs(cell, one))
        n_runs = sum(len(results.runs(cell, one)) for cell in cells)
        average = geometric_mean(speeds) if speeds else 0.0
        rows.append([one.name, *texts, f"{average:.1f}", f"{n_differing} of {n_runs}"])
    head = [f"{label(cell)} ({len(results.runs(cell, OUR_PLAIN))})" for cell in cells]
    print(table(["contestant (prompts)", *head, "tokens/s", "other tokens"], rows))


def _cell_text(results: Results, cell: Cell, one: Contestant, has_llama: bool) -> str:
    plains = [own_plain(one), *([LLAMA_PLAIN] if has_llama else [])]
    ratios = [results.ratio(cell, one, plain) for plain in plains]
    text = " / ".join("" if ratio is None else f"{ratio:.2f}" for ratio in ratios)
    return text if one in results.finalists(cell) else f"({text})"


def print_verdicts(found: Sequence[Verdict]) -> None:
    """Each goal with its worst figure, then every place where one was missed."""
    print("\n## Goals\n")
    rows = []
    for goal, group in groupby(found, key=lambda verdict: verdict.goal):
        members = list(group)
        worst = min(members, key=lambda verdict: verdict.value)
        n_reached = sum(verdict.reached for verdict in members)
        says = "reached" if n_reached == len(members) else "NOT REACHED"
        rows.append(
            [goal, GOALS[goal], f"{worst.value:.3f}", _place(worst), f"{n_reached} of {len(members)}", says]
        )
    measured = {verdict.goal for verdict in found}
    rows += [
        [goal, wanted, "", "", "", "not measured"] for goal, wanted in GOALS.items() if goal not in measured
    ]
    print(table(["goal", "wanted", "worst", "where", "reached at", ""], rows))
    missed = [verdict for verdict in found if not verdict.reached]
    if missed:
        print("\nMissed:\n")
        print(
            table(
                ["goal", "wanted", "value", "where"],
                [[v.goal, v.wanted, f"{v.value:.3f}", _place(v)] for v in missed],
            )
        )


def _place(verdict: Verdict) -> str:
    return f"{verdict.where} (against {verdict.beside})" if verdict.beside else verdict.where


def draw(path: Path, targets: Mapping[str, Results]) -> bool:
    """Bars over the plain baseline, one panel per target; False, with a note, without matplotlib."""
    if importlib.util.find_spec("matplotlib") is None:
        note("no PNG: matplotlib is not installed")
        return False
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, 3.2 * len(targets)), layout="constrained")
    panels = figure.subplots(len(targets), 1, squeeze=False)[:, 0]
    for panel, (name, results) in zip(panels, targets.items(), strict=True):
        _draw_target(panel, name, results)
    figure.savefig(path, dpi=130)
    note(f"wrote {path}")
    return True


def _draw_target(panel: Any, name: str, results: Results) -> None:
    base = LLAMA_PLAIN if LLAMA_PLAIN in results.contestants else OUR_PLAIN
    cells = results.cells()
    bars = _bars(results, base)
    width = 0.85 / len(bars)
    for i, (title, heights) in enumerate(bars.items()):
        places = [c + (i - (len(bars) - 1) / 2) * width for c in range(len(cells))]
        drawn = panel.bar(places, [height or 0.0 for height in heights], width, label=title)
        panel.bar_label(drawn, fmt="%.2f", fontsize=6, padding=1)
    panel.axhline(1.0, color="black", linewidth=0.8)
    panel.set_xticks(range(len(cells)), [label(cell) for cell in cells])
    panel.set_title(name)
    panel.set_ylabel(f"x {base.name}")
    panel.legend(fontsize=7, ncols=4)
    panel.margins(y=0.25)


def _bars(results: Results, base: Contestant) -> dict[str, list[float | None]]:
    """Heights per cell: the planners and the default as they are, of each sweep the best in hindsight."""
    bars: dict[str, list[float | None]] = {}
    cells = results.cells()
    for one in results.contestants:
        heights = [
            results.ratio(cell, one, base) if one in results.finalists(cell) else None for cell in cells
        ]
        titles = [one.name] if one.sweep is None else []
        if one.kind == "fixed":
            titles.append(f"eaglecpp best fixed {one.draft}")
        elif one.system == "llama.cpp" and one.kind != "plain":
            titles.append("llama.cpp best setting")
        for title in titles:
            before = bars.get(title, [None] * len(cells))
            bars[title] = [
                max(filter(None, pair), default=None) for pair in zip(before, heights, strict=True)
            ]
    bars.pop(base.name, None)
    return bars
