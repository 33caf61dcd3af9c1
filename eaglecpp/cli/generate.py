# SPDX-License-Identifier: MIT
"""`eaglecpp generate`: completes a raw prompt, without a chat template.

Streams the text to stdout, or prints one JSON object. After Ctrl+C, prints the text so far.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import click

from eaglecpp.cli.command import command
from eaglecpp.cli.figures import stats_line
from eaglecpp.cli.open_engine import open_engine
from eaglecpp.cli.options import (
    Answering,
    argument_bytes,
    engine_options,
    given,
    model_argument,
    options_of,
    read_input,
    spec_type_option,
)
from eaglecpp.cli.terminal import Watch, note, stderr_is_terminal, write, write_json
from eaglecpp.options import DraftOptions, ModelOptions, SamplingOptions, declare, split


@dataclass(frozen=True)
class GenerateOptions(Answering):
    """Options that only `generate` has, in addition to the common options."""

    prompt: str | None = declare(None, "The prompt; - reads standard input.", flags="-p --prompt")
    file: str | None = declare(
        None, "File with the prompt, used byte for byte.", flags="-f --file", type=click.Path()
    )
    as_json: bool = declare(False, "Print {text, tokens, finish_reason, timings} at the end.", flags="--json")
    verbose: bool = declare(
        False, "Show the opened files, and the origin of each option.", flags="-v --verbose"
    )


@command(
    ('eaglecpp generate model.gguf -p "def main():" -n 128', "up to 128 tokens"),
    ("eaglecpp generate smollm2 -f prompt.txt --temp 0", "greedy, the prompt from a file"),
    usual="prompt file draft strategy as_json max_tokens temperature seed n_ctx n_gpu_layers",
)
@model_argument(on_hub=True)
@options_of(asked=GenerateOptions)
@spec_type_option
@engine_options()
def generate(model: str, asked: GenerateOptions, **options: Any) -> None:
    """Complete a prompt with MODEL: a GGUF file, a stored name, or hf.co/user/repo[:quant]. No chat template
    is applied; see `run` for that.
    """
    text, form = _prompt(asked.prompt, asked.file), asked.form()
    opening, drafting, sampling = split(given(options), ModelOptions, DraftOptions, SamplingOptions)
    watch = Watch()
    opened = open_engine(model, asked.draft, asked.strategy, opening | drafting, verbose=asked.verbose)
    with opened as engine, watch.listening():
        stream = engine.stream(text, on_prefill=watch.on_prefill, **form, **sampling)
        shown = (lambda text: None) if asked.as_json else write
        watch.follow(stream, lambda chunk: shown(chunk.text))
        shown("\n")
        result = stream.completion()
        if asked.as_json:
            write_json(
                {name: getattr(result, name) for name in ("text", "tokens", "finish_reason")}
                | {"timings": result.timings.as_dict()}
            )
        if stderr_is_terminal():
            note(f"{stats_line(result.timings, has_draft=engine.has_draft)} seed {result.seed}")
    if watch.requested:
        raise click.exceptions.Exit(130)


def _prompt(prompt: str | None, file: str | None) -> bytes:
    if (prompt is None) == (file is None):
        raise click.UsageError("give the prompt once: -p TEXT, -p - for standard input, or -f FILE")
    if file is not None:
        return read_input(file)
    return read_input("-") if prompt == "-" else argument_bytes(str(prompt))
