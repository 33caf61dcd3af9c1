# SPDX-License-Identifier: MIT
"""The chart of a run: loss and learning rate over tokens, acceptance per depth on held-out data."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from eaglecpp.files import replaced
from eaglecpp.train.fit.loop import Progress

__all__ = ["plot"]

_SMOOTHED = 100
"""Points of the smoothed loss curve."""


def plot(progress: Progress, path: Path, title: str = "") -> None:
    """Writes a PNG; needs matplotlib, no display."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, 4.2), layout="constrained")
    FigureCanvasAgg(figure)
    left, right = figure.subplots(1, 2)
    losses = np.array([row[:6] for row in progress.losses], np.float64).reshape(-1, 6)
    left.plot(losses[:, 1], losses[:, 3], color="tab:blue", alpha=0.25, linewidth=0.8)
    width = max(1, len(losses) // _SMOOTHED)
    smooth = np.convolve(losses[:, 3], np.ones(width) / width, mode="valid")
    left.plot(losses[width - 1 :, 1], smooth, color="tab:blue", label="loss")
    left.set(xlabel="tokens", ylabel="loss (nats per row)", title=title)
    rate = left.twinx()
    rate.plot(losses[:, 1], losses[:, 4], color="tab:gray", linestyle=":", label="learning rate")
    rate.set_ylabel("learning rate")
    found = np.array(progress.evaluations, np.float64)
    if found.size:
        for k in range(found.shape[1] - 4):
            right.plot(found[:, 1], found[:, 4 + k], marker=".", label=f"depth {k + 1}")
        right.set(xlabel="tokens", ylabel="accepted, of those reached", ylim=(0, 1))
        right.set_title(f"held-out acceptance; simulated length {progress.best_length:.2f}")
        right.legend(fontsize="small")
    with replaced(path) as temporary:
        figure.savefig(temporary, format="png", dpi=110)
