# SPDX-License-Identifier: MIT
"""Conversations that the target writes by itself: training data for a drafter from nothing but the model.

A chat model that is shown a chat up to where the user speaks goes on as the user (Magpie, arXiv 2406.08464).
So both sides are sampled from the target: the question, the answer, the next question. System prompts, first
words, number of turns, temperature and lengths are drawn at random; a share of the first questions is made
from lists (`questions`), since a model asks itself only what comes easily to it. Text that loops or does not
end as a turn is left out and counted.

The file is JSON Lines: a header with the target and the settings, then a line per conversation, whose
content depends only on its seed and number. Lines are in the order in which conversations finished. A killed
run loses the conversations under way; the next run, which may also ask for more, writes them again.
"""

from __future__ import annotations

import json
import random
import sys
from collections import Counter
from collections.abc import Callable, Generator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from eaglecpp.engine import Engine
from eaglecpp.options import SamplingOptions
from eaglecpp.train.capture import crowd
from eaglecpp.train.capture.crowd import Said, Task, Wanted
from eaglecpp.train.capture.files import locked, open_behind, read_entries, write_line
from eaglecpp.train.capture.frame import Frame
from eaglecpp.train.capture.identity import identify
from eaglecpp.train.capture.questions import FOLLOW_UPS, OPENINGS, SYSTEMS, question

__all__ = ["FORMAT", "ConverseReport", "ConverseSettings", "Progress", "converse"]

FORMAT = "eaglecpp conversations"
_MIN_ROOM = 64
"""Tokens of context that must be left for an answer."""
_MIN_QUESTION = 3
_ANSWER_SHARES = (0.25, 0.5, 0.75, 1.0)


@dataclass(frozen=True)
class ConverseSettings:
    """What decides the content of the n-th conversation, the target apart.

    own_questions: share of conversations whose first question the target asks; named_systems: share with a
    system prompt of the list, the others have the template's own
    turns:         weights of one, two, ... turns; temperatures: (temperature, weight) of answers
    question_tokens, answer_tokens: most of each
    """

    seed: int = 1
    own_questions: float = 0.5
    named_systems: float = 0.4
    openings: float = 0.6
    follow_ups: float = 0.6
    turns: tuple[float, ...] = (0.62, 0.22, 0.11, 0.05)
    temperatures: tuple[tuple[float, float], ...] = ((0.0, 0.3), (0.7, 0.5), (1.0, 0.2))
    question_tokens: int = 300
    answer_tokens: int = 512


@dataclass(frozen=True)
class ConverseReport:
    """n_conversations: good ones in the file; n_before: written by earlier runs; n_tokens: sampled by this
    run; dropped: left out, by reason, over all runs.
    """

    n_conversations: int
    n_before: int
    n_tokens: int
    dropped: dict[str, int] = field(default_factory=dict)


Progress = Callable[[int, int, int], None]
"""(conversations done, conversations in all, tokens sampled by this run so far)"""


@dataclass(frozen=True)
class _Written:
    """The n-th conversation, or why there is none."""

    index: int
    tokens: list[int]
    turns: list[tuple[int, int]]
    n_sampled: int
    reason: str = ""


def converse(
    engine: Engine,
    out: Path,
    n_wanted: int,
    settings: ConverseSettings | None = None,
    on_progress: Progress = lambda n_done, n_all, n_tokens: None,
) -> ConverseReport:
    """Lets the target write conversations 0 to n_wanted - 1 into `out`; goes on with what is there.

    engine: the target, without a drafter; as many conversations are under way as it has `n_sequences`
    Raises DataError for a target without a usable template, for an `out` of another target or with other
    settings, and while another process writes it; and what generating raises.
    """
    settings = settings or ConverseSettings()
    writer = _Writer(engine, Frame(engine), settings)
    header = _header(engine, settings)
    with locked(out):
        done, n_good, dropped = _read(out, header)
        n_before = sum(1 for reason in done.values() if not reason)
        n_kept, n_done, n_tokens = n_before, sum(1 for index in done if index < n_wanted), 0
        n_live = 0  # with those of conversations under way
        with open_behind(out, n_good) as stream:
            if not n_good:
                write_line(stream, header)
            tasks = (writer.conversation(index) for index in range(n_wanted) if index not in done)
            on_progress(n_done, n_wanted, 0)

            def on_tokens(n: int) -> None:
                nonlocal n_live
                n_live += n
                on_progress(n_done, n_wanted, n_live)

            for written in crowd.run(engine, tasks, on_tokens):
                write_line(stream, _entry(written))
                n_done, n_tokens = n_done + 1, n_tokens + written.n_sampled
                n_kept += not written.reason
                dropped.update([written.reason] if written.reason else [])
                on_progress(n_done, n_wanted, n_live)
    return ConverseReport(n_kept, n_before, n_tokens, dict(dropped))


class _Writer:
    """Makes the tasks."""

    def __init__(self, engine: Engine, frame: Frame, settings: ConverseSettings) -> None:
        self._engine, self._frame, self._settings = engine, frame, settings

    def conversation(self, index: int) -> Task[_Written]:
        """The n-th conversation."""
        settings = self._settings
        rng = random.Random(f"{settings.seed}:{index}")
        tokens = self._frame.opening(rng.choice(SYSTEMS) if rng.random() < settings.named_systems else None)
        n_turns = rng.choices(range(1, len(settings.turns) + 1), settings.turns)[0]
        temperature = rng.choices(*zip(*settings.temperatures, strict=True))[0]
        turns: list[tuple[int, int]] = []
        n_sampled, reason = 0, ""
        for number in range(n_turns):
            asked, n = yield from self._question(rng, tokens, is_first=number == 0)
            n_sampled += n
            if isinstance(asked, str):
                reason = asked
                break
            asked = self._frame.joined(asked, self._frame.to_assistant)
            if len(asked) + _MIN_ROOM > self._engine.n_ctx:
                reason = "no room for an answer"
                break
            answer = yield self._answer(rng, asked, float(temperature))
            n_sampled += len(answer.tokens)
            if answer.finish == "loop" or crowd.is_looping(answer.tokens):
                reason = "the answer loops"
                break
            turns.append((len(asked), len(asked) + len(answer.tokens)))
            tokens = asked + answer.tokens
            if answer.finish != "stop":
                break
            tokens = self._frame.joined(tokens, self._frame.to_user)
        if not turns:
            return _Written(index, [], [], n_sampled, reason)
        return _Written(index, tokens[: turns[-1][1]], turns, n_sampled)

    def _question(
        self, rng: random.Random, tokens: list[int], is_first: bool
    ) -> Generator[Wanted, Said, tuple[list[int] | str, int]]:
        """A part of a task: the conversation with the user's next turn, or why there is none, and how many
        tokens were sampled.
        """
        settings, text = self._settings, None
        if is_first and rng.random() >= settings.own_questions:
            text = question(rng)
        elif not is_first and rng.random() < settings.follow_ups:
            text = rng.choice(FOLLOW_UPS)
        if text is not None:
            return tokens + self._engine.tokenize(text, add_bos=False, special=False), 0
        if is_first and rng.random() < settings.openings:
            tokens = tokens + self._engine.tokenize(rng.choice(OPENINGS), add_bos=False, special=False)
        if len(tokens) + settings.question_tokens + _MIN_ROOM > self._engine.n_ctx:
            return "no room for a question", 0
        said: Said = yield Wanted(
            tokens,
            SamplingOptions(
                temperature=1.0,
                top_k=100,
                top_p=0.95,
                max_tokens=settings.question_tokens,
                seed=rng.getrandbits(30),
            ),
            stop=self._frame.user_end,
        )
        return self._asked(tokens, said), len(said.tokens)

    def _asked(self, tokens: list[int], said: Said) -> list[int] | str:
        """The conversation with a question that was sampled, or why that is none."""
        if said.finish == "text":
            spoken = b"".join(self._engine.token_to_piece(token, special=True) for token in said.tokens)
            text = spoken.partition(self._frame.user_end)[0]
            said = Said(self._engine.tokenize(text, add_bos=False, special=False), "text")
        elif said.finish == "loop" or crowd.is_looping(said.tokens):
            return "the question loops"
        elif said.finish != "stop" or self._frame.user_end or said.tokens[-1] != self._frame.to_assistant[0]:
            return "the question does not end"
        return tokens + said.tokens if len(said.tokens) >= _MIN_QUESTION else "the question is empty"

    def _answer(self, rng: random.Random, tokens: list[int], temperature: float) -> Wanted:
        n_most = int(rng.choice(_ANSWER_SHARES) * self._settings.answer_tokens)
        return Wanted(
            tokens,
            SamplingOptions(
                temperature=temperature,
                top_k=100 if temperature >= 1 else 40,
                max_tokens=max(n_most, 1),
                seed=rng.getrandbits(30),
            ),
        )


def _header(engine: Engine, settings: ConverseSettings) -> dict[str, Any]:
    """What must be the same for a conversation to be the same. The running Python's texts are asked about."""
    facts = {
        "format": FORMAT,
        "target": asdict(identify(engine.target_path)),
        "n_ctx": engine.n_ctx,
        "python": ".".join(map(str, sys.version_info[:2])),
        **asdict(settings),
    }
    header: dict[str, Any] = json.loads(json.dumps(facts))
    return header


def _entry(written: _Written) -> dict[str, Any]:
    if written.reason:
        return {"index": written.index, "dropped": written.reason}
    return {"index": written.index, "tokens": written.tokens, "turns": written.turns}


def _read(out: Path, header: dict[str, Any]) -> tuple[dict[int, str], int, Counter[str]]:
    """What is there: index to reason ("" for a good one), how many bytes are whole lines, reasons."""
    done: dict[int, str] = {}

    def take(place: str, entry: dict[str, Any]) -> None:
        done[entry["index"]] = str(entry.get("dropped", ""))

    n_good = read_entries(out, header, "conversations", take)
    return done, n_good, Counter(reason for reason in done.values() if reason)
