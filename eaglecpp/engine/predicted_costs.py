# SPDX-License-Identifier: MIT
"""What rows and drafts should cost with these files on this processor, before anything was measured.

    T(n rows) = waits + hypot(bytes read / bandwidth, n * products / speed)

A batch reads the weights once, and each of its rows multiplies them; where one of the two takes long, it
hides most of the other. Of experts a batch reads those that its rows chose. Good to about a third on the
processors that it was compared with (docs/research/planner.md); ratios of rows, which decide whether drafting
pays, are closer than times. On a GPU nothing is predicted: its prices are measured when a model is opened.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from eaglecpp._extension import core

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

# Products per nanosecond of one thread, of weights of up to 6 bits, of 8 bits and of floating-point ones, by
# kernel table. Measured on an Intel Xeon, those of AVX2 alone on AMD Zen 3 and 4 (docs/research/planner.md);
# those of ARM follow from the number of products of an instruction.
_SPEEDS = {
    "avx512": (158.0, 168.0, 20.0),
    "avx_vnni": (93.0, 96.0, 12.0),
    "avx2": (88.0, 58.0, 12.0),
    "neon_i8mm": (90.0, 90.0, 10.0),
    "neon": (60.0, 60.0, 10.0),
    "portable": (4.0, 4.0, 2.0),
    "ggml": (30.0, 30.0, 10.0),
}
# Of weights that our kernels leave to ggml, by llama.h's number of the file's type: NVFP4, Q1_0, Q2_0; where
# the file says nothing, as NVFP4's.
_SPEED_BY_ROWS = {"39": 12.0, "40": 26.0, "41": 2.5}
_BANDWIDTH = 18.0  # bytes per nanosecond of one thread ...
_BANDWIDTH_MOST = 45.0  # ... and of all together: two channels of memory
_BANDWIDTH_GGML = 0.55  # of that, which ggml's kernels reach with one row
_LAYER_MS = 0.015  # threads that wait for each other, and what lies between products
_DRAFTER_MS = 0.1  # the same, of the drafter's graph
_HOST_MS, _HOST_DRAFT_MS = 0.05, 0.1
_LEVEL_SHARE = 0.7  # of the time of the drafter's first level, which also reads the target's features
# Those that are measured when a model is first opened with a drafter (native/target/exact_rows.cpp), so that
# none stays predicted for long; sizes in between follow them.
_ROWS = (1, 2, 3, 4, 5, 8, 16)


@dataclass(frozen=True)
class Processor:
    """kernels: the table in use, or "ggml" for ggml's own."""

    kernels: str
    n_threads: int

    @property
    def bandwidth(self) -> float:
        """Bytes per nanosecond."""
        bandwidth = min(_BANDWIDTH * self.n_threads, _BANDWIDTH_MOST)
        return bandwidth * (_BANDWIDTH_GGML if self.kernels == "ggml" else 1.0)

    def speed(self, bits: float) -> float:
        """Products per nanosecond with weights of so many bits."""
        kind = 0 if bits < 7.5 else 1 if bits < 12 else 2
        return _SPEEDS.get(self.kernels, _SPEEDS["ggml"])[kind] * self.n_threads


@dataclass(frozen=True)
class Weights:
    """What a row multiplies. experts: their share of the weights; used: the share of them that a row uses;
    by_rows: the share that ggml multiplies row by row while our kernels do the rest, at `speed_by_rows`
    products per nanosecond of one thread; level: of a drafter, the time of a level over that of the first.
    """

    n_bytes: float
    n_weights: float
    wait_ms: float
    experts: float = 0.0
    used: float = 1.0
    by_rows: float = 0.0
    speed_by_rows: float = _SPEED_BY_ROWS["39"]
    level: float = _LEVEL_SHARE

    def read(self, n_rows: int) -> float:
        """The share of them that a batch of n rows reads."""
        return 1.0 - self.experts + self.experts * (1.0 - (1.0 - self.used) ** n_rows)

    def ms(self, n_rows: int, processor: Processor) -> float:
        """Of a batch of n rows."""
        read = self.read(n_rows)
        multiplied = 1.0 - self.experts + self.experts * self.used
        memory = read * self.n_bytes / processor.bandwidth
        products = n_rows * multiplied * self.n_weights
        ours = (1.0 - self.by_rows) * products / processor.speed(8 * self.n_bytes / self.n_weights)
        theirs = self.by_rows * products / (self.speed_by_rows * processor.n_threads)
        return self.wait_ms + math.hypot(memory, ours + theirs) / 1e6


def predict(native: core.Engine) -> dict[str, list[float]] | None:
    """Prices for `native.load_costs`; None where nothing can be predicted."""
    processor = _processor(native)
    return None if processor is None else costs_of(_target(native), _drafter(native), processor)


def predicted_gain(native: core.Engine) -> float | None:
    """Plain decoding with our kernels in times of that with ggml's; None where ours do not run."""
    ours, target = _processor(native), _target(native)
    if ours is None or ours.kernels == "ggml":
        return None
    return target.ms(1, Processor("ggml", ours.n_threads)) / target.ms(1, ours)


def _processor(native: core.Engine) -> Processor | None:
    """None where a GPU takes part."""
    info = core.system_info()
    if any(device["kind"] != "cpu" for device in info["devices"]):
        return None
    known = native.device_info()
    return Processor(info["kernels"]["table"] if known["kernels"] else "ggml", known["n_threads"])


def _target(native: core.Engine) -> Weights:
    """From the head of the file. Embeddings that are not the output's, too, count as multiplied."""
    n_weights = float(max(native.n_params, 1))
    experts, used = _experts(native.metadata(), native.n_layer * native.n_embd / n_weights)
    wait_ms, by_rows = _LAYER_MS * native.n_layer, native.share_by_rows
    speed = _SPEED_BY_ROWS.get(native.metadata().get("general.file_type", ""), _SPEED_BY_ROWS["39"])
    return Weights(native.size_bytes, n_weights, wait_ms, experts, used, by_rows, speed)


def _drafter(native: core.Engine) -> Weights | None:
    """None for drafts from the text alone. A drafter without a head of its own multiplies the target's."""
    info = native.draft_info()
    if info is None:
        return None
    n_bytes = float(sum(place["draft_weights"] for place in native.memory_plan()))
    if info["kind"] == "head":  # a block and the target's output matrix
        n_bytes = native.size_bytes / max(info["n_layer"], 1)
        n_bytes += info["n_embd"] * info["n_vocab"] * native.size_bytes / max(native.n_params, 1)
        return Weights(n_bytes, n_bytes / 0.7, _DRAFTER_MS, level=1.0)
    if info["kind"] == "model":
        return Weights(n_bytes, n_bytes / 0.7, _LAYER_MS * info["n_layer"], level=1.0)
    if not info["has_head"]:
        n_bytes += info["n_embd"] * info["n_draft_vocab"] * native.size_bytes / max(native.n_params, 1)
    return Weights(n_bytes, n_bytes / 0.7, _DRAFTER_MS)


def _experts(metadata: Mapping[str, str], matrices: float) -> tuple[float, float]:
    """The experts' share of the weights, and the share of experts that a row uses."""
    arch = metadata.get("general.architecture", "")

    def number(name: str) -> float:
        text = metadata.get(f"{arch}.{name}", "")
        return float(text) if text.isdecimal() else 0.0

    n_experts, n_used = number("expert_count"), number("expert_used_count")
    if not 0 < n_used < n_experts:
        return 0.0, 1.0
    n_ff = number("expert_feed_forward_length") or number("feed_forward_length")
    return min(3 * n_experts * n_ff * matrices, 0.95), n_used / n_experts


def costs_of(target: Weights, draft: Weights | None, processor: Processor) -> dict[str, list[float]]:
    """For `native.load_costs`: rows and milliseconds in turn. draft: None for drafts from the text alone."""

    def priced(weights: Weights, rows: Iterable[int], factor: float = 1.0) -> list[float]:
        return [value for n in rows for value in (n, factor * weights.ms(n, processor))]

    costs = {"verify": priced(target, _ROWS), "host": [_HOST_MS, _HOST_DRAFT_MS]}
    if draft is not None:
        costs |= {"commit": priced(draft, (1, 4)), "level": priced(draft, (1, 4), draft.level)}
    return costs
