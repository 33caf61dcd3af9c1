# SPDX-License-Identifier: MIT
"""EAGLE-2 tree growth and rerank in PyTorch, after SafeAILab/EAGLE: eagle/model/cnets.py (`topK_genrate`).

Takes a drafter with its committed rows and the last row's logits and state; gives the kept nodes in pool
order, root first. The index arithmetic of the original pool is kept as it is (1-based, 0 is the root), so
that the same picks are made. One word differs: `depth` counts draft levels, which is the original's loop
count plus one.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from .drafter import Drafter

__all__ = ["Pool", "Tree", "grow", "rerank"]


@dataclass(frozen=True)
class Pool:
    """Every scored child, level by level: `k` of the root, then `k * k` per further level.

    `parents` has one entry per group of `k` children: 0 for the root, else 1 + the parent's place in the
    pool.
    """

    k: int
    tokens: list[int]
    scores: list[float]
    parents: list[int]

    def parent(self, idx: int) -> int:
        """Place in the pool of the parent of `idx`, -1 for the root."""
        return self.parents[idx // self.k] - 1


@dataclass(frozen=True)
class Tree:
    """Kept nodes; node 0 is the root with parent -1, others are sorted by their place in the pool.

    `places`: of the nodes without the root, in the pool.
    """

    places: list[int]
    tokens: list[int]
    parents: list[int]
    depths: list[int]
    logps: list[float]


def grow(drafter: Drafter, logits: torch.Tensor, state: torch.Tensor, k: int, depth: int) -> Pool:
    """Scores all children of every frontier; `logits` and `state` are those of the last committed row."""
    logp = logits.log_softmax(-1).topk(k)
    scores, tokens = logp.values, drafter.target_ids[logp.indices]
    pool_tokens, pool_scores, parents = [tokens], [scores], [torch.zeros(1, dtype=torch.long)]
    frontier = torch.arange(k)  # places of the frontier within the level before
    states, rows = state.repeat(k, 1), [-1] * k
    for i in range(depth - 1):
        bias = 1 + k * k * max(0, i - 1) + (k if i > 0 else 0)
        parents.append(frontier + bias)
        out, states = drafter.extend(states, tokens.tolist(), rows, depth=i + 1)
        best = out.log_softmax(-1).topk(k)
        children = best.values + scores[:, None]
        pool_scores.append(children.flatten())
        pool_tokens.append(drafter.target_ids[best.indices].flatten())
        chosen = children.flatten().topk(k)
        frontier, scores = chosen.indices, chosen.values
        rows = (i * k + frontier // k).tolist()  # draft rows of the parents: k rows were added per level
        states, tokens = states[frontier // k], pool_tokens[-1][frontier]
    return Pool(
        k, torch.cat(pool_tokens).tolist(), torch.cat(pool_scores).tolist(), torch.cat(parents).tolist()
    )


def rerank(pool: Pool, root: int, n_nodes: int) -> Tree:
    """The best `n_nodes` of the pool by path log-probability, in pool order, below `root`."""
    scores = torch.tensor(pool.scores, dtype=torch.float64)
    kept = sorted(scores.topk(min(n_nodes, len(scores))).indices.tolist())
    node = {-1: 0} | {idx: i for i, idx in enumerate(kept, start=1)}
    tree = Tree(kept, [root], [-1], [0], [0.0])
    for idx in kept:
        parent = node[pool.parent(idx)]
        tree.tokens.append(pool.tokens[idx])
        tree.parents.append(parent)
        tree.depths.append(tree.depths[parent] + 1)
        tree.logps.append(pool.scores[idx])
    return tree
