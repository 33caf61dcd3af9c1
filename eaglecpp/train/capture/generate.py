# SPDX-License-Identifier: MIT
"""Generates on-policy data: the target answers prompts, and its answers are recorded as tokens.

A drafter learns to predict its target, so the target's own text is the best training data. An entry of the
file (`job`) has prompt tokens, answer tokens and the reason why the answer ended. Each answer depends only on
its prompt, the prompt's position and the seed. A drafter may speed up the generation, and never changes a
token. `eaglecpp.train.data.texts` reads the file.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from eaglecpp.chat.message import Message, Role
from eaglecpp.engine.engine import Engine
from eaglecpp.errors import DataError, TemplateError
from eaglecpp.options import SamplingOptions
from eaglecpp.train.capture.batched import GenerateJob, Task
from eaglecpp.train.capture.job import OnProgress, Written, write_entries
from eaglecpp.train.data.chats import ChatEncoder, template_of
from eaglecpp.train.data.records import ChatRecord, Question, read_prompts
from eaglecpp.train.data.texts import token_hash

_MIN_ROOM = 16
"""Minimum tokens of context left for an answer."""
_N_SEEDS = 1 << 31


def generate(
    engine: Engine,
    out: Path,
    paths: Iterable[str | os.PathLike[str]],
    sampling: SamplingOptions,
    on_progress: OnProgress = lambda n_done, n_prompts, n_tokens: None,
) -> Written:
    """Lets the target answer the prompts of some files, and writes the answers to `out`. Continues an
    existing file.

    engine:   the target, with or without a drafter; it writes as many answers at a time as it has free
              sequences; an answer ends at the latest when the context is full
    paths:    see `records.read_prompts`; a plain-text prompt becomes one user turn, or, for a model without a
              chat template, the beginning of a text
    sampling: sampling options of every answer; the answer to the n-th prompt uses seed + n

    Returns the skipped prompts as `dropped`. Raises DataError for an invalid line of the prompts, and the
    errors of `write_entries`.
    """
    prompts, dropped = _tokenized(paths, engine)
    hashes = [token_hash(prompt).hex() for prompt in prompts]

    def answer(index: int) -> Task[dict[str, Any]]:
        seed = (int(sampling.seed or 0) + index) % _N_SEEDS
        generated = yield GenerateJob(prompts[index], replace(sampling, seed=seed), watch=False)
        return {
            "index": index,
            "prompt_hash": hashes[index],
            "finish": generated.finish,
            "prompt_tokens": prompts[index],
            "answer_tokens": generated.tokens,
        }

    def check(place: str, entry: dict[str, Any]) -> None:
        index = entry["index"]
        if not 0 <= index < len(prompts):
            raise DataError(
                f"{place}: expected an answer to one of {len(prompts)} prompts, found index {index}"
            )
        if entry.get("prompt_hash") != hashes[index]:
            raise DataError(
                f"{place}: expected an answer to prompt {index} ({hashes[index]}), found an answer to "
                f"another prompt ({entry.get('prompt_hash')}). The prompts have changed; name another file"
            )

    facts = {"format": "eaglecpp answers", **asdict(sampling)}
    written = write_entries(engine, out, facts, "recorded answers", len(prompts), answer, on_progress, check)
    return replace(written, dropped=dropped)


def _tokenized(
    paths: Iterable[str | os.PathLike[str]], engine: Engine
) -> tuple[list[list[int]], Counter[str]]:
    """Tokenizes the prompts, and counts the skipped prompts by reason."""
    template = template_of(engine)
    encoder = ChatEncoder(engine, template) if template else None
    prompts: list[list[int]] = []
    dropped: Counter[str] = Counter()
    for record in read_prompts(paths):
        tokens = _prompt_tokens(record, engine, encoder)
        if len(tokens) + _MIN_ROOM > engine.n_ctx:
            dropped[f"longer than the context of {engine.n_ctx} tokens"] += 1
        else:
            prompts.append(tokens)
    if not prompts:
        raise DataError(
            f"prompts: expected at least one prompt that fits; skipped: {dict(dropped) or 'no lines'}"
        )
    return prompts, dropped


def _prompt_tokens(record: ChatRecord | Question, engine: Engine, encoder: ChatEncoder | None) -> list[int]:
    if isinstance(record, Question):
        if encoder is None:
            return engine.prompt_tokens(record.text)
        record = ChatRecord((Message(Role.USER, record.text),), record.place)
    encoder = encoder or ChatEncoder(engine)  # ChatEncoder raises an error if the model has no template
    try:
        return encoder.prompt(record.messages, record.tools)
    except TemplateError as error:
        raise DataError(f"{record.place}: the chat template refuses this prompt: {error}") from None
