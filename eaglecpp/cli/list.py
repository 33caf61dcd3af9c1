# SPDX-License-Identifier: MIT
"""`eaglecpp list`: the models in our store and in Ollama's, with Ollama's columns and one for the drafter.

Reads manifests and configs only; loads neither numpy nor llama.cpp.
"""

from __future__ import annotations

from collections.abc import Sequence

import click

from eaglecpp.cli.command import command, json_option
from eaglecpp.cli.table import human_time, table
from eaglecpp.cli.terminal import note, write, write_json
from eaglecpp.human import human_bytes
from eaglecpp.store import Stores
from eaglecpp.store.describe import draft_text, list_entry
from eaglecpp.store.model import StoredModel


@command(
    ("eaglecpp list", "what is here, Ollama's models included"),
    ("eaglecpp list llama", "those whose names begin so"),
    name="list",
)
@click.argument("prefix", default="")
@json_option("{models: [...]}, as Ollama's /api/tags")
def list_models(prefix: str, as_json: bool) -> None:
    """List the models on this machine whose name begins with PREFIX."""
    stores = Stores.open()
    models = [m for m in stores.models() if str(m.name).lower().startswith(prefix.lower())]
    if as_json:
        write_json({"models": [list_entry(model) for model in models]})
        return
    write(models_table(models))
    for store in stores.others:
        count = sum(1 for model in models if model.root == store.root)
        if count:
            note(f"{count} of them are in Ollama's store {store.root} and are read in place")
    for problem in stores.problems:
        note(f"note: {problem}")


def models_table(models: Sequence[StoredModel]) -> str:
    """A row for each."""
    rows = [
        (str(m.name), m.digest[:12], human_bytes(m.size), human_time(m.modified), draft_text(m) or "-")
        for m in models
    ]
    return table(("NAME", "ID", "SIZE", "MODIFIED", "DRAFT"), rows)
