# SPDX-License-Identifier: MIT
"""`eaglecpp rm`: removes models, and the blobs that no other model needs."""

from __future__ import annotations

import click

from eaglecpp.cli.command import command, complete_model
from eaglecpp.cli.options import stored_name
from eaglecpp.cli.terminal import write
from eaglecpp.store import StoreError, Stores
from eaglecpp.store.transaction import remove_model


@command(("eaglecpp rm mine", "also frees what no other model needs"))
@click.argument("names", nargs=-1, required=True, metavar="MODEL...", shell_complete=complete_model)
def rm(names: tuple[str, ...]) -> None:
    """Remove models."""
    stores = Stores.open()
    models = [stores.get(stored_name(name)) for name in names]
    for text, model in zip(names, models, strict=True):
        if model.owner == "pip":
            raise StoreError(
                f"'{text}' belongs to a Python package in {model.root}: remove it with pip uninstall"
            )
        if not model.own:
            raise StoreError(f"'{text}' is in Ollama's store {model.root}: remove it with ollama rm {text}")
    for text, model in zip(names, models, strict=True):
        remove_model(stores.own, model.name)
        write(f"deleted '{text}'\n")
