# SPDX-License-Identifier: MIT
"""The engine's trees are EAGLE-2's: the same nodes as the PyTorch transcription, round by round."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import eaglecpp
from helpers.reference.drafter import Drafter
from helpers.reference.target import Target
from helpers.tiny import prompt_ids

from .conftest import EXACT, ConvertedPair
from .tree_rounds import compare_rounds, read_round

TREES = ["tree:k=4,depth=5,nodes=16", "tree:k=2,depth=3,nodes=5", "tree:k=8,depth=2,nodes=30"]
N_TOKENS = 60


@pytest.mark.parametrize("kind", ["eagle3", "eagle31"])
@pytest.mark.parametrize("text", TREES)
def test_the_same_nodes_as_the_reference(text: str, kind: str, pairs: Callable[..., ConvertedPair]) -> None:
    it, strategy = pairs(kind), eaglecpp.Strategy.parse(text)
    target = Target(it.pair.target.directory, it.pair.layers)
    drafter = Drafter.load(it.pair.checkpoint, target.embedding, target.head)
    options: dict[str, Any] = {"n_ctx": 512, "n_threads": 1, "strategy": strategy, **EXACT}
    with eaglecpp.Engine.open(it.pair.target.gguf, draft=it.draft, **options) as engine:
        n_rounds, different = compare_rounds(
            engine.session(), target, drafter, prompt_ids(30, seed=4), strategy, N_TOKENS
        )
    assert n_rounds >= N_TOKENS // (strategy.depth + 1)
    assert not different, "\n".join(different)


def test_one_child_per_node_is_the_chain(pairs: Callable[..., ConvertedPair]) -> None:
    it = pairs("eagle31")
    with eaglecpp.Engine.open(
        it.pair.target.gguf, draft=it.draft, strategy="chain:4", n_ctx=512, n_threads=1, **EXACT
    ) as engine:
        runs = []
        for strategy in ("chain:4", "tree:k=1,depth=4,nodes=4"):
            engine.clear()
            runs.append(
                engine.generate(
                    prompt_ids(30),
                    max_tokens=80,
                    temperature=0.0,
                    ignore_eos=True,
                    strategy=strategy,
                    log_plan=True,
                )
            )
    chain, tree = runs
    assert (tree.tokens, tree.accepted) == (chain.tokens, chain.accepted)
    shapes = [[read_round(line) for line in run.plan_log if "nodes" in line] for run in runs]
    assert shapes[0] == shapes[1]
    assert shapes[0][0].levels == [[0], [1], [2], [3]]
    assert tree.timings.hits_per_depth == chain.timings.hits_per_depth
