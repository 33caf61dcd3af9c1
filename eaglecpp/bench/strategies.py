# SPDX-License-Identifier: MIT
"""How fast each strategy decodes on this machine, and what the planner learns from it.

`measure` runs plain decoding, fixed strategies and the planner in turns on the same prompts, so that a
machine that changes speed changes all of them; only ratios of neighbours count. `plan_report` gives the
planner's cost table, the reliability of its acceptance model and the speed it expects of every draft size.
Prints nothing.
"""

from __future__ import annotations

import heapq
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from eaglecpp.engine import Engine
from eaglecpp.errors import InvalidValueError
from eaglecpp.results import Timings

__all__ = ["PROMPTS", "STRATEGIES", "Measured", "measure", "plan_report", "point_at"]

STRATEGIES = (
    "off",
    "chain:1",
    "chain:2",
    "chain:3",
    "chain:5",
    "tree:k=4,depth=3,nodes=8",
    "tree:k=4,depth=5,nodes=15",
    "auto",
)
PROMPTS = (
    "def quicksort(items):\n    if len(items) <= 1:\n        return items\n",
    "The history of the steam engine begins with",
    "Three things to remember when you cook rice:\n1.",
)
_N_TOKENS = (16, 256)  # of one answer, least and most
_N_PASSES = 3  # prompts wanted within the time, at least
_N_WARM = 12  # tokens of the answer that tells how fast the machine is
_N_NODES_MAX = 32


@dataclass(frozen=True)
class Measured:
    """One strategy. Medians over all answers; `ratio`: speed against plain decoding of the same prompt in the
    same pass, `ratios` each of them; `ms`: per token.
    """

    strategy: str
    ms: float
    ratio: float
    ratios: tuple[float, ...]
    acceptance_length: float
    acceptance_rate: float
    plan: dict[str, Any] = field(default_factory=dict)

    @property
    def tokens_per_second(self) -> float:
        return 1000.0 / self.ms if self.ms else 0.0

    def as_dict(self) -> dict[str, Any]:
        """JSON-ready."""
        return asdict(self) | {"tokens_per_second": self.tokens_per_second}


def measure(
    engine: Engine,
    strategies: Sequence[str] = STRATEGIES,
    prompts: Sequence[str | bytes] = PROMPTS,
    *,
    seconds: float = 60.0,
    n_tokens: int = 0,
    others: Mapping[str, Engine] | None = None,
    progress: Callable[[str], None] = lambda text: None,
    **options: Any,
) -> list[Measured]:
    """Decodes until `seconds` are over, at least one prompt with every strategy; the first strategy is plain.

    others: engines of the same target with other drafters, whose planner takes part under their names

    Ctrl+C ends it early with what was measured by then, if every strategy has answered a prompt.

    `n_tokens`: per answer, 0 = as many as give three passes. `options`: of `Session.stream`; the default is
    greedy, without an end. Raises `ValueError` when the first strategy is not "off".
    """
    if not strategies or str(strategies[0]) != "off":
        raise InvalidValueError("strategies: the first one must be 'off', which the others are compared with")
    options = {"temperature": 0.0, "ignore_eos": True, "seed": 1} | options
    started = time.monotonic()
    who = {strategy: (engine, strategy) for strategy in strategies}
    who |= {name: (other, "auto") for name, other in (others or {}).items()}
    n_tokens = n_tokens or _answer_length(engine, prompts, len(who), seconds, options)
    found: dict[str, list[Timings]] = {name: [] for name in who}
    try:
        for number in range(1_000_000):
            passed = time.monotonic() - started
            if number and seconds - passed < passed / (2 * number):  # half of what one more is going to take
                break
            progress(f"prompt {number + 1}")
            for name in _in_turn(list(who), number):
                progress(f"prompt {number + 1}: {name}")
                prompt = prompts[number % len(prompts)]
                found[name].append(_answer(who[name][0], prompt, n_tokens, who[name][1], options))
    except KeyboardInterrupt:
        if not all(found.values()):
            raise
    n_whole = min(map(len, found.values()))
    plain = found[strategies[0]][:n_whole]
    return [_measured(name, found[name][:n_whole], plain) for name in who]


def plan_report(engine: Engine) -> dict[str, Any] | None:
    """What the planner knows: the extension's report, and `chains` and `trees`, lists of {nodes, depth,
    tokens, ms, speed} for every draft size: tokens and time expected of a round, speed against plain.

    None without a drafter, or where a plain step was neither measured nor predicted. Raises `ValueError`
    before the engine's first use.
    """
    if not engine.has_draft:
        return None
    report = engine.native.planner_report(0)
    report["plain_ms"] = report["plain_ms"] or report["verify"][0][1] + report["plain_host_ms"]
    if not report["plain_ms"]:
        return None
    rank_one = [ranks[:1] for ranks in report["chances"]]
    report["chains"] = [_expected(report, nodes) for nodes in _grown(rank_one, len(rank_one))]
    report["trees"] = [_expected(report, nodes) for nodes in _grown(report["chances"], _N_NODES_MAX)]
    return report


# Measuring


def _answer_length(
    engine: Engine, prompts: Sequence[str | bytes], n_strategies: int, seconds: float, options: dict[str, Any]
) -> int:
    """Warms up, and finds how many tokens an answer may have."""
    _answer(engine, prompts[0], _N_WARM, "off", options)
    plain = _answer(engine, prompts[0], _N_WARM, "off", options)
    n_answers = n_strategies * max(len(prompts), _N_PASSES)
    n = int(1000.0 * seconds / (n_answers * max(_ms_per_token(plain), 1e-3)))
    return min(max(n, _N_TOKENS[0]), _N_TOKENS[1], max(1, engine.n_ctx // 2))


def _answer(
    engine: Engine, prompt: str | bytes, n_tokens: int, strategy: str, options: dict[str, Any]
) -> Timings:
    engine.clear()
    return engine.generate(prompt, max_tokens=n_tokens, strategy=strategy, **options).timings


def _in_turn(strategies: Sequence[str], number: int) -> Sequence[str]:
    """Another order each pass, so that nobody always follows the same one."""
    at = number % len(strategies)
    turned = [*strategies[at:], *strategies[:at]]
    return turned if number % 2 == 0 else turned[::-1]


def _ms_per_token(stats: Timings) -> float:
    """The first token comes with the prompt."""
    return stats.predicted_ms / max(stats.predicted_n - 1, 1)


def _measured(strategy: str, answers: list[Timings], plain: list[Timings]) -> Measured:
    ms = [_ms_per_token(answer) for answer in answers]
    ratios = tuple(_ms_per_token(one) / own for one, own in zip(plain, ms, strict=True) if own > 0)
    total = sum(answers[1:], answers[0])
    return Measured(
        strategy,
        statistics.median(ms),
        statistics.median(ratios) if ratios else 0.0,
        ratios,
        total.acceptance_length,
        total.acceptance_rate,
        dict(answers[-1].plan),
    )


# Expectations


@dataclass(frozen=True)
class _Node:
    p: float  # chance that it is accepted
    depth: int


def _grown(chances: Sequence[Sequence[float]], n_most: int) -> Iterator[list[_Node]]:
    """The best trees of 1, 2, ... nodes when the chance of a child depends on its depth and rank alone."""
    heap = [(-chance, 1, rank, 1.0) for rank, chance in enumerate(chances[0])]
    heapq.heapify(heap)
    nodes: list[_Node] = []
    while heap and len(nodes) < n_most:
        minus, depth, _, _ = heapq.heappop(heap)
        nodes = [*nodes, _Node(-minus, depth)]
        yield nodes
        if depth < len(chances):
            for rank, chance in enumerate(chances[depth]):
                heapq.heappush(heap, (minus * chance, depth + 1, rank, -minus))


def _expected(report: dict[str, Any], nodes: list[_Node]) -> dict[str, Any]:
    """What a round that verifies these nodes is expected to give and to take."""
    depth = max(node.depth for node in nodes)
    # a level is drafted once for all parents of the next one, of which there are no more than children
    widths = [sum(node.depth == d + 1 for node in nodes) for d in range(1, depth)]
    ms = _at(report["verify"], 1 + len(nodes)) + _at(report["commit"], 2) + report["host_ms"]
    ms += sum(_at(report["level"], width) for width in widths) + report["plain_host_ms"]
    tokens = 1.0 + sum(node.p for node in nodes)
    return {
        "nodes": len(nodes),
        "depth": depth,
        "tokens": tokens,
        "ms": ms,
        "speed": tokens * report["plain_ms"] / ms,
    }


def point_at(points: Sequence[tuple[int, float, float]], n_rows: int) -> tuple[int, float, float]:
    """(rows, ms, samples) of n rows in a report's costs; sizes share a bucket that is named after its largest
    one.
    """
    return next((point for point in points if point[0] >= n_rows), points[-1])


def _at(points: Sequence[tuple[int, float, float]], n_rows: int) -> float:
    return point_at(points, n_rows)[1]
