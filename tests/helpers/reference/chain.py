# SPDX-License-Identifier: MIT
"""Greedy draft-verify with a chain, in PyTorch: the loop behind the published acceptance figures.

One round: draft K tokens from the last committed row, run the target over them, keep the longest prefix that
equals the target's argmax and add one token of the target, then recompute the drafter's rows with true
features.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch

from .drafter import Drafter
from .target import Target


@dataclass
class ChainRun:
    """Counts of one generation. Lists have one entry for each draft depth."""

    tokens: list[int] = field(default_factory=list)
    rounds: int = 0
    tried: list[int] = field(default_factory=list)
    accepted: list[int] = field(default_factory=list)

    @property
    def acceptance_length(self) -> float:
        """Tokens per forward pass of the target, including the bonus token."""
        return (sum(self.accepted) + self.rounds) / self.rounds


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


def generate(target: Target, drafter: Drafter, prompt: Sequence[int], n_tokens: int, depth: int) -> ChainRun:
    """Runs whole rounds until at least `n_tokens` tokens exist. The first token comes from the prefill."""
    run = ChainRun(tried=[0] * depth, accepted=[0] * depth)
    target.reset()
    drafter.reset()
    features, target_logits = target.forward(prompt)
    run.tokens.append(int(target_logits[-1].argmax()))
    logits, state = drafter.commit(features, [*prompt[1:], run.tokens[-1]])
    while len(run.tokens) < n_tokens:
        drafts = draft_chain(drafter, logits, state, depth)
        n_before = target.n_tokens
        features, target_logits = target.forward([run.tokens[-1], *drafts])
        choice = target_logits.argmax(-1).tolist()
        n_accepted = next((i for i, d in enumerate(drafts) if d != choice[i]), depth)
        for i in range(depth):
            run.tried[i] += i <= n_accepted
            run.accepted[i] += i < n_accepted
        run.rounds += 1
        new = choice[: n_accepted + 1]
        run.tokens += new
        target.truncate(n_before + n_accepted + 1)
        logits, state = drafter.commit(features[:, : n_accepted + 1], new)
    return run
