# SPDX-License-Identifier: MIT
"""For how many rows this model, on this machine, gives a row in a batch the same bits as alone.

Drafting verifies several tokens in one batch, and the kernels that multiply several rows may add in another
order than those that multiply one. Whether they do depends on the type of the weights, the shapes, the
device and the build, so it is measured when a model is first opened with a drafter, a few dozen steps long,
and stored next to the planner's costs. If nothing is exact a model still drafts, unless `exact` forbids it.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from eaglecpp._extension import core
from eaglecpp.engine.gains import read_record
from eaglecpp.engine.planner_cache import (
    PlannerCache,
    options_key,
    planner_file,
    target_key,
)
from eaglecpp.files import fingerprint, replace_bytes

if TYPE_CHECKING:
    from eaglecpp.options import DraftOptions, ModelOptions

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


def settle(
    native: core.Engine, target: Path, model: ModelOptions, drafting: DraftOptions, *, has_costs: bool
) -> Exactness:
    """Tells the engine what was measured before with the same file, build, device and options, or measures.
    The engine must not have been used yet. has_costs: the planner knows from before what rows cost; if not,
    it learns that from the batches that are measured here.
    """
    path = planner_file(_key(native, target, model, drafting), "exact")
    wanted = PlannerCache.is_wanted(drafting)
    known = read_record(path, _File) if wanted and has_costs else None
    if known is not None:
        native.set_exact_rows(known.points)
        return _found(native)
    found = measure(native)
    if wanted:
        try:
            replace_bytes(path, msgspec.json.encode(_File(native.exact_points)))
        except OSError as error:
            _log.info("cannot save which rows are exact: %s", error)
    return found


def measure(native: core.Engine) -> Exactness:
    """Measures, whatever is known."""
    took = native.measure_exact_rows()
    found = _found(native, took["ms"], took["decodes"])
    _log.info("rows that are exact in a batch: %s (%d steps, %.0f ms)", found.rows, found.decodes, found.ms)
    return found


def _found(native: core.Engine, ms: float = 0.0, decodes: int = 0) -> Exactness:
    return Exactness(native.exact_rows, native.never_exact, native.keeps_order, ms, decodes)


def _key(native: core.Engine, target: Path, model: ModelOptions, drafting: DraftOptions) -> str:
    # how large the batches are that were measured: of the drafts of all conversations and of prompts beside
    # them; a context as short as that has room for fewer rows before them
    sizes = (
        f"n_draft_max={native.n_draft_max} n_sequences={model.n_sequences} "
        f"n_shared_rows={native.n_shared_rows} n_ctx={min(native.n_ctx, 1024)}"
    )
    # our kernels are in the extension
    build = "" if core.__file__ is None else f"build={fingerprint(Path(core.__file__))}"
    options = options_key(model, drafting, free={"n_threads_batch"})
    return f"{target_key(native, target)} {build} {sizes} {options}"


class _File(msgspec.Struct):
    points: list[tuple[int, bool]]
