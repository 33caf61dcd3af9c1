# SPDX-License-Identifier: MIT
"""Describes the models on this machine: the entries of `/api/tags` and the facts of `/api/show`."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from contextlib import suppress
from datetime import UTC, datetime
from functools import lru_cache
from pathlib import Path
from typing import Any

from eaglecpp import references
from eaglecpp.convert import errors as of_convert
from eaglecpp.errors import EagleError
from eaglecpp.opening.find import template_in_use
from eaglecpp.options import Strategy
from eaglecpp.references import ModelName, ModelNameError
from eaglecpp.server.config import ServerConfig, means_path
from eaglecpp.server.errors import ApiError
from eaglecpp.store import Stores
from eaglecpp.store.content import FileState, file_state
from eaglecpp.store.describe import capabilities, everything, head_facts, list_entry
from eaglecpp.store.facts import human_number, read_facts
from eaglecpp.store.model import StoredModel
from eaglecpp.store.packaged import file_model
from eaglecpp.store.store import read_again


def entries(files: Mapping[str, Path], config: ServerConfig) -> list[dict[str, Any]]:
    """Returns the /api/tags entry of every model. files: GGUF files by the name under which they are served,
    in addition to stored models
    """
    stored = [complete_entry(model) for model in Stores.open().models() if not model.is_drafter]
    listed = [*(complete_entry(served(path), name) | {"file": True} for name, path in files.items()), *stored]
    return [_as_served(entry, entry["name"], config) for entry in listed]


def entry(files: Mapping[str, Path], config: ServerConfig, name: str) -> dict[str, Any]:
    """Returns one model's entry of /api/tags. Raises ModelNotFoundError."""
    listed = _read(files, name, lambda model: complete_entry(model, name if name in files else ""))
    return _as_served(listed, listed["name"], config)


def facts(files: Mapping[str, Path], config: ServerConfig, name: str) -> dict[str, Any]:
    """Returns the facts of /api/show about a model. Raises ModelNotFoundError."""
    listed = name if means_path(name) or name in files else str(read_name(name))
    return _as_served(_read(files, name, _facts), listed, config)


def _as_served(entry: dict[str, Any], name: str, config: ServerConfig) -> dict[str, Any]:
    """Adds the projector and the drafter of the command line or a preset to a model's entry."""
    own: dict[str, Any] = {}
    if config.engine_of(name).get("mmproj"):
        own["capabilities"] = list(dict.fromkeys([*entry["capabilities"], "vision"]))
    is_asked = name in config.presets or name == config.model
    if "draft" in entry and is_asked and (draft := config.draft_of(name)) is not None:
        own["draft"] = None if Strategy.is_off(draft) else Path(draft).stem
    return entry | own


def _read(
    files: Mapping[str, Path], name: str, use: Callable[[StoredModel], dict[str, Any]]
) -> dict[str, Any]:
    def model() -> StoredModel:
        return served(files[name]) if name in files else Stores.open().get(read_name(name))

    result = read_again(model, use)
    assert result is not None
    return result


def _facts(model: StoredModel) -> dict[str, Any]:
    draft = model.draft_file()
    files = (*(() if model.is_drafter else model.target_files()), *(() if draft is None else (draft,)))
    facts = _stored_facts(model, tuple(map(file_state, files)))
    return {**facts, "details": complete_entry(model)["details"], "modified_at": stamp(model.modified)}


@lru_cache(maxsize=64)
def _stored_facts(model: StoredModel, states: tuple[FileState, ...]) -> dict[str, Any]:
    """Returns the facts about a stored model for /api/show, without vocabularies. The result is cached,
    because reading the files takes long and clients ask often. Models with equal manifests have equal facts,
    because a manifest names all contents of a model.
    """
    heads = head_facts(model)
    facts = everything(model, heads, template_in_use(model, heads[0]))
    if not facts["template"]:
        facts["template"] = str(facts["model_info"].get("tokenizer.chat_template") or "")
    return facts


def read_name(text: str) -> ModelName:
    """Parses a model name from a request. Raises ApiError."""
    if means_path(text):
        raise ApiError(400, f"invalid model name '{text}': expected a name, not a path")
    try:
        return references.read_name(text)
    except ModelNameError as error:
        raise ApiError(400, f"invalid model name: {error}") from None


def served(path: Path) -> StoredModel:
    """Returns a `StoredModel` for a file outside any store. The file's content is not read, because clients
    list models often.
    """
    state = hashlib.sha256(f"{path}:{path.stat().st_mtime_ns}".encode()).hexdigest()
    config = _config(path, file_state(path))
    return file_model(ModelName("file"), {f"sha256:{state}": ("model", path)}, config)


def complete_entry(model: StoredModel, name: str = "") -> dict[str, Any]:
    """Returns a model's entry of /api/tags. Fields that clients read are never null. name: the name under
    which a file outside any store is served
    """
    entry = list_entry(model)
    details = {key: value or "" for key, value in entry["details"].items()}
    family = details["family"]
    details["families"] = entry["details"]["families"] or ([family] if family else [])
    names = {"name": name, "model": name} if name else {}
    known: dict[str, Any] = {"parameter_size": "", "capabilities": [], "context_length": 0}
    # a damaged model is listed without these facts
    with suppress(EagleError, of_convert.ConvertError, OSError):
        known = _known(model, tuple(map(file_state, model.target_files())))
    details["parameter_size"] = details["parameter_size"] or known["parameter_size"]
    own = {key: known[key] for key in ("capabilities", "context_length")}
    return {**entry, **names, "modified_at": stamp(model.modified), "details": details, **own}


@lru_cache(maxsize=1024)
def _known(model: StoredModel, states: tuple[FileState, ...]) -> dict[str, Any]:
    """Returns the facts for /api/tags that are read from the header of the model's file."""
    facts = read_facts(model.target_files())
    return {
        "parameter_size": human_number(facts.n_parameters),
        "capabilities": capabilities(model, facts),
        "context_length": facts.context_length or 0,
    }


@lru_cache(maxsize=64)
def _config(path: Path, state: FileState) -> dict[str, Any]:
    """Returns a GGUF's header in the form of a stored model's config. The result is cached, because clients
    list models often.
    """
    return read_facts([path]).config()


def stamp(when: datetime) -> str:
    """Formats a time as Ollama does."""
    return when.astimezone(UTC).isoformat().replace("+00:00", "Z")
