# SPDX-License-Identifier: MIT
"""`eaglecpp rm`: removes models, and the blobs that no other model needs; prompts that were kept."""

from __future__ import annotations

from pathlib import Path

import click

from eaglecpp.cli.command import command, complete_model, option
from eaglecpp.cli.options import stored_name
from eaglecpp.cli.terminal import write
from eaglecpp.human import counted, human_bytes
from eaglecpp.store import StoreError, Stores
from eaglecpp.store.transaction import remove_model


@command(
    ("eaglecpp rm mine", "also frees what no other model needs"),
    ("eaglecpp rm --prompt-cache ~/prompts", "what was kept of prompts there"),
)
@click.argument("names", nargs=-1, metavar="MODEL...", shell_complete=complete_model)
@option("--prompt-cache", "folder", type=click.Path(exists=True, file_okay=False, path_type=Path),
        help="Remove the prompts and slots that --prompt-cache kept in this folder.")  # fmt: skip
def rm(names: tuple[str, ...], folder: Path | None) -> None:
    """Remove models, or prompts that were kept."""
    if not names and folder is None:
        raise click.UsageError("Missing argument 'MODEL...'.")
    if folder is not None:
        from eaglecpp.engine.prompt_cache import remove_all

        n, n_bytes = remove_all(folder)
        write(f"deleted {counted(n, 'prompt')}, {human_bytes(n_bytes)}\n")
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
