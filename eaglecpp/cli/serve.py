# SPDX-License-Identifier: MIT
"""`eaglecpp serve`: the APIs of Ollama, OpenAI, Anthropic and llama-server on one port, and a chat page."""

from __future__ import annotations

import logging
import os
import signal
from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from eaglecpp.cli.command import command, option
from eaglecpp.cli.options import (
    AUTOMATIC_CONTEXT,
    Drafting,
    engine_options,
    given,
    model_argument,
    options_of,
    spec_type_option,
)
from eaglecpp.cli.terminal import LogFormatter, note
from eaglecpp.options import DraftOptions, ModelOptions
from eaglecpp.server.config import ServerConfig, read_presets


@command(
    ("eaglecpp serve", "every model on this machine, loaded on request"),
    ("eaglecpp serve llama3.1:8b -c 8192 --port 8080", "one model, loaded at startup"),
    ("eaglecpp serve --models models.toml", "the models listed in a file"),
    usual="models_file host port draft n_parallel keep_alive_s n_models keys n_ctx n_gpu_layers",
)
@model_argument(is_needed=False)
@option("--models", "models_file", type=click.Path(path_type=Path), metavar="FILE",
        help="TOML file of the models to serve, with their drafters and memory settings.")  # fmt: skip
@options_of(drafting=Drafting, config=ServerConfig)
@spec_type_option
@engine_options(ModelOptions, DraftOptions, taken=("--draft",), helps=AUTOMATIC_CONTEXT)
def serve(
    model: str | None, drafting: Drafting, config: ServerConfig, models_file: Path | None, **options: Any
) -> None:
    """Serve the models on this machine through the APIs of Ollama, OpenAI, Anthropic and llama-server.

    MODEL is loaded at startup and stays in memory; without it, models are loaded when requests name them. If
    it is the path of a GGUF file, it is served under the file's name and under names without a stored model.
    """
    from eaglecpp.conversations.served import address_of
    from eaglecpp.server.announced import announced
    from eaglecpp.server.run import bind, give_back_large_blocks
    from eaglecpp.server.run import serve as run

    files, preload = _served(model)
    presets = {} if models_file is None else read_presets(models_file)
    if presets and model is not None:
        raise click.UsageError("--models lists all served models: remove MODEL, or add it to that file")
    files |= {name: Path(one.path) for name, one in presets.items() if one.path is not None}
    if drafting.draft is not None and (presets or not files):
        raise click.UsageError(
            "--draft needs a MODEL that is a file. The drafter of a stored model is in the store; for a "
            "model in --models, set the drafter in that file"
        )
    engine = given(options)
    if model is None and (one := next((name for name in ("mmproj", "lora") if engine.get(name)), "")):
        raise click.UsageError(f"--{one} applies to one model: give a MODEL, or set it in its Modelfile")
    config = replace(
        config,
        keep_alive_s=config.keep_alive_s if model is None else -1.0,
        engine=engine,
        model=preload,
        presets=presets,
        draft=drafting.draft,
        strategy=str(drafting.strategy or ""),
    )
    n_pinned = sum(one.pinned for one in presets.values())
    if n_pinned > config.n_models:
        raise click.UsageError(
            f"{models_file} pins {n_pinned} models, but --max-models allows {config.n_models} in memory"
        )
    if not all(key.strip() for key in config.keys):
        raise click.UsageError("--api-key: expected a key, found an empty text")
    if config.no_key and config.keys:
        raise click.UsageError("--no-key and --api-key contradict each other")
    if not (config.is_loopback or config.keys or config.no_key):
        raise click.UsageError(
            f"--host {config.host}: anyone who can reach this machine could use the server; require a key "
            "with --api-key, or pass --no-key"
        )
    listener = bind(config.host, config.port)
    give_back_large_blocks()
    _set_log()
    address = address_of(config.host, listener.getsockname()[1])
    if not config.is_loopback and not config.keys:
        note(f"warning: anyone who can reach {address} can use this server, and change its models")
    served = (
        f"eaglecpp serves {address} (Ollama's API; OpenAI's and Anthropic's at {address}/v1; a chat page)"
    )
    # uvicorn raises the same signal again when it has shut down.
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        with announced(address):
            if preload:
                note(f"{address}: loading {preload} ...")
            run(config, files, preload, listener, lambda: note(served))
    except KeyboardInterrupt:
        return
    finally:
        signal.signal(signal.SIGTERM, before)


def _served(model: str | None) -> tuple[dict[str, Path], str]:
    """Returns the GGUF files that are served under their own names, and the model to load at startup. Raises
    ModelNotFoundError.
    """
    from eaglecpp.cli.open_engine import look_up

    if model is None:
        return {}, ""
    files = look_up(model, wants_draft=False)
    if files.name is not None:
        return {}, str(files.name)
    return {files.target.stem: files.target.absolute()}, files.target.stem


def _set_log() -> None:
    logging.getLogger("eaglecpp.server").setLevel(os.environ.get("EAGLECPP_SERVER_LOG", "INFO").upper())
    logging.getLogger("uvicorn").setLevel("WARNING")
    lines = LogFormatter("%(asctime)s %(levelname)s %(message)s", "%Y-%m-%d %H:%M:%S")
    for handler in logging.getLogger().handlers:
        handler.setFormatter(lines)
