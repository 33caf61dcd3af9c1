# SPDX-License-Identifier: MIT
"""Conversations that the target writes by itself: training data for a drafter from nothing but the model.

A chat model that is shown a chat up to where the user speaks goes on as the user (Magpie, arXiv 2406.08464).
So both sides are sampled from the target: the question, the answer, the next question. System prompts, first
words, number of turns, temperature and lengths are drawn at random; a share of the first questions is made
from lists (`questions`), since a model asks itself only what comes easily to it. Text that loops or does not
end as a turn is left out and counted.

The content of each entry of the file (`job`) depends only on its seed and number.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Generator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from eaglecpp.engine.engine import Engine
from eaglecpp.engine.loops import is_looping
from eaglecpp.options import SamplingOptions
from eaglecpp.train.capture.batched import Generated, GenerateJob, Task
from eaglecpp.train.capture.frame import Frame
from eaglecpp.train.capture.job import Progress, Written, write_entries
from eaglecpp.train.capture.questions import FOLLOW_UPS, OPENINGS, SYSTEMS, question

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


def converse(
    engine: Engine,
    out: Path,
    n_wanted: int,
    settings: ConverseSettings,
    on_progress: Progress = lambda n_done, n_all, n_tokens: None,
) -> Written:
    """Lets the target write conversations 0 to n_wanted - 1 into `out`; goes on with what is there.

    engine: the target, without a drafter; as many conversations are under way as it has `n_sequences`
    Raises DataError for a target without a usable template, and what `write_entries` raises.
    """
    writer = _Writer(engine, Frame(engine), settings)
    facts = {"format": "eaglecpp conversations", **asdict(settings)}
    facts["python"] = ".".join(map(str, sys.version_info[:2]))  # whose texts are asked about
    return write_entries(engine, out, facts, "conversations", n_wanted, writer.conversation, on_progress)


class _Writer:
    """Makes the tasks."""

    def __init__(self, engine: Engine, frame: Frame, settings: ConverseSettings) -> None:
        self._engine, self._frame, self._settings = engine, frame, settings

    def conversation(self, index: int) -> Task[dict[str, Any]]:
        """The n-th conversation, or why there is none."""
        settings = self._settings
        rng = random.Random(f"{settings.seed}:{index}")
        tokens = self._frame.opening(rng.choice(SYSTEMS) if rng.random() < settings.named_systems else None)
        n_turns = rng.choices(range(1, len(settings.turns) + 1), settings.turns)[0]
        temperature = rng.choices(*zip(*settings.temperatures, strict=True))[0]
        turns: list[tuple[int, int]] = []
        reason = ""
        for number in range(n_turns):
            asked = yield from self._question(rng, tokens, is_first=number == 0)
            if isinstance(asked, str):
                reason = asked
                break
            asked = self._frame.joined(asked, self._frame.to_assistant)
            if len(asked) + _MIN_ROOM > self._engine.n_ctx:
                reason = "no room for an answer"
                break
            answer = yield self._answer(rng, asked, float(temperature))
            if answer.finish == "loop" or is_looping(answer.tokens):
                reason = "the answer loops"
                break
            turns.append((len(asked), len(asked) + len(answer.tokens)))
            tokens = asked + answer.tokens
            if answer.finish != "stop":
                break
            tokens = self._frame.joined(tokens, self._frame.to_user)
        if not turns:
            return {"index": index, "dropped": reason}
        return {"index": index, "tokens": tokens[: turns[-1][1]], "turns": turns}

    def _question(
        self, rng: random.Random, tokens: list[int], is_first: bool
    ) -> Generator[GenerateJob, Generated, list[int] | str]:
        """A part of a task: the conversation with the user's next turn, or why there is none."""
        settings, text = self._settings, None
        if is_first and rng.random() >= settings.own_questions:
            text = question(rng)
        elif not is_first and rng.random() < settings.follow_ups:
            text = rng.choice(FOLLOW_UPS)
        if text is not None:
            return tokens + self._engine.tokenize(text, add_bos=False, special=False)
        if is_first and rng.random() < settings.openings:
            tokens = tokens + self._engine.tokenize(rng.choice(OPENINGS), add_bos=False, special=False)
        if len(tokens) + settings.question_tokens + _MIN_ROOM > self._engine.n_ctx:
            return "no room for a question"
        generated: Generated = yield GenerateJob(
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
        asked = generated.tokens
        if generated.finish == "text":
            spoken = b"".join(self._engine.token_to_piece(token, special=True) for token in asked)
            question_text = spoken.partition(self._frame.user_end)[0]
            asked = self._engine.tokenize(question_text, add_bos=False, special=False)
        elif generated.finish == "loop" or is_looping(asked):
            return "the question loops"
        elif generated.finish != "stop" or self._frame.user_end or asked[-1] != self._frame.to_assistant[0]:
            return "the question does not end"
        return tokens + asked if len(asked) >= _MIN_QUESTION else "the question is empty"

    def _answer(self, rng: random.Random, tokens: list[int], temperature: float) -> GenerateJob:
        return GenerateJob(
            tokens,
            SamplingOptions(
                temperature=temperature,
                top_k=100 if temperature >= 1 else 40,
                max_tokens=max(int(rng.choice(_ANSWER_SHARES) * self._settings.answer_tokens), 1),
                seed=rng.getrandbits(30),
            ),
        )
