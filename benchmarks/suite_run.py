# SPDX-License-Identifier: MIT
"""Asks the questions of a suite with every strategy in turns, and adds up what was found by category.

Speed is a question's time per token in plain decoding over its time per token with the strategy, whole
conversations; a category's is the geometric mean over its questions, with a 95 % interval of the mean (normal
in the logarithm). Acceptance is counted over rounds. Several users ask side by side: their speeds are then
what each of them sees, and tokens per second of all together are counted as well. Prints nothing.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

from chat_server import ChatServer
from suite import Question

from eaglecpp.engine.engine import Engine
from eaglecpp.errors import ContextFullError
from eaglecpp.results import Timings

SERVER = "server"
"""Name of the compared server among the strategies."""
REST_SECONDS = 0.25
"""After a server has answered: ggml's threads wait for more work by spinning (the default of llama.cpp's
`--poll` takes 80 ms), on the cores that the next one needs.
"""
_LEAST_TOKENS = 8
"""Answers shorter than this say nothing about speed."""


@dataclass
class Cell:
    """One strategy on the questions of one category. ratios: speed over plain decoding, one per question."""

    n_questions: int = 0
    n_tokens: int = 0
    ms: float = 0.0
    rounds: int = 0
    n_accepted: int = 0
    tried: list[int] = field(default_factory=list)
    hits: list[int] = field(default_factory=list)
    ratios: list[float] = field(default_factory=list)
    draft_ms: float = 0.0

    @property
    def acceptance_length(self) -> float:
        """Tokens per round, 0.0 where no round is known."""
        return 1.0 + self.n_accepted / self.rounds if self.rounds else 0.0

    @property
    def rates(self) -> list[float]:
        """Conditional acceptance rate at depth 1, 2, ..."""
        return [hits / tried for hits, tried in zip(self.hits, self.tried, strict=True) if tried]

    @property
    def tokens_per_second(self) -> float:
        return 1000 * self.n_tokens / self.ms if self.ms else 0.0

    @property
    def speed(self) -> tuple[float, float, float] | None:
        """Geometric mean of `ratios` and the bounds of its interval; None without any."""
        if not self.ratios:
            return None
        logs = [math.log(ratio) for ratio in self.ratios]
        mean = statistics.fmean(logs)
        half = 1.96 * statistics.stdev(logs) / math.sqrt(len(logs)) if len(logs) > 1 else 0.0
        return math.exp(mean), math.exp(mean - half), math.exp(mean + half)

    def add(self, other: Cell) -> None:
        for name in ("n_questions", "n_tokens", "ms", "draft_ms", "rounds", "n_accepted"):
            setattr(self, name, getattr(self, name) + getattr(other, name))
        for name in ("tried", "hits"):
            mine, theirs = getattr(self, name), getattr(other, name)
            n = max(len(mine), len(theirs))
            setattr(self, name, [sum(p) for p in zip(_padded(mine, n), _padded(theirs, n), strict=True)])
        self.ratios += other.ratios

    def as_dict(self) -> dict[str, Any]:
        """JSON-ready."""
        return vars(self) | {
            "acceptance_length": self.acceptance_length,
            "accepted_per_depth": self.rates,
            "tokens_per_second": self.tokens_per_second,
            "speed": self.speed,
        }


@dataclass
class SuiteResult:
    """cells: by category and strategy. n_asked: questions answered by all strategies; n_long: left out
    because they do not fit into the context; complete: whether every question was asked; interrupted: ended
    by Ctrl+C; n_users: questions asked side by side; seconds: from the first question of such a group to its
    last answer, by strategy.
    """

    strategies: tuple[str, ...]
    n_users: int = 1
    seconds: dict[str, float] = field(default_factory=dict)
    cells: dict[tuple[str, str], Cell] = field(default_factory=dict)
    n_asked: int = 0
    n_long: int = 0
    complete: bool = False
    interrupted: bool = False

    @property
    def categories(self) -> list[str]:
        return list(dict.fromkeys(category for category, _ in self.cells))

    def total(self, strategy: str) -> Cell:
        """Of all categories."""
        total = Cell()
        for (_, other), cell in self.cells.items():
            if other == strategy:
                total.add(cell)
        return total

    def together(self, strategy: str) -> float:
        """Tokens per second of all users, prompts included; 0.0 before anything was asked."""
        seconds = self.seconds.get(strategy, 0.0)
        return self.total(strategy).n_tokens / seconds if seconds else 0.0

    def over(self, strategy: str, other: str) -> Cell:
        """`ratios`: speed of a strategy over that of another one, question by question."""
        found = Cell()
        for category in self.categories:
            mine, theirs = self.cells[category, strategy].ratios, self.cells[category, other].ratios
            found.ratios += [a / b for a, b in zip(mine, theirs, strict=True)]
        return found

    def as_dict(self) -> dict[str, Any]:
        """JSON-ready."""
        return {
            "strategies": list(self.strategies),
            "users": self.n_users,
            "tokens_per_second_together": {s: self.together(s) for s in self.strategies},
            "asked": self.n_asked,
            "too_long": self.n_long,
            "complete": self.complete,
            "categories": {
                category: {s: self.cells[category, s].as_dict() for s in self.strategies}
                for category in self.categories
            },
            "all": {s: self.total(s).as_dict() for s in self.strategies},
        }


def run_suite(
    engine: Engine,
    questions: Iterable[Question],
    strategies: Sequence[str],
    *,
    n_tokens: int = 128,
    temperature: float = 0.0,
    seed: int = 1,
    seconds: float = math.inf,
    server: ChatServer | None = None,
    n_users: int = 1,
    progress: Callable[[str], None] = lambda text: None,
    **options: Any,
) -> SuiteResult:
    """Asks until the questions or `seconds` are over; the first of several strategies is plain. Another one
    alone has no `ratios`.

    n_tokens: most tokens of an answer to a question that has no limits of its own. server: asked the same, as
    strategy `SERVER`. n_users: questions asked side by side; the engine needs as many conversations
    (`n_sequences`). options: of `Session.stream`.

    A question counts when everybody has answered it. Ctrl+C ends the run with what was found by then. Each
    strategy goes on with its own answers. Raises ValueError when the first of several strategies is not
    "off", or there is a server to compare with, for more users than conversations, and for several users
    where a question has limits of its own.
    """
    compared = len(strategies) > 1 or server is not None
    if not strategies or (compared and str(strategies[0]) != "off"):
        raise ValueError("strategies: the first one must be 'off', which the others are compared with")
    if n_users > engine.model.n_sequences:
        raise ValueError(f"n_users: {n_users} need n_sequences={n_users}, found {engine.model.n_sequences}")
    everybody = (*strategies, *((SERVER,) if server else ()))
    result = SuiteResult(everybody, n_users)
    options = {"temperature": temperature, "seed": seed, "max_tokens": n_tokens} | options
    until = time.monotonic() + seconds
    try:
        for number, group in enumerate(_groups(questions, n_users)):
            if time.monotonic() > until:
                return result
            fitting = [question for question in group if _fits(engine, question)]
            result.n_long += len(group) - len(fitting)
            if not (group := fitting):
                continue
            found: dict[str, list[Cell]] = {}
            times: dict[str, float] = {}
            try:
                for who in _order(everybody, number):
                    progress(_asking(number * n_users, group, who))
                    started = time.monotonic()
                    if who == SERVER:
                        assert server is not None
                        found[who] = _asked_together(server, group, n_tokens, temperature, seed)
                    else:
                        found[who] = _answered(engine, group, who, options)
                    times[who] = time.monotonic() - started
                    if who == SERVER:
                        time.sleep(REST_SECONDS)
            except ContextFullError:
                result.n_long += len(group)
                continue
            for i, question in enumerate(group):
                _count(result, question.category, {who: cells[i] for who, cells in found.items()})
            for who, took in times.items():
                result.seconds[who] = result.seconds.get(who, 0.0) + took
        result.complete = True
    except KeyboardInterrupt:
        if not result.n_asked:
            raise
        result.interrupted = True
    return result


def _count(result: SuiteResult, category: str, found: dict[str, Cell]) -> None:
    plain = found.get("off")
    telling = all(cell.n_tokens >= _LEAST_TOKENS and cell.ms > 0 for cell in found.values())
    for who in result.strategies:
        cell = found[who]
        if plain is not None and telling:
            cell.ratios = [(plain.ms / plain.n_tokens) / (cell.ms / cell.n_tokens)]
        result.cells.setdefault((category, who), Cell()).add(cell)
    result.n_asked += 1


def _order(everybody: Sequence[str], number: int) -> tuple[str, ...]:
    """Who is asked after whom: everybody is first equally often, and no one always follows the same one."""
    at = number // 2 % len(everybody)
    order = (*everybody[at:], *everybody[:at])
    return order if number % 2 == 0 else order[::-1]


def _groups(questions: Iterable[Question], n: int) -> Iterator[list[Question]]:
    rest = iter(questions)
    while group := list(islice(rest, n)):
        yield group


def _asking(first: int, group: Sequence[Question], who: str) -> str:
    if len(group) == 1:
        return f"question {first + 1} ({group[0].category}): {who}"
    return f"questions {first + 1} to {first + len(group)}: {who}"


def _fits(engine: Engine, question: Question) -> bool:
    """Whether the first turn leaves room for an answer."""
    if not engine.has_chat_template:
        return len(engine.prompt_tokens(question.turns[0])) < engine.n_ctx
    first = [*question.opening, {"role": "user", "content": question.turns[0]}]
    return len(engine.chat_prompt(first)) < engine.n_ctx


def _answered(
    engine: Engine, group: Sequence[Question], strategy: str, options: dict[str, Any]
) -> list[Cell]:
    """The engine's conversations, side by side. A model without chat template continues the text of the first
    turn.
    """
    cells = [Cell(1) for _ in group]
    engine.clear()
    if not engine.has_chat_template:
        texts = [question.turns[0] for question in group]
        limited = options | {"max_tokens": _limit(group, 0, options["max_tokens"])}
        for cell, said in zip(cells, engine.generate_many(texts, strategy=strategy, **limited), strict=True):
            add_answer(cell, said.timings)
        return cells
    talks = [question.opening for question in group]
    for turn in range(max((len(question.turns) for question in group), default=0)):
        going = [i for i, question in enumerate(group) if turn < len(question.turns)]
        for i in going:
            talks[i].append({"role": "user", "content": group[i].turns[turn]})
        limited = options | {"max_tokens": _limit(group, turn, options["max_tokens"])}
        if len(group) == 1:  # the default conversation remembers the turns before
            answers = [engine.chat(talks[0], strategy=strategy, **limited)]
        else:
            answers = engine.generate_many([talks[i] for i in going], strategy=strategy, **limited)
        for i, said in zip(going, answers, strict=True):
            add_answer(cells[i], said.timings)
            talks[i].append({"role": "assistant", "content": said.text})
    return cells


def _limit(group: Sequence[Question], turn: int, n_tokens: int) -> int:
    """Most tokens of the answers to a turn."""
    if not any(question.n_tokens for question in group):
        return n_tokens
    if len(group) > 1:
        raise ValueError("questions with limits of their own are asked by one user at a time")
    return group[0].n_tokens[turn]


def add_answer(cell: Cell, stats: Timings) -> None:
    """What one answer took and how its drafts fared."""
    cell.add(
        Cell(
            0,
            stats.predicted_n,
            stats.predicted_ms,
            stats.rounds,
            stats.draft_n_accepted,
            list(stats.tried_per_depth),
            list(stats.hits_per_depth),
            draft_ms=stats.draft_ms,
        )
    )


def _asked_together(
    server: ChatServer, group: Sequence[Question], n_tokens: int, temperature: float, seed: int
) -> list[Cell]:
    with ThreadPoolExecutor(max(len(group), 1)) as users:
        return list(users.map(lambda question: _asked(server, question, n_tokens, temperature, seed), group))


def _asked(server: ChatServer, question: Question, n_tokens: int, temperature: float, seed: int) -> Cell:
    """The server's conversation."""
    cell = Cell(1)
    messages = question.opening
    for turn, text in enumerate(question.turns):
        messages.append({"role": "user", "content": text})
        limit = _limit([question], turn, n_tokens)
        said = server.chat(messages, max_tokens=limit, temperature=temperature, seed=seed)
        # a server that tells what it accepted had a round for every other token
        rounds = said.n_tokens - said.n_accepted if said.n_accepted else 0
        cell.add(Cell(0, said.n_tokens, said.ms, rounds, said.n_accepted))
        messages.append({"role": "assistant", "content": said.text})
    return cell


def _padded(counts: Sequence[int], n: int) -> list[int]:
    return [*counts, *([0] * (n - len(counts)))]
