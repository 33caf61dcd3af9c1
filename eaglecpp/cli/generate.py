# SPDX-License-Identifier: MIT
"""`eaglecpp generate`: raw completion of a prompt, no chat template.

Streams the text to stdout, or prints one JSON object. After Ctrl+C, what was generated so far is printed.
"""

from __future__ import annotations

from typing import Any

import click

from eaglecpp.cli.command import command, json_option, option
from eaglecpp.cli.figures import stats_line
from eaglecpp.cli.open_engine import open_engine
from eaglecpp.cli.options import (
    argument_bytes,
    engine_options,
    given,
    model_argument,
    read_input,
    strategy_options,
)
from eaglecpp.cli.terminal import Watch, note, stderr_is_terminal, write, write_json
from eaglecpp.options import DraftOptions, ModelOptions, SamplingOptions, Strategy, split


@command(
    ('eaglecpp generate model.gguf -p "def main():" -n 128', "at most 128 tokens"),
    ("eaglecpp generate smollm2 -f prompt.txt --temp 0", "greedy, the prompt from a file"),
    usual="prompt file draft strategy as_json max_tokens temperature seed n_ctx n_gpu_layers",
)
@model_argument(on_hub=True)
@option("-p", "--prompt", help="The prompt; - reads standard input.")
@option("-f", "--file", "file", type=click.Path(), help="File with the prompt, used byte for byte.")
@strategy_options
@json_option("{text, tokens, finish_reason, timings} at the end")
@option("-v", "--verbose", is_flag=True, help="Show what is opened, and where each option comes from.")
@option("--grammar-file", type=click.Path(), help="GBNF grammar that the text must follow.")
@option("--json-schema-file", type=click.Path(), help="JSON schema that the text must follow.")
@engine_options()
def generate(
    model: str,
    prompt: str | None,
    file: str | None,
    draft: str | None,
    strategy: Strategy | None,
    no_draft: bool,
    as_json: bool,
    verbose: bool,
    grammar_file: str | None,
    json_schema_file: str | None,
    **options: Any,
) -> None:
    """Complete a prompt with MODEL: a GGUF file, a stored name, or hf.co/user/repo[:quant]. No chat template
    is applied; see `run` for that.
    """
    text = _prompt(prompt, file)
    forms = {"grammar": grammar_file, "json_schema": json_schema_file}
    form: dict[str, Any] = {name: read_input(path).decode() for name, path in forms.items() if path}
    opening, drafting, sampling = split(given(options), ModelOptions, DraftOptions, SamplingOptions)
    watch = Watch()
    opened = open_engine(model, draft, strategy, no_draft, opening | drafting, verbose=verbose)
    with opened as engine, watch.listening():
        stream = engine.stream(text, on_prefill=watch.on_prefill, **form, **sampling)
        shown = (lambda text: None) if as_json else write
        watch.follow(stream, lambda chunk: shown(chunk.text))
        shown("\n")
        result = stream.completion()
        if as_json:
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
