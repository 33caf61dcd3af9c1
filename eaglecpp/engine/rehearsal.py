# SPDX-License-Identifier: MIT
"""A short warm-up when an engine opens without known costs.

The warm-up gives the planner measured costs before the first answer. A device loads each kernel at its first
use, and CUDA runs a graph twice before it is captured. With a drafter, these first uses take tens of
milliseconds, as long as twenty target-only steps of a small model. Without a warm-up, the planner would count
this time as the cost of drafting in the first answer, and stop drafting.
"""

from __future__ import annotations

import time
from dataclasses import replace
from itertools import product

from eaglecpp._extension import core
from eaglecpp.engine.request import generate_params
from eaglecpp.errors import UnsupportedError
from eaglecpp.options import SamplingOptions, Strategy

_TEXT = b"The sun rises in the east and sets in the west. "
_TOKENS = 16
_DEPTH = 3  # maximum depth of the chains that are drafted
# Maximum seconds of the warm-up. An engine that takes longer for these steps hardly needs a warm-up.
_SECONDS = 2.0


def rehearse(native: core.Engine, sampling: SamplingOptions) -> None:
    """Drafts short answers, greedily and at the temperature of `sampling`. The engine must not have any
    conversation.
    """
    try:
        prompt = native.tokenize(_TEXT, True, False)
    except UnsupportedError:  # the vocabulary cannot tokenize letters
        return
    if not prompt or len(prompt) + _TOKENS >= native.n_ctx:
        return
    depth = min(_DEPTH, native.n_draft_max, (native.draft_info() or {}).get("n_parallel") or _DEPTH)
    # Other sampling options are not set, because they may need features that the text or the model lacks.
    plain = SamplingOptions(max_tokens=_TOKENS, ignore_eos=True)
    deadline = time.monotonic() + _SECONDS
    # For a chain of one token, the drafter's graph contains only the commit. For a longer chain, the graph
    # contains the commit and the draft steps.
    for strategy, temperature in product(("chain:1", f"chain:{depth}"), {0.0, sampling.temperature}):
        params = generate_params(replace(plain, temperature=temperature), 1, Strategy.parse(strategy))
        sequence = native.open_sequence()
        try:
            native.begin(sequence, prompt, params)
            while time.monotonic() < deadline and not native.step([sequence])[0].finish:
                pass
        finally:
            native.end(sequence)
            native.close_sequence(sequence)
