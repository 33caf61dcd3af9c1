# SPDX-License-Identifier: MIT
"""Synthetic acceptance: drafts accepted at random, for honest speed tests of untrained drafters.

The two ways to say how often are llama.cpp's `--spec-synth-rates` and `--spec-synth-len` (ggml-org/llama.cpp:
docs/speculative.md). The text that comes out is not the target's; timings made so carry `synth_rates`.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence

from eaglecpp._extension import core
from eaglecpp.errors import InvalidValueError
from eaglecpp.options import Strategy

__all__ = ["synth_rates"]

_log = logging.getLogger("eaglecpp.synth")
_AUTO_DEPTH = 10  # levels the planner drafts at most


def synth_rates(
    rates: str | Sequence[float] | None, length: float | None, strategy: Strategy
) -> tuple[float, ...]:
    """The rates to draft with; () for neither, which is the real thing.

    rates:  the chance that the first 1, 2, ... drafts are all accepted, "0.8,0.6,0.45" or numbers; deeper
            drafts never are
    length: mean acceptance length with drafts as deep as the strategy's, the target's own token included

    Raises `ValueError` for rates outside 0 to 1 or rising, for an impossible length, and for both at once.
    """
    if rates is None and length is None:
        return ()
    if rates is not None and length is not None:
        raise InvalidValueError("spec_synth_rates and spec_synth_len are alternatives; give only one")
    if strategy.kind == "off":
        raise InvalidValueError("synthetic acceptance needs drafts, and the strategy is off")
    if length is not None:
        depth = strategy.depth or _AUTO_DEPTH
        found = tuple(core.synth_rates(float(length), depth))
    else:
        assert rates is not None
        found = _parsed(rates)
    _log.warning("synthetic acceptance is on, for speed tests only: the text is not the target's")
    return found


def _parsed(rates: str | Sequence[float]) -> tuple[float, ...]:
    parts = rates.split(",") if isinstance(rates, str) else list(rates)
    try:
        numbers = tuple(float(part) for part in parts)
    except (TypeError, ValueError):
        raise InvalidValueError(
            f"spec_synth_rates: {rates!r} is not a list of numbers such as 0.8,0.6,0.45"
        ) from None
    above = 1.0
    for position, rate in enumerate(numbers, start=1):
        if not (math.isfinite(rate) and 0.0 <= rate <= above):
            raise InvalidValueError(
                f"spec_synth_rates: number {position} is {rate:g}, expected 0 to {above:g}: it is the "
                "probability that all drafts up to there are accepted, so it cannot rise"
            )
        above = rate
    if not numbers:
        raise InvalidValueError("spec_synth_rates: no numbers; expected for example 0.8,0.6,0.45")
    return numbers
