# SPDX-License-Identifier: MIT
"""Batch sizes for which this model, on this machine, computes each token to the same bits as alone.

Drafting verifies several tokens in one batch, and the kernels for several tokens may add in another order
than the kernels for one. Whether they do depends on the type of the weights, the shapes, the device and the
build, so exactness is measured when a model is first opened with a drafter (a few dozen steps) and saved with
the planner's costs. If no batch is exact the model still drafts, unless `exact` forbids it.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass

from eaglecpp._extension import core

_log = logging.getLogger("eaglecpp.exactness")


@dataclass(frozen=True)
class Exactness:
    """Result of the measurement.

    rows:       the exact batch sizes in tokens, as in "1-5, 8"
    never:      reason why this target is never exact with a drafter, "" if it can be exact
    trees:      True if trees can be exact too; chains always can be exact
    ms, decodes: time and steps of the measurement; 0 if the result was loaded from a file
    """

    rows: str = "1"
    never: str = ""
    trees: bool = False
    ms: float = 0.0
    decodes: int = 0

    @property
    def reason(self) -> str:
        """Reason why only target-only decoding is exact; "" if some batch is."""
        if self.never:
            return self.never
        return "no batch of tokens gives the same bits as single tokens here" if self.rows == "1" else ""


def measure(native: core.Engine, sequence: int = -1) -> Exactness:
    """Measures the exact batch sizes, ignoring earlier results. Without `sequence`, the engine must be
    unused. Otherwise this sequence is used and cleared. Raises EngineBusyError while another sequence
    generates.
    """
    counters = native.measure_exact_rows(sequence)
    result = found(native, counters["ms"], counters["decodes"])
    _log.info("exact batch sizes: %s (%d steps, %.0f ms)", result.rows, result.decodes, result.ms)
    return result


def found(native: core.Engine, ms: float = 0.0, decodes: int = 0) -> Exactness:
    """Returns the exactness of an engine, which was measured, or loaded from a file."""
    return Exactness(native.exact_rows, native.never_exact, native.keeps_order, ms, decodes)
