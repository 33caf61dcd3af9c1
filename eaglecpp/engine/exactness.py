# SPDX-License-Identifier: MIT
"""For how many rows this model, on this machine, gives a row in a batch the same bits as alone.

Drafting verifies several tokens in one batch, and the kernels that multiply several rows may add in another
order than those that multiply one. Whether they do depends on the type of the weights, the shapes, the
device and the build, so it is measured when a model is first opened with a drafter, a few dozen steps long,
and kept with the planner's costs. If nothing is exact a model still drafts, unless `exact` forbids it.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass

from eaglecpp._extension import core

_log = logging.getLogger("eaglecpp.exactness")


@dataclass(frozen=True)
class Exactness:
    """What was found.

    rows:       the exact numbers of rows, as in "1-5, 8"
    never:      why this target is never exact with a drafter, "" if it can be
    trees:      trees can be exact; chains can in any case
    ms, decodes: what measuring took; 0 when it was known from before
    """

    rows: str = "1"
    never: str = ""
    trees: bool = False
    ms: float = 0.0
    decodes: int = 0

    @property
    def reason(self) -> str:
        """Why nothing but plain decoding is exact; "" where some batch is."""
        if self.never:
            return self.never
        return "no batch of several rows gives the same bits as single rows here" if self.rows == "1" else ""


def measure(native: core.Engine, sequence: int = -1) -> Exactness:
    """Measures, whatever is known. The engine must not have been used yet; or in `sequence`, which is
    cleared, while no other one generates (EngineBusyError).
    """
    took = native.measure_exact_rows(sequence)
    made = found(native, took["ms"], took["decodes"])
    _log.info("rows that are exact in a batch: %s (%d steps, %.0f ms)", made.rows, made.decodes, made.ms)
    return made


def found(native: core.Engine, ms: float = 0.0, decodes: int = 0) -> Exactness:
    """What the engine was told, or measured."""
    return Exactness(native.exact_rows, native.never_exact, native.keeps_order, ms, decodes)
