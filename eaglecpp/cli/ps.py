# SPDX-License-Identifier: MIT
"""`eaglecpp ps`: models that a server holds in memory, with Ollama's columns.

`run` and `generate` load a model for themselves and free it at the end, so without a server the list is
empty.
"""

from __future__ import annotations

import click

from eaglecpp.cli.table import table
from eaglecpp.cli.terminal import note, write, write_json

__all__ = ["ps"]


@click.command()
@click.option("--json", "as_json", is_flag=True, help="Print {models: [...]}, as Ollama's /api/ps.")
def ps(as_json: bool) -> None:
    """List the models a server has loaded."""
    if as_json:
        write_json({"models": []})
        return
    write(table(("NAME", "ID", "SIZE", "PROCESSOR", "CONTEXT", "UNTIL", "DRAFT"), ()))
    note("no server is running")
