# SPDX-License-Identifier: MIT
"""`eaglecpp ps` and `stop`: list and unload the models in a server's memory. The list has Ollama's columns,
and a column for drafters.

Both commands send requests to the `eaglecpp serve` on this machine, or to the server in --host, EAGLECPP_HOST
or OLLAMA_HOST. Without a server the list is empty, because other commands load a model themselves and free
the model when they end.
"""

from __future__ import annotations

import os
from datetime import datetime
from typing import Any

import click

from eaglecpp.cli.command import command, complete_model, json_option
from eaglecpp.cli.options import Served, options_of
from eaglecpp.cli.terminal import human_time, note, table, write, write_json
from eaglecpp.conversations.served import NoServerError, ServerRefusedError, address_of, ask
from eaglecpp.human import human_bytes
from eaglecpp.server.announced import find_server

_ALWAYS_YEARS = 10
_PATIENCE_S = 10.0


@command()
@options_of(asked=Served)
@json_option("{models: [...]}, as in Ollama's /api/ps")
def ps(asked: Served, as_json: bool) -> None:
    """List the models that a server has loaded."""
    address = _where(asked)
    answer = _ask(address, asked.key, "ps")
    models = [] if answer is None else answer["models"]
    if as_json:
        write_json(answer or {"models": models})
        return
    rows = []
    for one in models:
        processor, n_ctx = "100% GPU" if one["size_vram"] else "100% CPU", str(one["context_length"])
        facts = [one["name"], one["digest"][:12], human_bytes(one["size"]), processor, n_ctx]
        rows.append([*facts, _until(one["expires_at"]), one.get("drafter") or "-"])
    write(table(("NAME", "ID", "SIZE", "PROCESSOR", "CONTEXT", "UNTIL", "DRAFT"), rows))
    if answer is None:
        note(f"no server is running at {address}")


@command(("eaglecpp stop smollm2", "the next request loads it again"))
@click.argument("model", shell_complete=complete_model)
@options_of(asked=Served)
def stop(model: str, asked: Served) -> None:
    """Unload MODEL from a running server's memory."""
    address, key = _where(asked), asked.key
    answer = _ask(address, key, "ps")
    if answer is None:
        raise click.ClickException(f"no server is running at {address}; `run` frees its model when it ends")
    loaded = [str(one["name"]).removesuffix(":latest") for one in answer["models"]]
    if model.removesuffix(":latest") not in loaded:
        names = ", ".join(loaded) or "no model"
        raise click.ClickException(f"{model} is not loaded; the server has {names} in memory")
    _ask(address, key, "generate", {"model": model, "keep_alive": 0})


def _where(asked: Served) -> str:
    """Returns the address of the server that gets the request. This is the named server, or else the server
    that is announced on this machine, or else the local address in EAGLECPP_HOST or OLLAMA_HOST.
    """
    variable = os.environ.get("EAGLECPP_HOST") or os.environ.get("OLLAMA_HOST") or ""
    return asked.host or find_server() or address_of(variable)


def _ask(address: str, api_key: str, path: str, body: Any = None) -> dict[str, Any] | None:
    """Sends a request to a server, and returns the server's reply, or None if no server is running. Raises
    click.ClickException for an error.
    """
    # A POST request has no time limit, because a server unloads a model only after the model's running
    # answers have ended.
    method, key, patience = ("GET", "models", _PATIENCE_S) if body is None else ("POST", "done", None)
    try:
        reply = ask(address, method, f"/api/{path}", body, api_key, patience)
    except NoServerError:
        return None
    except ServerRefusedError as error:
        raise click.ClickException(f"{address}: {error}") from None
    if isinstance(reply, dict) and isinstance(reply.get(key), (list, bool)):
        return reply
    raise click.ClickException(f"{address}: expected eaglecpp serve, found another server")


def _until(text: str) -> str:
    when = datetime.fromisoformat(text)
    left = when - datetime.now(when.tzinfo)
    return "Forever" if left.days > 365 * _ALWAYS_YEARS else human_time(when)
