# SPDX-License-Identifier: MIT
"""Follows the engine's tree rounds with the PyTorch transcription of EAGLE-2 and compares the nodes.

The engine's plan log names, for every round, the nodes it expanded level by level and the nodes it had
verified, as places in the pool of everything proposed; the pool is laid out alike on both sides. The
reference gets the tokens the engine committed, so one different pick cannot hide behind another.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import eaglecpp
from helpers.reference.drafter import Drafter
from helpers.reference.target import Target
from helpers.reference.tree import grow, rerank

__all__ = ["Round", "compare_rounds", "read_round"]


@dataclass(frozen=True)
class Round:
    """One round. levels: expanded nodes; nodes: verified ones; both count the pool from 1, 0 is the root."""

    levels: list[list[int]]
    nodes: list[int]


def read_round(line: str) -> Round:
    """A line of the plan log; the nodes in pool order, for the engine verifies them depth first."""
    fields = dict(field.split("=") for field in line.split()[1:])
    levels = fields["levels"].split("/") if "levels" in fields else []
    return Round([_numbers(level) for level in levels], sorted(_numbers(fields.get("nodes", ""))))


def _numbers(text: str) -> list[int]:
    return [int(number) for number in text.split(",")] if text else []


def compare_rounds(
    session: eaglecpp.Session,
    target: Target,
    drafter: Drafter,
    prompt: Sequence[int],
    strategy: eaglecpp.Strategy,
    n_tokens: int,
) -> tuple[int, list[str]]:
    """Number of whole rounds compared, and one line per round whose nodes differ."""
    run = _generate(session, prompt, strategy, n_tokens)
    tokens = [*prompt, *run.first]
    target.reset()
    drafter.reset()
    features, _ = target.forward([*tokens, *(t for part in run.parts for t in part)])
    n_seen, different = 0, []
    for number, (part, line) in enumerate(zip(run.parts, run.log, strict=True)):
        rows = slice(n_seen, len(tokens) - 1)
        logits, state = drafter.commit(features[:, rows], tokens[n_seen + 1 :])
        n_seen = len(tokens) - 1
        pool = grow(drafter, logits, state, k=strategy.k, depth=strategy.depth)
        expected = Round(
            [[0], *_levels(pool.parents, strategy.k)],
            [place + 1 for place in rerank(pool, tokens[-1], strategy.nodes).places],
        )
        found = read_round(line)
        if found != expected:
            different.append(f"round {number}: {found}, expected {expected}; {_margin(pool.scores, found)}")
        tokens += part
    return len(run.parts), different


@dataclass(frozen=True)
class _Run:
    first: list[int]  # the prefill's token
    parts: list[list[int]]  # of each round
    log: list[str]


def _generate(
    session: eaglecpp.Session, prompt: Sequence[int], strategy: eaglecpp.Strategy, n_tokens: int
) -> _Run:
    """Rounds until `n_tokens` tokens exist, none of them cut short by the end."""
    parts: list[list[int]] = []
    with session.stream(
        list(prompt),
        max_tokens=n_tokens + 2 * strategy.depth + 2,
        temperature=0.0,
        ignore_eos=True,
        strategy=strategy,
        log_plan=True,
    ) as stream:
        for chunk in stream:
            parts.append(chunk.tokens)
            if sum(map(len, parts)) >= n_tokens:
                break
        stream.close()
        return _Run(parts[0], parts[1:], stream.completion().plan_log)


def _levels(parents: Sequence[int], k: int) -> list[list[int]]:
    """The pool's groups of children belong to the root, then to k frontier nodes per level."""
    groups = list(parents)[1:]
    return [groups[i : i + k] for i in range(0, len(groups), k)]


def _margin(scores: Sequence[float], found: Round) -> str:
    """How close the call was: the worst node taken against the best one left."""
    taken = {node - 1 for node in found.nodes}
    left = max((s for i, s in enumerate(scores) if i not in taken), default=0.0)
    return f"margin {min(scores[i] for i in taken) - left:.1e}"
