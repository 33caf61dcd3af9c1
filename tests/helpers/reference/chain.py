# SPDX-License-Identifier: MIT
"""Greedy draft-verify with a chain, in PyTorch: the loop behind the published acceptance figures.

Each round drafts K tokens from the last committed row and runs the target over them. It keeps the longest
prefix that equals the target's argmax, adds one token of the target, and recomputes the drafter's rows with
true features.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from .drafter import Drafter
from .target import Target


def draft_chain(drafter: Drafter, logits: torch.Tensor, state: torch.Tensor, depth: int) -> list[int]:
    """Returns `depth` greedy drafts (target ids), given the logits and the state of the last committed
    row.
    """
    drafts = [int(drafter.target_ids[logits.argmax()])]
    for step in range(1, depth):
        rows, states = drafter.extend(state[None], drafts[-1:], [step - 2], depth=step)
        logits, state = rows[0], states[0]
        drafts.append(int(drafter.target_ids[logits.argmax()]))
    return drafts


def generate(
    target: Target, drafter: Drafter, prompt: Sequence[int], n_tokens: int, depth: int
) -> tuple[list[int], list[int]]:
    """Runs whole rounds until at least `n_tokens` tokens exist. The first token comes from the prefill.
    Returns the tokens, and the number of accepted drafts of each round.
    """
    target.reset()
    drafter.reset()
    features, target_logits = target.forward(prompt)
    tokens, accepted = [int(target_logits[-1].argmax())], list[int]()
    logits, state = drafter.commit(features, [*prompt[1:], tokens[-1]])
    while len(tokens) < n_tokens:
        drafts = draft_chain(drafter, logits, state, depth)
        n_before = target.n_tokens
        features, target_logits = target.forward([tokens[-1], *drafts])
        choice = target_logits.argmax(-1).tolist()
        n_accepted = next((i for i, d in enumerate(drafts) if d != choice[i]), depth)
        accepted.append(n_accepted)
        new = choice[: n_accepted + 1]
        tokens += new
        target.truncate(n_before + n_accepted + 1)
        logits, state = drafter.commit(features[:, : n_accepted + 1], new)
    return tokens, accepted
