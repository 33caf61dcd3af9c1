# SPDX-License-Identifier: MIT
"""`eaglecpp serve`: the APIs of Ollama, OpenAI, Anthropic and llama-server on one port, and a chat page."""

from __future__ import annotations

import logging
import os
import signal
from dataclasses import fields
from pathlib import Path
from typing import Any

import click

from eaglecpp.cli.command import command, option, options_of
from eaglecpp.cli.options import (
    AUTOMATIC_CONTEXT,
    SECONDS,
    Drafting,
    Parsed,
    engine_options,
    given,
    model_argument,
    spec_type_option,
)
from eaglecpp.cli.terminal import LogFormatter, note
from eaglecpp.human import n_bytes_of
from eaglecpp.options import DraftOptions, ModelOptions

_SIZE = Parsed("size", n_bytes_of)
"""512M, 8G, or bytes."""


@command(
    ("eaglecpp serve", "every model on this machine, loaded when asked for"),
    ("eaglecpp serve llama3.1:8b -c 8192 --port 8080", "one model, loaded at once"),
    ("eaglecpp serve --models models.toml", "several, as a file lists them"),
    usual="models_file host port draft n_parallel keep_alive_s n_models keys n_ctx n_gpu_layers",
)
@model_argument(is_needed=False)
@option("--models", "models_file", type=click.Path(path_type=Path), metavar="FILE",
        help="A list of models to serve, each with its drafter, context and whether it stays in "
        "memory.")  # fmt: skip
@option("--host", envvar="EAGLECPP_HOST", default="127.0.0.1", show_default=True,
              help="Address to listen on; 0.0.0.0 = all networks that this machine is in.")  # fmt: skip
@option("--port", type=click.IntRange(0, 65535), default=11434, show_default=True, help="Port; 0 = any.")
@options_of(Drafting)
@spec_type_option
@option("-np", "--parallel", "n_parallel", type=click.IntRange(1, 128), default=4, show_default=True,
              help="Conversations per model at a time; each has a context of its own.")  # fmt: skip
@option("--max-queue", "n_queue", type=click.IntRange(0), default=512, show_default=True,
              help="Requests that may wait for each model; further ones are refused.")  # fmt: skip
@option("--max-body", "n_body", type=_SIZE, default="32M", show_default=True,
              help="Maximum size of a request's body.")  # fmt: skip
@option("--max-time", "request_s", type=SECONDS, default="0",
              help="Maximum time for one answer.  [default: no limit]")  # fmt: skip
@option("--max-place", "place_s", type=SECONDS, default="5m", show_default=True,
              help="How long an answer may take while others wait for a place; 0 = to its end.")  # fmt: skip
@option("--max-unread", "unread_s", type=SECONDS, default="30s", show_default=True,
              help="How long a client may read nothing before its answer ends; 0 = forever.")  # fmt: skip
@option("--keep-alive", "keep_alive_s", type=SECONDS, default="5m", show_default=True,
              help="How long an unused model stays in memory; negative = forever.")  # fmt: skip
@option("--memory", "n_bytes", type=_SIZE, default="0",
              help="Memory that models may use.  [default: most of what is free at the start]")  # fmt: skip
@option("--cache-ram", "n_park_bytes", type=_SIZE, default="1G", show_default=True,
              help="Additional memory per model for parked conversations, at most an eighth of what is "
              "free; 0 = their text is read again.")  # fmt: skip
@option("--max-models", "n_models", type=click.IntRange(1), default=3, show_default=True,
              help="Models in memory at a time; the least recently used one goes first.")  # fmt: skip
@option("--keep-responses", "n_responses", type=click.IntRange(0), default=0, show_default=True,
              help="Responses per API key, in memory, that requests may continue (previous_response_id), "
              "64M at most.")  # fmt: skip
@option("--api-key", "keys", multiple=True, envvar="EAGLECPP_API_KEY", metavar="KEY",
              help="Require this key (repeatable).")  # fmt: skip
@option("--no-key", is_flag=True, help="Let anyone who can reach --host use the server without a key.")
@option("--allow-origin", "origins", multiple=True, metavar="ORIGIN",
              help="Let web pages of this origin use the server (repeatable); * = all.")  # fmt: skip
@option("--allow-host", "hosts", multiple=True, metavar="NAME",
              help="Another host name of this machine (repeatable).")  # fmt: skip
@option("--allow-registry", "registries", multiple=True, metavar="HOST[:PORT]",
        help="Another registry that requests may pull from, also in your network (repeatable).")  # fmt: skip
@option(
    "--insecure", is_flag=True, help="Let requests pull over http or from servers with invalid certificates."
)
@engine_options(ModelOptions, DraftOptions, taken=("--draft",), helps=AUTOMATIC_CONTEXT)
def serve(model: str | None, asked: Drafting, no_key: bool, models_file: Path | None, **options: Any) -> None:
    """Serve the models on this machine through the APIs of Ollama, OpenAI, Anthropic and llama-server.

    MODEL is loaded at once and stays in memory; without it, models are loaded when requests name them. It may
    be the path of a GGUF file, which is then served under the file's name and any that no stored model has.
    """
    from eaglecpp.server.announced import Address, announced, reached_as
    from eaglecpp.server.config import ServerConfig, read_presets
    from eaglecpp.server.run import bind, give_back_large_blocks
    from eaglecpp.server.run import serve as run

    files, preload = _served(model)
    presets = {} if models_file is None else read_presets(models_file)
    if presets and model is not None:
        raise click.UsageError("--models lists what is served: leave out MODEL, or add it to that file")
    files |= {name: one.path for name, one in presets.items() if one.path is not None}
    if asked.draft is not None and (presets or not files):
        raise click.UsageError(
            "--draft is only for a MODEL that is a file; a stored model has its drafter in the store, and "
            "one of --models in that file"
        )
    own = {one.name: options.pop(one.name) for one in fields(ServerConfig) if one.name in options}
    engine = given(options)
    if model is None and (one := next((name for name in ("mmproj", "lora") if engine.get(name)), "")):
        raise click.UsageError(
            f"--{one} belongs to one model: name that MODEL; a stored model has what its Modelfile says"
        )
    if model is not None:
        own["keep_alive_s"] = -1.0
    own |= {"draft": asked.draft, "strategy": str(asked.strategy or "")}
    config = ServerConfig(engine=engine, model=preload, presets=presets, **own)
    n_pinned = sum(one.pinned for one in presets.values())
    if n_pinned > config.n_models:
        raise click.UsageError(
            f"{models_file} pins {n_pinned} models; --max-models lets {config.n_models} be in memory"
        )
    host, api_key = config.host, config.keys
    if not all(key.strip() for key in api_key):
        raise click.UsageError("--api-key: expected a key, found an empty text")
    if no_key and api_key:
        raise click.UsageError("--no-key and --api-key contradict each other")
    if not (config.is_loopback or api_key or no_key):
        raise click.UsageError(
            f"--host {host}: anyone who can reach this machine could use the server; require a key with "
            "--api-key, or say --no-key"
        )
    listener = bind(host, config.port)
    give_back_large_blocks()
    _set_log()
    address = Address(reached_as(host), listener.getsockname()[1])
    if not config.is_loopback and not api_key:
        note(f"warning: anyone who can reach {address} can use this server, and change its models")
    served = (
        f"eaglecpp serves {address} (Ollama's API; OpenAI's and Anthropic's at {address}/v1; a chat page)"
    )
    # uvicorn sends itself the signal that ended it once more, when it has shut down
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
    """Files that are served under a name, and the model to load at once. Raises ModelNotFoundError."""
    from eaglecpp.cli.open_engine import look_up

    if model is None:
        return {}, ""
    found = look_up(model, wants_draft=False).model
    if found.name is not None:
        return {}, str(found.name)
    return {found.target.stem: found.target.absolute()}, found.target.stem


def _set_log() -> None:
    logging.getLogger("eaglecpp.server").setLevel(os.environ.get("EAGLECPP_SERVER_LOG", "INFO").upper())
    logging.getLogger("uvicorn").setLevel("WARNING")
    lines = LogFormatter("%(asctime)s %(levelname)s %(message)s", "%Y-%m-%d %H:%M:%S")
    for handler in logging.getLogger().handlers:
        handler.setFormatter(lines)
