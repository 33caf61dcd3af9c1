# SPDX-License-Identifier: MIT
"""`eaglecpp list`: the models of our store and of Ollama's, with Ollama's columns and one for the drafter.

Reads manifests and configs only; loads neither numpy nor llama.cpp.
"""

from __future__ import annotations

from typing import Any

import click

from eaglecpp.cli.table import human_time, table
from eaglecpp.cli.terminal import note, write, write_json
from eaglecpp.human import human_bytes
from eaglecpp.options import TEXT
from eaglecpp.store import Stores
from eaglecpp.store.model import StoredModel

__all__ = ["list_models"]


@click.command("list")
@click.argument("prefix", default="")
@click.option("--json", "as_json", is_flag=True, help="Print {models: [...]}, as Ollama's /api/tags.")
def list_models(prefix: str, as_json: bool) -> None:
    """List the models on this machine whose name begins with PREFIX."""
    stores = Stores.open()
    models = [m for m in stores.models() if str(m.name).lower().startswith(prefix.lower())]
    if as_json:
        write_json({"models": [_facts(model) for model in models]})
        return
    rows = [
        (str(m.name), m.digest[:12], human_bytes(m.size), human_time(m.modified), draft_text(m))
        for m in models
    ]
    write(table(("NAME", "ID", "SIZE", "MODIFIED", "DRAFT"), rows))
    _say_where(stores, models)


def draft_text(model: StoredModel) -> str:
    """The DRAFT column: the drafter's architecture, or that the model is one."""
    if not model.manifest.of_kind("draft"):
        return TEXT if drafts_text(model) else "-"
    architecture = model.config.draft_architecture or "yes"
    return f"{architecture} (drafter only)" if model.is_drafter else architecture


def drafts_text(model: StoredModel) -> bool:
    """Whether the model drafts from the text itself, without a drafter."""
    wanted = [value for name, value in model.pragmas() if name == "text_drafts"]
    return wanted[-1:] == ["on"] and not model.manifest.of_kind("draft")


def _facts(model: StoredModel) -> dict[str, Any]:
    config = model.config
    details = {
        "parent_model": "",
        "format": config.text("model_format") or "gguf",
        "family": config.text("model_family"),
        "families": config.values.get("model_families"),
        "parameter_size": config.text("model_type"),
        "quantization_level": config.text("file_type"),
    }
    return {
        "name": str(model.name),
        "model": str(model.name),
        "modified_at": model.modified.isoformat(),
        "size": model.size,
        "digest": model.digest,
        "details": details,
        "draft": draft_text(model) if model.manifest.of_kind("draft") else None,
        "store": str(model.root),
        "read_only": not model.own,
    }


def _say_where(stores: Stores, models: list[StoredModel]) -> None:
    for store in stores.others:
        count = sum(1 for model in models if model.root == store.root)
        if count:
            note(f"{count} of them in Ollama's store {store.root}, read in place")
    for problem in stores.problems:
        note(f"note: {problem}")
