# SPDX-License-Identifier: MIT
"""The pictures of `eaglecpp bench --png`: speeds of the strategies and, with a plan, the costs of
verification, the speed expected of every draft size and how reliable the predicted chances were.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from eaglecpp.files import replaced

__all__ = ["draw", "require"]


def require() -> None:
    """Raises `click.ClickException` saying how to get matplotlib when it is missing."""
    try:
        import matplotlib  # noqa: F401
    except ImportError:
        raise click.ClickException("--png needs matplotlib: pip install matplotlib") from None


def draw(path: Path, measured: Sequence[Any], plan: dict[str, Any] | None) -> None:
    """Writes the picture in one step. measured: `eaglecpp.bench.Measured`; plan: of `plan_report`."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, 7 if plan else 3.5), layout="constrained")
    FigureCanvasAgg(figure)
    if plan is None:
        _speeds(figure.add_subplot(), measured)
    else:
        axes = figure.subplots(2, 2)
        _speeds(axes[0][0], measured)
        _costs(axes[0][1], plan)
        _curve(axes[1][0], plan)
        _reliability(axes[1][1], plan)
    _save(figure, path)


def _save(figure: Any, path: Path) -> None:
    try:
        with replaced(path) as temporary:
            figure.savefig(temporary, format="png", dpi=120)
    except OSError as error:
        raise click.ClickException(f"cannot write {str(path)!r}: {error.strerror}") from error


def _speeds(axes: Any, measured: Sequence[Any]) -> None:
    names = ["plain" if one.strategy == "off" else one.strategy for one in measured]
    axes.barh(names, [one.ratio for one in measured], color="#4878a8")
    for i, one in enumerate(measured):
        axes.plot(one.ratios, [i] * len(one.ratios), "k.", markersize=3, alpha=0.5)
    axes.axvline(1.0, color="gray", linewidth=0.8)
    axes.invert_yaxis()
    axes.set_title("speed against plain decoding")


def _costs(axes: Any, plan: dict[str, Any]) -> None:
    largest = max((rows for rows, _, n in plan["verify"] if n > 0), default=1)
    points = [(rows, ms, n) for rows, ms, n in plan["verify"] if rows <= largest]
    axes.plot([rows for rows, _, _ in points], [ms for _, ms, _ in points], color="gray", linewidth=0.8)
    known = [(rows, ms) for rows, ms, n in points if n > 0]
    axes.plot(*zip(*known, strict=True), "o", color="#4878a8")
    axes.set(title="time of verification, ms", xlabel="rows", ylim=(0, None))


def _curve(axes: Any, plan: dict[str, Any]) -> None:
    for kind, style in (("chains", "o-"), ("trees", ".-")):
        points = plan[kind]
        axes.plot([p["nodes"] for p in points], [p["speed"] for p in points], style, label=kind)
    axes.axhline(1.0, color="gray", linewidth=0.8)
    axes.set(title="expected speed against plain decoding", xlabel="drafted nodes")
    axes.legend()


def _reliability(axes: Any, plan: dict[str, Any]) -> None:
    axes.plot([0, 1], [0, 1], color="gray", linewidth=0.8)
    for kind, found in plan["acceptance"].items():
        bins = [(predicted, true) for n, predicted, true in found["bins"] if n > 0]
        if bins:
            axes.plot(*zip(*bins, strict=True), "o-", label=f"{kind}, {found['labels']:.0f} labels")
    axes.set(title="chance of acceptance", xlabel="predicted", ylabel="true")
    if axes.get_legend_handles_labels()[0]:
        axes.legend()
