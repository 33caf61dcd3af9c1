# SPDX-License-Identifier: MIT
"""`eaglecpp run`: Ollama's verb in its simplest form, one prompt and one answer.

The prompt goes through the chat template in the model's file; a model without one gets it raw, and is told
so.
"""

from __future__ import annotations

import sys
import threading
import time
from typing import TYPE_CHECKING, Any

import click

from eaglecpp.cli.common import (
    argument_bytes,
    engine_options,
    given,
    open_engine,
    read_input,
    strategy_options,
)
from eaglecpp.cli.generate import follow
from eaglecpp.cli.terminal import Watch, note, stats_line, verbose_lines
from eaglecpp.options import Strategy

if TYPE_CHECKING:
    from eaglecpp.engine import Engine

__all__ = ["run"]

_STDIN_PATIENCE_S = 3.0


@click.command()
@click.argument("model")
@click.argument("prompt", nargs=-1)
@strategy_options
@click.option("--verbose", is_flag=True, help="Show durations and rates after the answer, as Ollama does.")
@engine_options
def run(
    model: str,
    prompt: tuple[str, ...],
    draft: str | None,
    strategy: Strategy | None,
    no_draft: bool,
    verbose: bool,
    **options: Any,
) -> None:
    """Answer PROMPT with MODEL, a GGUF file. Piped standard input goes before the prompt."""
    question = _question(prompt)
    started = time.perf_counter()
    watch = Watch()
    with open_engine(model, draft, strategy, no_draft, given(options)) as engine, watch.listening():
        load_ms = 1000 * (time.perf_counter() - started)
        tokens = _prompt_tokens(engine, question)
        stream = engine.stream(tokens, on_prefill=watch.on_prefill)
        follow(stream, watch, echo=True)
        stats = stream.completion().stats
        if verbose:
            total_ms = 1000 * (time.perf_counter() - started)
            note("\n".join(["", *verbose_lines(stats, total_ms, load_ms)]))
        note(stats_line(stats, has_draft=engine.has_draft))
    if watch.requested:
        raise click.exceptions.Exit(130)


def _prompt_tokens(engine: Engine, question: bytes) -> list[int]:
    if engine.has_chat_template:
        return engine.chat_prompt([{"role": "user", "content": question.decode("utf-8", "replace")}])
    note("note: this model has no chat template (a base model?); it continues the prompt as it is")
    return engine.prompt_tokens(question)


def _question(words: tuple[str, ...]) -> bytes:
    """Standard input, unless it is a terminal, then the prompt, a blank line between."""
    parts = [argument_bytes(" ".join(words))] if words else []
    if not sys.stdin.isatty():
        parts.insert(0, _piped().rstrip(b"\n"))
    question = b"\n\n".join(part for part in parts if part)
    if not question:
        raise click.UsageError(
            "no prompt: give one as argument or on standard input (there is no interactive chat yet)"
        )
    return question


def _piped() -> bytes:
    """Reads standard input to its end; says so when that takes long, lest it look like a hang."""
    waiting = threading.Timer(
        _STDIN_PATIENCE_S, note, ["reading standard input to its end (use </dev/null to give none) ..."]
    )
    waiting.daemon = True
    waiting.start()
    try:
        return read_input("-")
    finally:
        waiting.cancel()
