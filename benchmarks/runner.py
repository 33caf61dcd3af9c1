# SPDX-License-Identifier: MIT
"""Asks several contestants questions in turns, and adds up the results by category.

The speed of a contestant is the first contestant's time per token, divided by this contestant's time per
token, for the whole conversation of a question. The speed in a category is the geometric mean over the
category's questions, with a 95 % interval of the mean (normal in the logarithm). Acceptance is counted over
rounds. The module prints only progress.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from chat_server import ChatServer
from llama_server import LlamaServer
from questions import Question

from eaglecpp.engine.engine import Engine
from eaglecpp.engine.loops import is_looping
from eaglecpp.errors import ContextFullError
from eaglecpp.results import Timings

_LEAST_TOKENS = 8
"""Minimum tokens of an answer; shorter answers do not count for speeds."""


@dataclass
class Cell:
    """Results of one contestant on the questions of one category. timings: sum over the contestant's answers;
    ratios: speed relative to the first contestant, one value per question.
    """

    n_questions: int = 0
    timings: Timings = field(default_factory=Timings)
    ratios: list[float] = field(default_factory=list)

    @property
    def speed(self) -> tuple[float, float, float] | None:
        """Returns the geometric mean of `ratios` and the bounds of the mean's 95 % interval; None without
        ratios.
        """
        if not self.ratios:
            return None
        logs = [math.log(ratio) for ratio in self.ratios]
        mean = statistics.fmean(logs)
        half = 1.96 * statistics.stdev(logs) / math.sqrt(len(logs)) if len(logs) > 1 else 0.0
        return math.exp(mean), math.exp(mean - half), math.exp(mean + half)

    def add(self, other: Cell) -> None:
        self.n_questions += other.n_questions
        self.timings += other.timings
        self.ratios += other.ratios

    def as_dict(self) -> dict[str, Any]:
        """Returns a dict for JSON."""
        own = {"n_questions": self.n_questions, "ratios": self.ratios, "speed": self.speed}
        return self.timings.as_dict() | own


@dataclass
class Results:
    """Results of a run. cells: results by category and contestant; n_asked: number of questions that every
    contestant answered; n_long: number of questions that do not fit into the context; complete: True if every
    question was asked.
    """

    names: tuple[str, ...]
    cells: dict[tuple[str, str], Cell] = field(default_factory=dict)
    n_asked: int = 0
    n_long: int = 0
    complete: bool = False

    @property
    def categories(self) -> list[str]:
        return list(dict.fromkeys(category for category, _ in self.cells))

    def of(self, category: str, name: str) -> Cell:
        """Returns the results of one contestant in a category. The category "all" combines all categories."""
        if category != "all":
            return self.cells[category, name]
        total = Cell()
        for (_, other), cell in self.cells.items():
            if other == name:
                total.add(cell)
        return total

    def over(self, name: str, other: str, category: str = "all") -> list[float]:
        """Returns the speed of the contestant `name` relative to the contestant `other`, one value per
        question.
        """
        mine, theirs = self.of(category, name).ratios, self.of(category, other).ratios
        return [a / b for a, b in zip(mine, theirs, strict=True)]

    def as_dict(self) -> dict[str, Any]:
        """Returns a dict for JSON."""
        rows = {c: {n: self.of(c, n).as_dict() for n in self.names} for c in (*self.categories, "all")}
        return {"asked": self.n_asked, "too_long": self.n_long, "complete": self.complete, "cells": rows}


@dataclass(frozen=True)
class Contestant:
    """A program to compare. ask: function that answers all turns of a question, with sampling options
    ("temperature", "seed", "max_tokens").
    """

    name: str
    ask: Callable[[Question, dict[str, Any]], Cell]


def ours(engine: Engine, strategy: str, name: str = "") -> Contestant:
    """Returns a contestant that answers with an engine and a strategy. A model without a chat template
    continues the text of the first turn.
    """

    def ask(question: Question, options: dict[str, Any]) -> Cell:
        cell, messages = Cell(1), question.opening
        engine.clear()
        for turn, text in enumerate(question.turns):
            limited = options | {"max_tokens": question.limit(turn, options["max_tokens"])}
            if not engine.has_chat_template:
                cell.timings += engine.generate(text, strategy=strategy, **limited).timings
                break
            messages.append({"role": "user", "content": text})
            answer = engine.chat(messages, strategy=strategy, **limited)
            cell.timings += answer.timings
            messages.append({"role": "assistant", "content": answer.text})
        return cell

    return Contestant(name or strategy, ask)


def llama_server(server: LlamaServer, engine: Engine, name: str) -> Contestant:
    """Returns llama.cpp's server as a contestant. The server gets the token ids of eaglecpp's prompts."""

    def ask(question: Question, options: dict[str, Any]) -> Cell:
        cell, messages = Cell(1), question.opening
        for turn, text in enumerate(question.turns):
            messages.append({"role": "user", "content": text})
            ids = engine.chat_prompt(messages) if engine.has_chat_template else engine.prompt_tokens(text)
            sampling = {name: value for name, value in options.items() if name != "max_tokens"}
            limit = question.limit(turn, options["max_tokens"])
            answer = server.complete_and_rest(ids, limit, ignore_eos=False, cache_prompt=True, **sampling)
            n_accepted = int(answer.timings.get("draft_n_accepted") or 0)
            cell.timings += _of_server(len(answer.tokens), answer.timings["predicted_ms"], n_accepted)
            if not engine.has_chat_template:
                break
            messages.append({"role": "assistant", "content": engine.detokenize(answer.tokens)})
        return cell

    return Contestant(name, ask)


def chat_server(server: ChatServer, name: str) -> Contestant:
    """Returns an OpenAI-compatible server as a contestant. The server applies its own chat template."""

    def ask(question: Question, options: dict[str, Any]) -> Cell:
        cell, messages = Cell(1), question.opening
        for turn, text in enumerate(question.turns):
            messages.append({"role": "user", "content": text})
            limited = options | {"max_tokens": question.limit(turn, options["max_tokens"])}
            reply = server.chat(messages, **limited)
            cell.timings += _of_server(reply.n_tokens, reply.ms, reply.n_accepted)
            messages.append({"role": "assistant", "content": reply.text})
        return cell

    return Contestant(name, ask)


def _of_server(n: int, ms: float, n_accepted: int) -> Timings:
    """Returns timings from a server's counts. Every token that is not an accepted draft counts as a round."""
    rounds = n - n_accepted if n_accepted else 0
    return Timings(predicted_n=n, predicted_ms=ms, rounds=rounds, draft_n_accepted=n_accepted)


def run(
    questions: Iterable[Question],
    contestants: Sequence[Contestant],
    *,
    n_tokens: int = 128,
    temperature: float = 0.0,
    seed: int = 1,
    seconds: float = math.inf,
    progress: Callable[[str], None] = lambda text: None,
) -> Results:
    """Asks questions until all are answered or `seconds` are over. A question counts if every contestant has
    answered it. After Ctrl+C, returns the results of the questions that count. n_tokens: maximum tokens of an
    answer to a question without its own limits.
    """
    results = Results(tuple(one.name for one in contestants))
    options = {"temperature": temperature, "seed": seed, "max_tokens": n_tokens}
    until = time.monotonic() + seconds
    try:
        for number, question in enumerate(questions):
            if time.monotonic() > until:
                return results
            found: dict[str, Cell] = {}
            try:
                for one in _order(contestants, number):
                    progress(f"question {number + 1} ({question.category}): {one.name}")
                    found[one.name] = one.ask(question, options)
            except ContextFullError:
                results.n_long += 1
                continue
            _count(results, question.category, found)
        results.complete = True
    except KeyboardInterrupt:
        if not results.n_asked:
            raise
    return results


def _count(results: Results, category: str, found: dict[str, Cell]) -> None:
    timings = {name: cell.timings for name, cell in found.items()}
    if all(one.predicted_n >= _LEAST_TOKENS and one.predicted_ms > 0 for one in timings.values()):
        first = timings[results.names[0]].predicted_per_second
        for name, cell in found.items():
            cell.ratios = [timings[name].predicted_per_second / first]
    for name in results.names:
        results.cells.setdefault((category, name), Cell()).add(found[name])
    results.n_asked += 1


def _order(contestants: Sequence[Contestant], number: int) -> tuple[Contestant, ...]:
    """Returns the contestants in the order for a question. The order rotates, so that each contestant is
    first equally often, and the predecessor of each contestant varies.
    """
    at = number // 2 % len(contestants)
    order = (*contestants[at:], *contestants[:at])
    return order if number % 2 == 0 else order[::-1]


def until_loops(
    engine: Engine,
    asked: Sequence[Question],
    strategy: str,
    *,
    temperature: float,
    n_tokens: int,
    seed: int = 1,
    answers: list[Sequence[int]] | None = None,
) -> Iterator[Question]:
    """Returns the questions with limits for their answers. A limit is `n_tokens`, or less if the target
    begins to repeat itself. The limits are needed because a small model may repeat one sentence endlessly,
    and drafts of this sentence are always right. answers: list to which the tokens of the answers are added.
    """
    options: dict[str, Any] = {"strategy": strategy, "temperature": temperature, "seed": seed}
    for question in asked:
        messages = question.opening
        limits: list[int] = []
        engine.clear()
        for turn in question.turns:
            messages.append({"role": "user", "content": turn})
            answer = engine.chat(messages, max_tokens=n_tokens, **options)
            n_own = loop_start(answer.tokens)
            loops = n_own < len(answer.tokens)
            limits.append(n_own if loops else n_tokens)
            if answers is not None:
                answers.append(answer.tokens[:n_own])
            if loops and len(limits) < len(question.turns):
                answer = engine.chat(messages, max_tokens=n_own, **options)
            messages.append({"role": "assistant", "content": answer.text})
        yield replace(question, n_tokens=tuple(limits))


def loop_start(tokens: list[int]) -> int:
    """Returns the number of tokens up to the end of the first copy of an endlessly repeated passage. Returns
    the number of all tokens if the tokens have no endless repetition.
    """
    n = next((n for n in range(len(tokens) + 1) if is_looping(tokens[:n])), 0)
    for period in range(1, n // 4 + 1):
        tail = tokens[max(0, n - max(48, 4 * period)) : n]
        if tail[:-period] == tail[period:]:
            while n > period and tokens[n - 1] == tokens[n - 1 - period]:
                n -= 1
            return n
    return len(tokens)
