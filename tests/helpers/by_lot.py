# SPDX-License-Identifier: MIT
"""Drafts accepted at random, to measure speeds and shapes of rounds without a trained drafter."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from eaglecpp.engine.request import ResolvedRequest


@contextmanager
def accepted_by_lot(rates: Sequence[float]) -> Iterator[None]:
    """Accepts drafts at random in generations that begin inside: the first with probability rates[0], the
    first two with rates[1], and so on. The resulting text is not the target's.
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
