# SPDX-License-Identifier: MIT
"""Measures the decoding speed of each strategy on this machine and reports the planner's measurements.

`measure` alternates target-only decoding, fixed strategies and the planner on the same questions. So a change
of the machine's speed affects all of them, and only ratios of neighbouring answers count. Questions are asked
in the same way as by `run`: with the model's chat template and up to its end token, because endless raw text
repeats itself and is then drafted easily. `plan_report` returns the planner's cost table, the reliability of
its acceptance model and the expected speed of every draft size. This module prints nothing.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from itertools import accumulate
from operator import mul
from typing import Any

from eaglecpp.engine.engine import Engine
from eaglecpp.engine.gains import Answered
from eaglecpp.errors import InvalidValueError
from eaglecpp.results import Completion, Timings

STRATEGIES = (
    "off", "chain:1", "chain:2", "chain:3", "chain:5",
    "tree:k=4,depth=3,nodes=8", "tree:k=4,depth=5,nodes=15", "auto",
)  # fmt: skip
QUESTIONS = (
    "Write a Python function that sorts a list by quicksort, and explain how it works.",
    "How did the steam engine change the way people lived and worked?",
    "What should I remember when I cook rice? Give me a list with a reason for each point.",
)
TEMPERATURES = (0.0, 0.8)
"""Greedy, and the default of `run`."""
BenchPrompt = str | bytes | Sequence[Mapping[str, str]]
"""Raw text, or the messages of a chat."""
_N_TOKENS = (16, 256)  # minimum and maximum number of tokens of one answer
_N_PASSES = 3  # minimum number of prompts in a measurement
_N_WARM = 12  # number of tokens of the first answer, which only measures the machine's speed
_N_COUNTS = 8  # minimum number of tokens of an answer whose speed is reliable
# Maximum ratio of the upper to the lower quartile of the time per target-only token. A higher ratio means
# that other programs disturbed the measurement.
_STEADY = 1.3
# Maximum ratio of the speed-up to the tokens per round. A higher ratio means that other programs disturbed
# the measurement.
_NOISE = 1.05


@dataclass(frozen=True)
class Speeds:
    """Measurement of one strategy at one temperature, as medians over all answers.

    ms:        milliseconds per token
    ratio:     speed relative to target-only decoding of the same prompt in the same pass, median of `ratios`
    acceptance_by_position: share of accepted drafts at position 1, 2, ... of a round, among rounds whose
               earlier drafts are accepted
    is_steady: the times of target-only tokens agree, and the ratio does not exceed the tokens per round
    """

    strategy: str
    temperature: float
    ms: float
    ratio: float
    ratios: tuple[float, ...]
    acceptance_length: float
    acceptance_rate: float
    acceptance_by_position: tuple[float, ...]
    is_steady: bool
    plan: dict[str, Any] = field(default_factory=dict)
    answers: tuple[Answered, ...] = field(default=(), repr=False)

    @property
    def tokens_per_second(self) -> float:
        return 1000.0 / self.ms if self.ms else 0.0

    def as_dict(self) -> dict[str, Any]:
        """Returns the measurement as JSON-ready data."""
        values = asdict(self) | {"tokens_per_second": self.tokens_per_second}
        return {name: value for name, value in values.items() if name != "answers"}


def measure(
    engine: Engine,
    strategies: Sequence[str] = STRATEGIES,
    prompts: Sequence[BenchPrompt] | None = None,
    *,
    temperatures: Sequence[float] = TEMPERATURES,
    seconds: float = 60.0,
    n_tokens: int = 0,
    others: Mapping[str, Engine] | None = None,
    progress: Callable[[str], None] = lambda text: None,
    **options: Any,
) -> list[Speeds]:
    """Measures strategies for `seconds`. Every strategy decodes at least one prompt at every temperature.

    Returns the measurements of the first strategy at all temperatures, then those of the next strategy.

    strategies: the first one must be "off"
    prompts: None = `QUESTIONS` as chats, or as text if the model has no chat template
    others: engines of the same target with other drafters; measured with `auto` under their names
    n_tokens: maximum tokens of an answer; 0 = as many as fit in three passes
    options: options of `Session.stream`

    Ctrl+C ends the measurement early with the results so far, if every strategy has answered a prompt. Raises
    `ValueError` if the first strategy is not "off".
    """
    if not strategies or str(strategies[0]) != "off":
        raise InvalidValueError(f"strategies: the first must be 'off', the baseline; got {list(strategies)}")
    options = {"seed": 1} | options
    for one in (engine, *(others or {}).values()):
        one.measure_exactness()
    started = time.monotonic()
    prompts = asked(engine) if prompts is None else prompts
    runners = {strategy: (engine, strategy) for strategy in strategies}
    runners |= {name: (other, "auto") for name, other in (others or {}).items()}
    who = {(name, t): runner for name, runner in runners.items() for t in temperatures}
    n_tokens = n_tokens or _answer_length(engine, prompts, len(who), seconds, options)
    timings: dict[tuple[str, float], list[Timings]] = {one: [] for one in who}
    try:
        for number in range(1_000_000):
            passed = time.monotonic() - started
            if number and seconds - passed < passed / (
                2 * number
            ):  # the loop ends if less than half of the next pass would fit into the remaining time
                break
            progress(f"prompt {number + 1}")
            for name, temperature in _in_turn(list(who), number):
                progress(f"prompt {number + 1}: {name}")
                runner, strategy = who[name, temperature]
                sampling = options | {"temperature": temperature}
                done = answer(runner, prompts[number % len(prompts)], n_tokens, strategy, sampling)
                timings[name, temperature].append(done.timings)
    except KeyboardInterrupt:
        if not all(timings.values()):
            raise
    n_whole = min(map(len, timings.values()))
    plain = {t: timings[strategies[0], t][:n_whole] for t in temperatures}
    return [_measured(name, t, timings[name, t][:n_whole], plain[t]) for name, t in who]


def plan_report(engine: Engine) -> dict[str, Any] | None:
    """Returns the planner's report from the extension, and adds `chains`, a list of {nodes, depth, tokens,
    ms, speed} for every draft size: the expected tokens and time of a round, and the round's speed relative
    to target-only decoding.

    Returns None without a drafter, or before the first measured step. Raises `ValueError` before the engine's
    first use.
    """
    if not engine.has_draft:
        return None
    report = engine.native.planner_report(0)
    report["plain_ms"] = report["plain_ms"] or report["verify"][0][1] + report["plain_host_ms"]
    if not report["plain_ms"]:
        return None
    report["chains"] = [_expected(report, n) for n in range(1, len(report["chances"]) + 1)]
    return report


# Measuring strategies


def asked(engine: Engine) -> Sequence[BenchPrompt]:
    """Returns `QUESTIONS` in the form that suits this model: chats, or plain text without a chat template."""
    if not engine.has_chat_template:
        return QUESTIONS
    return [[{"role": "user", "content": question}] for question in QUESTIONS]


def _answer_length(
    engine: Engine, prompts: Sequence[BenchPrompt], n_strategies: int, seconds: float, options: dict[str, Any]
) -> int:
    """Warms up the engine, and returns the maximum number of tokens of an answer."""
    options = options | {"temperature": 0.0}
    answer(engine, prompts[0], _N_WARM, "off", options)
    plain = answer(engine, prompts[0], _N_WARM, "off", options).timings
    n_answers = n_strategies * max(len(prompts), _N_PASSES)
    n = int(1000.0 * seconds / (n_answers * max(ms_per_token(plain), 1e-3)))
    return min(max(n, _N_TOKENS[0]), _N_TOKENS[1], max(1, engine.n_ctx // 2))


def answer(
    engine: Engine, prompt: BenchPrompt, n_tokens: int, strategy: str, options: Mapping[str, Any]
) -> Completion:
    """Generates an answer with empty caches, and returns it."""
    engine.clear()
    request = {**options, "max_tokens": n_tokens, "strategy": strategy}
    if isinstance(prompt, str | bytes):
        return engine.generate(prompt, **request)
    done: Completion = engine.chat(prompt, **request)
    return done


def _in_turn(strategies: Sequence[tuple[str, float]], number: int) -> Sequence[tuple[str, float]]:
    """Rotates and reverses the order of the strategies in each pass, so that no strategy always follows the
    same other strategy.
    """
    at = number % len(strategies)
    turned = [*strategies[at:], *strategies[:at]]
    return turned if number % 2 == 0 else turned[::-1]


def ms_per_token(stats: Timings) -> float:
    """Returns the milliseconds per token of an answer. The first token is left out, because it comes with the
    prompt.
    """
    return stats.predicted_ms / max(stats.predicted_n - 1, 1)


def _measured(strategy: str, temperature: float, answers: list[Timings], plain: list[Timings]) -> Speeds:
    pairs = list(zip(answers, plain, strict=True))
    # Both answers of a pair have the same text, so either both or neither have enough tokens.
    pairs = [pair for pair in pairs if pair[1].predicted_n >= _N_COUNTS] or pairs
    ms = [(ms_per_token(own), ms_per_token(one)) for own, one in pairs]
    ratios = tuple(one / own for own, one in ms if own > 0)
    ratio = statistics.median(ratios) if ratios else 0.0
    total = sum((own for own, _ in pairs[1:]), pairs[0][0])
    low, high = quartiles([one for _, one in ms])
    return Speeds(
        strategy,
        temperature,
        statistics.median(own for own, _ in ms),
        ratio,
        ratios,
        total.acceptance_length,
        total.acceptance_rate,
        tuple(total.accepted_per_depth),
        high <= _STEADY * low and (strategy == "off" or ratio <= _NOISE * total.acceptance_length),
        dict(answers[-1].plan),
        tuple(
            Answered(own.predicted_n, own.rounds, own.predicted_n / ratio, temperature <= 0.0)
            for own, _ in pairs
            if ratio and own.rounds
        ),
    )


def quartiles(values: Sequence[float]) -> tuple[float, float]:
    """Returns the lower and the upper quartile, or (0, 0) for an empty sequence."""
    ordered = sorted(values)
    n = len(ordered)
    return (ordered[n // 4], ordered[(3 * n) // 4 if n > 1 else 0]) if ordered else (0.0, 0.0)


# Expected speed-ups


def _expected(report: dict[str, Any], n: int) -> dict[str, Any]:
    """Returns the expected tokens and time of a round that verifies a chain of n drafts."""
    ms = _at(report["verify"], 1 + n) + _at(report["commit"], 2) + (n - 1) * _at(report["level"], 1)
    ms += report["host_ms"] + report["plain_host_ms"]
    tokens = 1.0 + sum(accumulate(report["chances"][:n], mul))
    return {"nodes": n, "tokens": tokens, "ms": ms, "speed": tokens * report["plain_ms"] / ms}


def point_at(points: Sequence[tuple[int, float, float]], n_rows: int) -> tuple[int, float, float]:
    """Returns the entry (tokens, ms, samples) of a report's costs that applies to a batch of n tokens.
    Several batch sizes share an entry, whose `tokens` is the largest of these sizes.
    """
    return next((point for point in points if point[0] >= n_rows), points[-1])


def _at(points: Sequence[tuple[int, float, float]], n_rows: int) -> float:
    return point_at(points, n_rows)[1]
