# SPDX-License-Identifier: MIT
"""`eaglecpp list`, `pull`, `create`, `cp` and `rm`: manage the models in the stores. None of these commands
loads llama.cpp.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path

import click

from eaglecpp.cli.command import command, complete_model, json_option, option
from eaglecpp.cli.options import hub_option, read_input, stored_name
from eaglecpp.cli.terminal import human_time, note, table, write, write_json
from eaglecpp.human import counted, human_bytes
from eaglecpp.options import Strategy
from eaglecpp.references import hub_text
from eaglecpp.store import StoreError, Stores, packaged
from eaglecpp.store.describe import draft_text, list_entry
from eaglecpp.store.model import StoredModel
from eaglecpp.store.progress import Bars
from eaglecpp.store.store import read_again
from eaglecpp.store.transaction import copy_model, remove_model


@command(
    ("eaglecpp list", "all models, including Ollama's"),
    ("eaglecpp list llama", "models whose names begin with llama"),
    name="list",
)
@click.argument("prefix", default="")
@json_option("{models: [...]}, as in Ollama's /api/tags")
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
            note(f"{count} of these models are in Ollama's store {store.root}; eaglecpp reads them there")
    for problem in stores.problems:
        note(f"note: {problem}")


def models_table(models: Sequence[StoredModel]) -> str:
    """Formats stored models as a table with a row per model."""
    rows = [
        (str(m.name), m.digest[:12], human_bytes(m.size), human_time(m.modified), draft_text(m) or "-")
        for m in models
    ]
    return table(("NAME", "ID", "SIZE", "MODIFIED", "DRAFT"), rows)


@command(("eaglecpp create my-model -f Modelfile", "from a Modelfile"))
@click.argument("name")
@option("-f", "--file", "file", default="Modelfile", show_default=True, help="The Modelfile; - is stdin.")
@option("-q", "--quantize", metavar="TYPE", default="", help="Quantise an F32 or F16 target to this type.")
@option("--draft-quantize", metavar="TYPE", default="", help="Type of a converted drafter.  [default: Q8_0]")
@option("--no-draft", is_flag=True, help="Create the model without the drafter.")
@json_option("{name, digest, size, draft} at the end")
def create(name: str, file: str, quantize: str, draft_quantize: str, no_draft: bool, as_json: bool) -> None:
    """Create the model NAME from a Modelfile."""
    from eaglecpp.modelfile import Modelfile
    from eaglecpp.store.create import create_model

    modelfile = Modelfile.from_text(read_input(file), file=None if file == "-" else file)
    directory = Path.cwd() if file == "-" else Path(file).absolute().parent
    stores = Stores.open()
    with Bars() as bars:
        created = create_model(
            stores, stored_name(name), modelfile, directory,
            quantize=quantize, draft_type=draft_quantize, use_draft=not no_draft, report=bars,
        )  # fmt: skip
    say_made(created, as_json)
    if not as_json:
        write(f"created '{name}'\n")


def say_made(model: StoredModel, as_json: bool) -> None:
    """Prints the result of `create` and `pull`."""
    for notice in model.notices:
        note(f"note: {notice}")
    if as_json:
        entry = list_entry(model)
        write_json({key: entry[key] for key in ("name", "digest", "size", "draft")})


@command(
    ("eaglecpp pull llama3.1:8b --draft auto", "model and drafter, under one name"),
    ("eaglecpp pull hf.co/bartowski/Qwen_Qwen3-8B-GGUF:Q4_K_M", "from the Hub"),
)
@click.argument("model")
@hub_option
@option(
    "--draft",
    metavar="D",
    help="Store the model with this drafter: auto (from the same repository, or a known drafter), a path, a "
    "stored name, or hf.co/user/repo.",
)
@option("--no-draft", is_flag=True, help="Store the model without a drafter, even if it had one.")
@option("--insecure", is_flag=True, help="Allow http and invalid certificates.")
@json_option("{name, digest, size, draft} at the end")
def pull(model: str, on_hub: bool, draft: str | None, no_draft: bool, insecure: bool, as_json: bool) -> None:
    """Download MODEL: hf.co/user/repo[:quant], or a name in Ollama's library such as llama3.2:3b."""
    from eaglecpp.store.remote.pull import pull as pull_model

    if draft is not None and no_draft and not Strategy.is_off(draft):
        raise click.UsageError("--draft and --no-draft contradict each other")
    reference = hub_text(model) if on_hub else model
    here = packaged.NAME.model if packaged.is_packaged(stored_name(reference)) else None
    if here and packaged.installed() and draft is None and not as_json:
        note(f"{here} is already installed by pip; to run it: `eaglecpp run {here}`")
        return
    with Bars() as bars:
        pulled = pull_model(reference, draft="none" if no_draft else draft, insecure=insecure, report=bars)
    if here:
        note(f"to run it: eaglecpp run {here}")
    say_made(pulled, as_json)


@command(("eaglecpp cp smollm2 mine", "a second name; no data is copied"))
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


@command(
    ("eaglecpp rm mine", "also deletes files that no other model needs"),
    ("eaglecpp rm --prompt-cache ~/prompts", "delete the prompts in that folder"),
)
@click.argument("names", nargs=-1, metavar="MODEL...", shell_complete=complete_model)
@option("--prompt-cache", "folder", type=click.Path(exists=True, file_okay=False, path_type=Path),
        help="Delete the prompts and slots that --prompt-cache saved in this folder.")  # fmt: skip
def rm(names: tuple[str, ...], folder: Path | None) -> None:
    """Delete models, or saved prompts."""
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
