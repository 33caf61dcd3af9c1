# SPDX-License-Identifier: MIT
"""Drafts accepted at random: speeds and shapes of rounds that no trained drafter is needed for."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from eaglecpp.engine.request import ResolvedRequest


@contextmanager
def accepted_by_lot(rates: Sequence[float]) -> Iterator[None]:
    """Generations that begin inside accept drafts with these chances: of the first, of the first two, ...
    What they say is not the target's text.
    """
    made = ResolvedRequest.params

    def params(request: ResolvedRequest) -> object:
        found = made(request)
        found.synth_rates = list(rates)
        return found

    ResolvedRequest.params = params  # type: ignore[method-assign, assignment]
    try:
        yield
    finally:
        ResolvedRequest.params = made  # type: ignore[method-assign]
