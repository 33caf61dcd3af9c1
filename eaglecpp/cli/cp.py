# SPDX-License-Identifier: MIT
"""`eaglecpp cp`: a second name for a model; its blobs are shared. A model in Ollama's store becomes ours."""

from __future__ import annotations

from functools import partial

import click

from eaglecpp.cli.command import command, complete_model
from eaglecpp.cli.options import stored_name
from eaglecpp.cli.terminal import write
from eaglecpp.store import Stores
from eaglecpp.store.progress import Bars
from eaglecpp.store.store import read_again
from eaglecpp.store.transaction import copy_model


@command(("eaglecpp cp smollm2 mine", "a second name; nothing is copied"))
@click.argument("source", shell_complete=complete_model)
@click.argument("destination")
def cp(source: str, destination: str) -> None:
    """Copy a model: give SOURCE a second name, DESTINATION."""
    stores = Stores.open()
    with Bars() as bars:
        read_again(
            partial(stores.get, stored_name(source)),
            lambda model: copy_model(stores, model, stored_name(destination), bars),
        )
    write(f"copied '{source}' to '{destination}'\n")
