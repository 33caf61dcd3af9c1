# SPDX-License-Identifier: MIT
"""`eaglecpp pull`: a model from the Hub or an Ollama registry into our store, with its drafter if wanted."""

from __future__ import annotations

import click

from eaglecpp.cli.command import command, json_option, option
from eaglecpp.cli.create import say_made
from eaglecpp.cli.options import hub_option, stored_name
from eaglecpp.cli.terminal import note
from eaglecpp.options import Strategy
from eaglecpp.references import hub_text
from eaglecpp.store.packaged import find_packaged
from eaglecpp.store.progress import Bars


@command(
    ("eaglecpp pull llama3.1:8b --draft auto", "model and drafter, under one name"),
    ("eaglecpp pull hf.co/bartowski/Qwen_Qwen3-8B-GGUF:Q4_K_M", "from the Hub"),
)
@click.argument("model")
@hub_option
@option(
    "--draft",
    metavar="D",
    help="Store it with this drafter: auto (the repository's own, or a known one), a path, a stored name, or "
    "hf.co/user/repo.",
)
@option("--no-draft", is_flag=True, help="Store it without a drafter, even if it had one.")
@option("--insecure", is_flag=True, help="Allow http and invalid certificates.")
@json_option("{name, digest, size, draft} at the end")
def pull(model: str, on_hub: bool, draft: str | None, no_draft: bool, insecure: bool, as_json: bool) -> None:
    """Download MODEL: hf.co/user/repo[:quant], or a name in Ollama's library such as llama3.2:3b."""
    from eaglecpp.store.remote.pull import pull as pull_model

    if draft is not None and no_draft and not Strategy.is_off(draft):
        raise click.UsageError("--draft and --no-draft contradict each other")
    reference = hub_text(model) if on_hub else model
    packaged = find_packaged(stored_name(reference))
    if packaged is not None and packaged.installed() and draft is None and not as_json:
        here = packaged.name.model
        note(f"{here} is here already, installed by pip; to run it: `eaglecpp run {here}`")
        return
    with Bars() as bars:
        pulled = pull_model(reference, draft="none" if no_draft else draft, insecure=insecure, report=bars)
    if packaged is not None:
        note(f"to run it: eaglecpp run {packaged.name.model}")
    say_made(pulled, as_json)
