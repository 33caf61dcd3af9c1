# SPDX-License-Identifier: MIT
"""On-policy data: the target answers prompts, and what it said is recorded token for token.

A drafter learns to predict its target, so the best text to learn from is the target's own. The file is JSON
Lines: a header with the target and the sampling options, then one line per prompt with prompt tokens, answer
tokens and why the answer ended, in the order in which they ended. Each answer depends only on its prompt,
the prompt's position and the seed, so a run that was killed goes on where it was and ends with the same
answers. A drafter may be loaded to speed this up; it never changes a token. `eaglecpp.train.data.texts`
reads the file.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from eaglecpp.chat.message import Message, Role
from eaglecpp.engine import Engine
from eaglecpp.errors import DataError, TemplateError
from eaglecpp.options import SamplingOptions
from eaglecpp.rounds import N_RECORDED, Rounds
from eaglecpp.train.capture import crowd
from eaglecpp.train.capture.crowd import Task, Wanted
from eaglecpp.train.capture.files import locked, open_behind, read_entries, write_line
from eaglecpp.train.capture.identity import identify
from eaglecpp.train.data.chats import ChatEncoder, template_of
from eaglecpp.train.data.records import Chat, Question, read_prompts
from eaglecpp.train.data.texts import token_hash

__all__ = ["AnswerReport", "Progress", "generate"]

_FORMAT = "eaglecpp answers"
_MIN_ROOM = 16
"""Tokens of context that must be left for an answer."""
_N_SEEDS = 1 << 31


@dataclass(frozen=True)
class AnswerReport:
    """n_answers: in the file now, n_before of them from earlier runs; n_tokens: written by this run; dropped:
    prompts left out, by reason.
    """

    n_answers: int
    n_before: int
    n_tokens: int
    dropped: dict[str, int]


Progress = Callable[[int, int, int], None]
"""(prompts done, prompts in all, tokens written by this run)"""


def generate(
    paths: Iterable[str | os.PathLike[str]],
    engine: Engine,
    out: Path,
    sampling: SamplingOptions | None = None,
    on_progress: Progress = lambda n_done, n_prompts, n_tokens: None,
    rounds: Path | None = None,
) -> AnswerReport:
    """Lets the target answer the prompts of some files into `out`; goes on with what is there.

    paths:    see `records.read_prompts`; a prompt that is plain text is one user turn, or, for a model
              without a chat template, the beginning of a text
    engine:   the target, with or without a drafter; as many answers are under way as it has free
              sequences; an answer ends with its context at the latest
    sampling: of every answer; the n-th prompt uses seed + n (no seed: 1)
    rounds:   folder for what verification tells about the drafts of each answer (`eaglecpp.rounds`); None =
              it is not kept
    Raises DataError for a bad line of the prompts, for an `out` made from other prompts, options or another
    target, and while another process writes it; and what generating raises.
    """
    sampling = sampling or SamplingOptions()
    if sampling.wants_random_seed:
        sampling = replace(sampling, seed=1)
    prompts, dropped = _tokenized(paths, engine)
    header = _header(engine, sampling)
    with locked(out):
        done, n_good = _read(out, header, prompts)
        n_tokens = n_live = 0  # n_live: with those of answers under way
        with open_behind(out, n_good) as stream:
            if not n_good:
                write_line(stream, header)
            tasks = (
                _answer(index, prompt, sampling, rounds)
                for index, prompt in enumerate(prompts)
                if index not in done
            )
            n_done = len(done)

            def on_tokens(n: int) -> None:
                nonlocal n_live
                n_live += n
                on_progress(n_done, len(prompts), n_live)

            for answer in crowd.run(
                engine, tasks, on_tokens, min(N_RECORDED, engine.n_vocab) if rounds else 0
            ):
                write_line(stream, answer)
                n_done, n_tokens = n_done + 1, n_tokens + len(answer["answer_tokens"])
                on_progress(n_done, len(prompts), n_live)
    return AnswerReport(len(prompts), len(done), n_tokens, dropped)


def _answer(
    index: int, prompt: Sequence[int], sampling: SamplingOptions, rounds: Path | None
) -> Task[dict[str, Any]]:
    """The entry of one answer; its rounds are there before it is."""
    seed = (int(sampling.seed or 0) + index) % _N_SEEDS
    said = yield Wanted(prompt, replace(sampling, seed=seed), watch=False)
    if rounds is not None and said.verified is not None:
        Rounds.of([*prompt, *said.tokens], len(prompt), said.verified).write(rounds)
    return {
        "index": index,
        "prompt_hash": token_hash(prompt).hex(),
        "finish": said.finish,
        "prompt_tokens": list(prompt),
        "answer_tokens": said.tokens,
    }


def _tokenized(
    paths: Iterable[str | os.PathLike[str]], engine: Engine
) -> tuple[list[list[int]], dict[str, int]]:
    """The prompts as tokens, and how many were left out and why."""
    template = template_of(engine)
    encoder = ChatEncoder(engine, template) if template else None
    prompts: list[list[int]] = []
    dropped: dict[str, int] = {}
    for record in read_prompts(paths):
        tokens = _prompt_tokens(record, engine, encoder)
        if len(tokens) + _MIN_ROOM > engine.n_ctx:
            reason = f"longer than the context of {engine.n_ctx} tokens"
            dropped[reason] = dropped.get(reason, 0) + 1
        else:
            prompts.append(tokens)
    if not prompts:
        raise DataError(f"prompts: expected at least one that fits, found none; {dropped or 'no lines'}")
    return prompts, dropped


def _prompt_tokens(record: Chat | Question, engine: Engine, encoder: ChatEncoder | None) -> list[int]:
    if isinstance(record, Question):
        if encoder is None:
            return engine.prompt_tokens(record.text)
        record = Chat((Message(Role.USER, record.text),), record.place)
    encoder = encoder or ChatEncoder(engine)  # which says that there is no template
    try:
        return encoder.prompt(record.messages, record.tools)
    except TemplateError as error:
        raise DataError(f"{record.place}: the chat template refuses this prompt: {error}") from None


def _header(engine: Engine, sampling: SamplingOptions) -> dict[str, Any]:
    """What must be the same for an answer to be the same."""
    options = {"target": asdict(identify(engine.target_path)), "n_ctx": engine.n_ctx, **asdict(sampling)}
    header: dict[str, Any] = json.loads(json.dumps({"format": _FORMAT, **options}))
    return header


def _read(out: Path, header: dict[str, Any], prompts: Sequence[Sequence[int]]) -> tuple[set[int], int]:
    """Which prompts the file answers already, and how many of its bytes are whole lines."""
    done: set[int] = set()

    def take(place: str, entry: dict[str, Any]) -> None:
        done.add(_checked(entry, prompts, place))

    return done, read_entries(out, header, "recorded answers", take)


def _checked(entry: dict[str, Any], prompts: Sequence[Sequence[int]], place: str) -> int:
    """The index of an entry, after making sure that it answers the prompt of that index."""
    index: int = entry["index"]
    if not 0 <= index < len(prompts):
        raise DataError(f"{place}: expected an answer to one of {len(prompts)} prompts, found index {index}")
    expected = token_hash(prompts[index]).hex()
    if entry.get("prompt_hash") != expected:
        raise DataError(
            f"{place}: expected the answer to prompt {index} ({expected}), found one for another prompt "
            f"({entry.get('prompt_hash')}); the prompts have changed: name another file"
        )
    return index
