# SPDX-License-Identifier: MIT
"""What the server says about the models on this machine: entries of `/api/tags`, the facts of `/api/show`."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Mapping
from datetime import UTC, datetime
from functools import lru_cache
from pathlib import Path
from typing import Any

from eaglecpp.references import reference
from eaglecpp.references.names import ModelName, ModelNameError
from eaglecpp.references.reference import is_path_text
from eaglecpp.server.errors import ApiError
from eaglecpp.store import Stores
from eaglecpp.store.describe import everything, list_entry, template_in_use
from eaglecpp.store.facts import metadata, read_facts
from eaglecpp.store.files import FileState, file_state
from eaglecpp.store.model import StoredModel

__all__ = ["Library", "read_name", "stamp"]


class Library:
    """files: GGUF files served under a name, besides what the stores hold."""

    def __init__(self, files: Mapping[str, Path]) -> None:
        self.files = dict(files)

    async def entries(self) -> list[dict[str, Any]]:
        """Every model, as /api/tags lists it."""
        return await asyncio.to_thread(self._entries)

    async def entry(self, name: str) -> dict[str, Any]:
        """One model. Raises ModelNotFoundError."""
        return await asyncio.to_thread(self._entry, name)

    async def facts(self, name: str, verbose: bool) -> dict[str, Any]:
        """What /api/show says of a model. Raises ModelNotFoundError."""
        return await asyncio.to_thread(self._facts, name, verbose)

    def _entries(self) -> list[dict[str, Any]]:
        stored = [complete_entry(model) for model in Stores.open().models() if not model.is_drafter]
        return [*(file_entry(name, path) for name, path in self.files.items()), *stored]

    def _entry(self, name: str) -> dict[str, Any]:
        if name in self.files:
            return file_entry(name, self.files[name])
        return complete_entry(stored(name))

    def _facts(self, name: str, verbose: bool) -> dict[str, Any]:
        if name in self.files:
            return file_facts(name, self.files[name], verbose)
        model = stored(name)
        draft = model.draft_file()
        files = (*(() if model.is_drafter else model.target_files()), *(() if draft is None else (draft,)))
        found = _stored_facts(model) if verbose else _short_facts(model, tuple(map(file_state, files)))
        details = complete_entry(model)["details"]
        return {**found, "details": details, "modified_at": stamp(model.modified)}


@lru_cache(maxsize=64)
def _short_facts(model: StoredModel, states: tuple[FileState, ...]) -> dict[str, Any]:
    """Without vocabularies; reading them takes long, and these facts are asked for often. A manifest names
    all contents of a model, so models that are equal have the same facts.
    """
    return _stored_facts(model, verbose=False)


def _stored_facts(model: StoredModel, verbose: bool = True) -> dict[str, Any]:
    facts = None if model.is_drafter else read_facts(model.target_files())
    template = template_in_use(model, facts)
    found = everything(model, template, verbose)
    if not found["template"]:
        found["template"] = str(found["model_info"].get("tokenizer.chat_template") or "")
    return found


def stored(name: str) -> StoredModel:
    """The stored model of that name. Raises ModelNotFoundError."""
    return Stores.open().get(read_name(name))


def means_path(name: str) -> bool:
    """Whether a request's model is meant as a path."""
    return is_path_text(name) or name.startswith((".", "/", "~")) or "\\" in name


def read_name(text: str) -> ModelName:
    """The name that a request gives. Raises ApiError."""
    if means_path(text):
        raise ApiError(400, f"invalid model name '{text}'")
    try:
        return reference.read_name(text)
    except ModelNameError as error:
        raise ApiError(400, f"invalid model name: {error}") from None


def complete_entry(model: StoredModel) -> dict[str, Any]:
    """An entry in which nothing is null that clients read."""
    entry = list_entry(model)
    details = {key: value or "" for key, value in entry["details"].items()}
    family = details["family"]
    details["families"] = entry["details"]["families"] or ([family] if family else [])
    return {**entry, "modified_at": stamp(model.modified), "details": details}


def file_entry(name: str, path: Path) -> dict[str, Any]:
    """The same for a file that is in no store."""
    stat = path.stat()
    config = _config(path, file_state(path))
    details = {
        "parent_model": "",
        "format": "gguf",
        "family": config["model_family"],
        "families": config["model_families"],
        "parameter_size": config["model_type"],
        "quantization_level": config["file_type"],
    }
    return {
        "name": name,
        "model": name,
        "modified_at": stamp(datetime.fromtimestamp(stat.st_mtime, UTC)),
        "size": stat.st_size,
        "digest": hashlib.sha256(f"{path}:{stat.st_mtime_ns}".encode()).hexdigest(),
        "details": details,
    }


@lru_cache(maxsize=64)
def _config(path: Path, state: FileState) -> dict[str, Any]:
    """The head of a file in the words of stores; lists are asked for often."""
    return read_facts([path]).config()


def file_facts(name: str, path: Path, verbose: bool) -> dict[str, Any]:
    """What /api/show says of such a file."""
    entry = file_entry(name, path)
    found = _file_facts(path) if verbose else _short_file_facts(path, file_state(path))
    return {**found, "details": entry["details"], "modified_at": entry["modified_at"]}


@lru_cache(maxsize=64)
def _short_file_facts(path: Path, state: FileState) -> dict[str, Any]:
    return _file_facts(path, verbose=False)


def _file_facts(path: Path, verbose: bool = True) -> dict[str, Any]:
    facts = read_facts([path])
    template = facts.file.text("tokenizer.chat_template", "")
    words = ["completion", *(["tools"] if "tools" in template else [])]
    if "enable_thinking" in template or "<think>" in template:
        words.append("thinking")
    return {
        "license": "",
        "modelfile": f"FROM {path.name}\n",
        "parameters": "",
        "template": template,
        "system": "",
        "messages": [],
        "model_info": metadata(facts.file, arrays=verbose),
        "capabilities": words,
    }


def stamp(when: datetime) -> str:
    """A time as Ollama writes it."""
    return when.astimezone(UTC).isoformat().replace("+00:00", "Z")
