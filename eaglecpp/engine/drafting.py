# SPDX-License-Identifier: MIT
"""`Drafting`: what an engine can draft from, which strategy runs if one is requested, and why."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from eaglecpp.engine.exactness import Exactness
from eaglecpp.engine.native import NativeEngine
from eaglecpp.errors import InvalidValueError
from eaglecpp.options import Strategy

__all__ = ["Drafting", "resolve_strategy"]


def resolve_strategy(strategy: Strategy, has_draft: bool, chains_only: str = "") -> tuple[Strategy, str]:
    """As `Engine.resolve`. chains_only: why the target takes no trees, "" when it does."""
    if strategy.kind in ("chain", "tree") and not has_draft:
        raise InvalidValueError(f"strategy {strategy} needs a drafter: open the engine with draft=...")
    resolved, why = strategy.resolved(has_draft)
    if resolved.kind == "tree" and chains_only:
        return Strategy.parse(f"chain:{resolved.depth}"), f"instead of {strategy}: {chains_only}"
    return resolved, why


@dataclass
class Drafting:
    """has_draft: whether there is a drafter, or the text is drafted from; strategy: the engine's own;
    n_leaves: most leaves of a tree.
    """

    engine: NativeEngine
    has_draft: bool
    strategy: Strategy
    n_leaves: int
    exactness: Exactness = field(default_factory=Exactness)

    def resolve(self, strategy: Strategy) -> tuple[Strategy, str]:
        """As `Engine.resolve`."""
        resolved, why = resolve_strategy(strategy, self.has_draft, self.engine.chains_only)
        if resolved.kind == "tree" and resolved.n_leaves > self.n_leaves:
            why += (
                f", with at most {self.n_leaves} leaves instead of {resolved.n_leaves}: the engine was "
                "opened for that many (n_leaves_max)"
            )
        return resolved, why

    def plan_facts(self, asked: Mapping[str, Any], raw: Mapping[str, Any]) -> dict[str, Any]:
        """`Timings.plan` of a generation that has ended. asked: strategy and why; raw: its counters."""
        plan = dict(asked)
        if not self.has_draft:
            return plan
        says_why = plan["strategy"] == "auto"
        plan |= {name: fact for name, fact in raw["plan"].items() if says_why or name != "why"}
        if says_why and self.engine.chains_only:
            plan["why"] += f"; chains only: {self.engine.chains_only}"
        if raw["cut"] >= 0:
            plan["why"] += f"; {self._why_cut(raw['cut'])}"
        return plan

    def _why_cut(self, n_nodes: int) -> str:
        """Why a strategy ran smaller than it is, or not at all."""
        exact = self.exactness
        if n_nodes == 0:
            return f"plain, to be exact: {exact.reason or f'only batches of {exact.rows} rows are exact'}"
        return f"cut to {n_nodes} nodes, because only batches of {exact.rows} rows are exact"
