# SPDX-License-Identifier: MIT
"""Accepts drafts at random, so that speeds and shapes of rounds can be measured without a trained drafter."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from eaglecpp.engine.request import ResolvedRequest


@contextmanager
def accepted_at_random(rates: Sequence[float]) -> Iterator[None]:
    """Accepts drafts at random in generations that begin inside the `with` block. The first draft of a round
    is accepted with probability rates[0], the first two drafts with probability rates[1], and so on. The
    resulting text is not the target's.
    """
    original = ResolvedRequest.params

    def params(request: ResolvedRequest) -> object:
        sampling = original(request)
        sampling.synth_rates = list(rates)
        return sampling

    ResolvedRequest.params = params  # type: ignore[method-assign, assignment]
    try:
        yield
    finally:
        ResolvedRequest.params = original  # type: ignore[method-assign]
