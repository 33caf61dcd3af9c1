# SPDX-License-Identifier: MIT
"""Models that the operator lists in one file: `serve --models FILE`.

[coder]
path = "qwen-coder.gguf"    # beside this file; without it, the stored model of that name
draft = "qwen-eagle.gguf"
context = 16384
pinned = true
"""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from eaglecpp.data_dir import expanded
from eaglecpp.errors import EagleError
from eaglecpp.opening.find import find_here
from eaglecpp.server.catalog import means_path
from eaglecpp.server.config import Preset

_File = Annotated[str, Meta(min_length=1)]


class PresetError(EagleError):
    """The file of `--models` does not say what to serve."""


class _Adapter(msgspec.Struct, forbid_unknown_fields=True):
    path: _File
    scale: Annotated[float, Meta(ge=-100, le=100)] = 1.0


class _Table(msgspec.Struct, forbid_unknown_fields=True):
    path: _File | None = None
    draft: _File | None = None
    context: Annotated[int, Meta(ge=-1)] = 0
    pinned: bool = False
    mmproj: _File | None = None
    adapters: list[_Adapter | _File] = []


def read_presets(file: Path) -> dict[str, Preset]:
    """The models that a file lists, by name. Paths are relative to its folder. Raises PresetError with the
    place and what was expected.
    """
    try:
        tables = tomllib.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise PresetError(f"{file}: {error}") from None
    if not tables:
        raise PresetError(f'{file}: expected at least one model, such as [name] and path = "model.gguf"')
    found: dict[str, Preset] = {}
    for name, table in tables.items():
        try:
            if not name.isprintable() or not name.strip():
                raise PresetError("expected a name that can be read")
            listed, preset = _preset(name, msgspec.convert(table, _Table), file.absolute().parent)
            if listed in found:
                raise PresetError("this model is listed twice")
        except (EagleError, OSError, msgspec.ValidationError) as error:
            why = str(error).replace("`", "").replace(" | null", "")
            raise PresetError(f"{file}: [{name}]: {why}") from None
        found[listed] = preset
    return found


def _preset(name: str, table: _Table, folder: Path) -> tuple[str, Preset]:
    """One model, and its name as lists have it. Its files are looked for now: an operator wants to know
    before a client does.
    """
    if table.path is None and means_path(name):
        raise PresetError("expected the name of a stored model; a file is given as path")
    draft = table.draft
    if draft is not None and (folder / expanded(draft)).is_file():
        draft = str(folder / expanded(draft))
    adapters = [_Adapter(one) if isinstance(one, str) else one for one in table.adapters]
    engine: dict[str, Any] = {}
    if table.context:
        engine["n_ctx"] = table.context
    if table.mmproj is not None:
        engine["mmproj"] = str(_file("mmproj", table.mmproj, folder))
    if adapters:
        engine["lora"] = tuple((str(_file("adapters", one.path, folder)), one.scale) for one in adapters)
    path = None if table.path is None else _file("path", table.path, folder)
    found = find_here(name if path is None else path, draft)
    listed = name if path is not None else found.model.reference
    return listed, Preset(path, draft, table.pinned, engine)


def _file(key: str, text: str, folder: Path) -> Path:
    path = folder / expanded(text)
    if not path.is_file():
        raise PresetError(f"{key}: expected a file, found none at {path}")
    return path
