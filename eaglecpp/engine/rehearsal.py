# SPDX-License-Identifier: MIT
"""A few drafted tokens before anyone waits for some, where it is not known what they cost.

The planner then begins the first answer with measured prices. A device loads each kernel at its first use,
and CUDA runs a graph twice before it is captured; with a drafter that is tens of milliseconds, as much as
twenty plain steps of a small model. In a first answer the planner would take that for the price of drafting,
and stop.
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
_DEPTH = 3  # of the chains, where drafter and engine allow as many tokens
_SECONDS = 2.0  # where steps are that slow, graphs are a small part of them


def rehearse(native: core.Engine, sampling: SamplingOptions) -> None:
    """Drafts short answers, greedily and at the temperature of `sampling`. The engine must hold no
    conversation.
    """
    try:
        prompt = native.tokenize(_TEXT, True, False)
    except UnsupportedError:  # a vocabulary without letters
        return
    if not prompt or len(prompt) + _TOKENS >= native.n_ctx:
        return
    depth = min(_DEPTH, native.n_draft_max, (native.draft_info() or {}).get("n_parallel") or _DEPTH)
    # other options may ask for what this text or model does not have
    plain = SamplingOptions(max_tokens=_TOKENS, ignore_eos=True)
    deadline = time.monotonic() + _SECONDS
    # what a commit costs alone, then together with the levels that follow in its graph
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
