# SPDX-License-Identifier: MIT
"""`eaglecpp ps` and `stop`: models that a server has in memory, with Ollama's columns and one for drafts.

Asks the server that `eaglecpp serve` runs on this machine. Without one, commands load a model for themselves
and free it at the end, so the list is empty.
"""

from __future__ import annotations

import contextlib
import http.client
import json
from datetime import datetime
from typing import Any

import click

from eaglecpp.cli.command import added, command, complete_model, json_option, option
from eaglecpp.cli.table import human_time, table
from eaglecpp.cli.terminal import note, write, write_json
from eaglecpp.conversations.served import ServerRefusedError, request
from eaglecpp.human import human_bytes
from eaglecpp.server.announced import Address, find_server, reached_as

_ALWAYS_YEARS = 10
_PATIENCE_S = 10.0


_server_options = added(
    option("--host", envvar="EAGLECPP_HOST",
           help="The server's address.  [default: that of the one on this machine, or 127.0.0.1]"),
    option("--port", type=click.IntRange(1, 65535),
           help="The server's port.  [default: that of the one on this machine, or 11434]"),
    option("--api-key", envvar="EAGLECPP_API_KEY", metavar="KEY", help="The server's key."),
)  # fmt: skip


@command()
@_server_options
@json_option("{models: [...]}, as Ollama's /api/ps")
def ps(host: str | None, port: int | None, api_key: str | None, as_json: bool) -> None:
    """List the models that a server has loaded."""
    found = _ask(_where(host, port), api_key, "GET", "ps", "models")
    models = [] if found is None else found["models"]
    if as_json:
        write_json(found or {"models": models})
        return
    rows = []
    for one in models:
        processor, n_ctx = "100% GPU" if one["size_vram"] else "100% CPU", str(one["context_length"])
        facts = [one["name"], one["digest"][:12], human_bytes(one["size"]), processor, n_ctx]
        rows.append([*facts, _until(one["expires_at"]), one.get("drafter") or "-"])
    write(table(("NAME", "ID", "SIZE", "PROCESSOR", "CONTEXT", "UNTIL", "DRAFT"), rows))
    if found is None:
        note("no server is running")


@command(("eaglecpp stop smollm2", "the next request loads it again"))
@click.argument("model", shell_complete=complete_model)
@_server_options
def stop(model: str, host: str | None, port: int | None, api_key: str | None) -> None:
    """Let a running server free MODEL's memory."""
    address = _where(host, port)
    found = _ask(address, api_key, "GET", "ps", "models")
    if found is None:
        raise click.ClickException(f"no server is running at {address}; `run` frees its model by itself")
    loaded = [str(one["name"]).removesuffix(":latest") for one in found["models"]]
    if model.removesuffix(":latest") not in loaded:
        names = ", ".join(loaded) or "no model"
        raise click.ClickException(f"{model} is not loaded; the server has {names} in memory")
    _ask(address, api_key, "POST", "generate", "done", {"model": model, "keep_alive": 0})


def _where(host: str | None, port: int | None) -> Address:
    """The server that is meant: what the command line says, else the one that this machine announces."""
    known = find_server() if host is None and port is None else None
    return known or Address(reached_as((host or "127.0.0.1").strip("[]")), port or 11434)


def _ask(
    address: Address, api_key: str | None, method: str, path: str, key: str, body: Any = None
) -> dict[str, Any] | None:
    """The server's answer, which has that key; None if no server is running. Raises click.ClickException for
    an error.
    """
    # answers in progress end before a model is freed
    patience = _PATIENCE_S if body is None else None
    try:
        answer = request(str(address), method, f"/api/{path}", body, api_key or "", patience)
    except OSError:
        return None
    except ServerRefusedError as error:
        raise click.ClickException(f"{address}: {error}") from None
    with answer, contextlib.suppress(OSError, ValueError, KeyError, TypeError, http.client.HTTPException):
        found = json.loads(answer.read())
        if isinstance(found[key], (list, bool)):
            return dict(found)
    raise click.ClickException(f"{address}: expected an answer of eaglecpp serve")


def _until(text: str) -> str:
    when = datetime.fromisoformat(text)
    left = when - datetime.now(when.tzinfo)
    return "Forever" if left.days > 365 * _ALWAYS_YEARS else human_time(when)
