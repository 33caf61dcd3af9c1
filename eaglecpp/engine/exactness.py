# SPDX-License-Identifier: MIT
"""Batch sizes at which a model on this machine computes each token to the same bits as in a batch of one
token.

Drafting verifies several tokens in one batch. The kernels for several tokens may add in another order than
the kernels for one token. The order depends on the type of the weights, the shapes, the device and the build.
Exactness is therefore measured when a model is first opened with a drafter, which takes a few dozen steps.
The result is saved with the planner's costs. A model without exact batch sizes still drafts, unless the
option `exact` forbids it.
"""

from __future__ import annotations

import logging
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
    """

    rows: str = "1"
    never: str = ""
    trees: bool = False
    ms: float = 0.0
    decodes: int = 0

    @property
    def reason(self) -> str:
        """Reason why only target-only decoding is exact; "" if some batch of several tokens is exact."""
        if self.never:
            return self.never
        return "no batch of tokens gives the same bits as single tokens here" if self.rows == "1" else ""


def measure(native: core.Engine, sequence: int = -1) -> Exactness:
    """Measures the exact batch sizes, ignoring earlier results. sequence: the sequence that the measurement
    uses and clears; -1 = a new sequence, for which the engine must be unused. Raises EngineBusyError while
    another sequence generates.
    """
    counters = native.measure_exact_rows(sequence)
    result = found(native, counters["ms"], counters["decodes"])
    _log.info("exact batch sizes: %s (%d steps, %.0f ms)", result.rows, result.decodes, result.ms)
    return result


def found(native: core.Engine, ms: float = 0.0, decodes: int = 0) -> Exactness:
    """Returns the measured exactness of an engine. ms, decodes: time and steps of the measurement; 0 if the
    result was loaded from a file
    """
    return Exactness(native.exact_rows, native.never_exact, native.keeps_order, ms, decodes)
