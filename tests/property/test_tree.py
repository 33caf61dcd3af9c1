# SPDX-License-Identifier: MIT
"""What holds for every draft tree: selection, paths, masks, and the walk of sample-and-match."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from eaglecpp.lowlevel import DraftTree, match
from helpers.reference.tree import Pool, rerank

ROOT = 7


@dataclass(frozen=True)
class Spec:
    """A tree as plain lists; node 0 is the root. `steps`: conditional log-probabilities."""

    tokens: list[int]
    parents: list[int]
    steps: list[float]

    def build(self) -> DraftTree:
        tree = DraftTree(ROOT)
        for token, parent, step in zip(self.tokens[1:], self.parents[1:], self.steps[1:], strict=True):
            tree.add(token, parent, step)
        return tree

    def path(self, node: int) -> list[int]:
        return [*self.path(self.parents[node]), node] if node else [0]


@st.composite
def specs(draw: st.DrawFn, max_nodes: int = 30) -> Spec:
    """Any tree whose siblings carry different tokens; many exact ties in the probabilities."""
    n_nodes = draw(st.integers(0, max_nodes))
    tokens, parents, steps = [ROOT], [-1], [0.0]
    n_children: dict[int, int] = {}
    for node in range(1, n_nodes + 1):
        parent = draw(st.integers(0, node - 1))
        n_children[parent] = n_children.get(parent, 0) + 1
        tokens.append(10 * n_children[parent])
        parents.append(parent)
        steps.append(-draw(st.sampled_from([0.0, 0.125, 0.5, 1.0, 4.0])))
    return Spec(tokens, parents, steps)


def chain_sums(spec: Spec) -> list[float]:
    return [sum(spec.steps[i] for i in spec.path(node)) for node in range(len(spec.tokens))]


@given(specs(), st.integers(0, 40))
def test_selection_is_the_best_ancestor_closed_set(spec: Spec, n_nodes: int) -> None:
    tree, sums = spec.build(), chain_sums(spec)
    chosen = tree.select(n_nodes)
    assert len(chosen) == 1 + min(n_nodes, len(tree) - 1)
    assert chosen.tokens[0] == ROOT
    assert chosen.depths == sorted(chosen.depths), "breadth first"
    # every kept node hangs under its own parent again
    paths = {tuple(spec.tokens[i] for i in spec.path(node)) for node in range(len(tree))}
    kept = [tuple(chosen.tokens[i] for i in chosen.path(node)) for node in range(len(chosen))]
    assert set(kept) <= paths
    assert len(set(kept)) == len(kept)
    # log-probabilities never rise along a path, so the best nodes are an ancestor-closed set
    best = sorted(sums[1:], reverse=True)[: len(chosen) - 1]
    assert sorted(chosen.logps[1:], reverse=True) == pytest.approx(best, abs=1e-5)


@given(
    st.integers(1, 4).flatmap(
        lambda k: st.tuples(
            st.just(k),
            st.lists(st.floats(-9, -0.25, width=32), min_size=k, max_size=k, unique=True),
            st.lists(st.floats(-9, -0.25, width=32), min_size=k * k, max_size=k * k, unique=True),
        )
    ),
    st.integers(1, 20),
)
def test_selection_equals_the_reference_rerank(
    drawn: tuple[int, list[float], list[float]], n_nodes: int
) -> None:
    """Two levels of EAGLE-2 growth, scores without ties."""
    k, first, second = drawn
    scores = np.array([*first, *(s + first[i // k] for i, s in enumerate(second))])
    if len(set(scores.astype(np.float32).tolist())) < len(scores):
        return
    pool = Pool(k, list(range(100, 100 + len(scores))), scores.tolist(), [0, *range(1, k + 1)])
    tree = DraftTree(ROOT)
    for i, token in enumerate(pool.tokens):
        parent = pool.parent(i) + 1
        tree.add(token, parent, scores[i] - (scores[parent - 1] if parent else 0.0))
    expected, chosen = rerank(pool, ROOT, n_nodes), tree.select(n_nodes)
    assert chosen.tokens == expected.tokens
    assert chosen.parents == expected.parents
    assert chosen.logps == pytest.approx(expected.logps, abs=1e-4)


@given(specs(), st.data())
def test_match_follows_the_target_and_ends_with_its_token(spec: Spec, data: st.DataObject) -> None:
    choices = [data.draw(st.sampled_from([10, 20, 30, 99])) for _ in spec.tokens]
    nodes, bonus = match(spec.build(), choices)
    node, expected = 0, []
    while True:
        children = {spec.tokens[i]: i for i, parent in enumerate(spec.parents) if parent == node}
        if choices[node] not in children:
            break
        node = children[choices[node]]
        expected.append(node)
    assert nodes == expected
    assert bonus == choices[node]
