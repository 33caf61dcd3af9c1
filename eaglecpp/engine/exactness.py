# SPDX-License-Identifier: MIT
"""Batch sizes at which a model on this machine computes each token to the same bits as in a batch of one
token.

Drafting verifies several tokens in one batch. The kernels for several tokens may add in another order than
the kernels for one token. The order depends on the type of the weights, the shapes, the device and the build.
Exactness is therefore measured, in a few dozen steps: for at most two seconds when a model is opened with a
drafter, then after answers (for a tenth of their time), in pauses (`Engine.pause`, `AsyncEngine`) and at
later openings. Until then, answers use only batch sizes that are known to be exact. The result is saved with
the planner's costs. A model without exact batch sizes still drafts, unless the option `exact` forbids it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass

from eaglecpp._extension import core

_log = logging.getLogger("eaglecpp.exactness")


@dataclass(frozen=True)
class Exactness:
    """Result of measuring the exact batch sizes.

    rows:       the exact batch sizes in tokens, as in "1-5, 8"
    never:      reason why this target is never exact with a drafter, "" if it can be exact
    trees:      True if draft trees can be exact too; draft chains always can
    ms, decodes: milliseconds and decoding steps of the measurement; 0 if the result was loaded from a file
    is_complete: False while batch sizes are unmeasured; they do not count as exact
    """

    rows: str = "1"
    never: str = ""
    trees: bool = False
    ms: float = 0.0
    decodes: int = 0
    is_complete: bool = True

    @property
    def reason(self) -> str:
        """Reason why only target-only decoding is exact; "" if some batch of several tokens is exact."""
        if self.never or self.rows != "1":
            return self.never
        if not self.is_complete:
            return "the exact batches are not measured yet"
        return "no batch of tokens gives the same bits as single tokens here"


def measure(native: core.Engine, go_on: Callable[[], bool] = lambda: True) -> Exactness:
    """Measures the batch sizes that are still unknown, and returns all results. go_on: called before each
    decoding step; False ends the measurement. Raises EngineBusyError while a sequence generates.
    """
    native.measure_exact_rows(go_on)
    state = native.exact_state
    rows, never, trees = state["rows"], native.never_exact, native.keeps_order
    result = Exactness(rows, never, trees, state["ms"], state["decodes"], state["is_complete"])
    _log.info("exact batch sizes: %s (%d steps, %.0f ms)", result.rows, result.decodes, result.ms)
    return result
