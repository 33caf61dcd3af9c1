# SPDX-License-Identifier: MIT
"""Typed reads from config.json objects: a wrong or missing value is one ConfigError that names the key.

`null` counts as absent everywhere, because exporters write it for keys they do not use.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, overload

from .errors import CheckpointError, ConfigError

__all__ = ["flag", "id_list", "integer", "load_json", "number"]

_MAX_JSON_BYTES = 128 << 20  # a tokenizer.json may have 30 MB
_MISSING: Any = object()
WHERE = "config.json: "
"""Start of a message about the draft's own config; a reader of another file or object passes its own."""


def load_json(path: Path) -> dict[str, Any]:
    """A JSON object. Raises CheckpointError when the file is absent, unreadable or not an object."""
    try:
        if path.stat().st_size > _MAX_JSON_BYTES:
            raise ValueError(f"{path.stat().st_size} bytes; at most {_MAX_JSON_BYTES} are read")
        data = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise CheckpointError(f"{path}: cannot be read as JSON: {error}") from error
    if not isinstance(data, dict):
        raise CheckpointError(f"{path}: expected a JSON object, found {type(data).__name__}")
    return data


@overload
def number(config: Mapping[str, Any], key: str, default: float = ..., where: str = ...) -> float: ...
@overload
def number(config: Mapping[str, Any], key: str, default: None, where: str = ...) -> float | None: ...
def number(config: Mapping[str, Any], key: str, default: Any = _MISSING, where: str = WHERE) -> float | None:
    """A finite number as float; the default when absent or null."""
    value = config.get(key)
    if value is None:
        if default is _MISSING:
            raise ConfigError(f"{where}{key}: expected a number, found nothing; add it")
        return default if default is None else float(default)
    if (
        isinstance(value, bool)
        or not isinstance(value, int | float)
        or value != value
        or abs(value) == float("inf")
    ):
        raise ConfigError(f"{where}{key}: expected a number, found {value!r}")
    return float(value)


@overload
def integer(config: Mapping[str, Any], key: str, default: int = ..., where: str = ...) -> int: ...
@overload
def integer(config: Mapping[str, Any], key: str, default: None, where: str = ...) -> int | None: ...
def integer(config: Mapping[str, Any], key: str, default: Any = _MISSING, where: str = WHERE) -> int | None:
    """A positive integer below 2^31; the default when absent or null."""
    value = config.get(key)
    if value is None:
        if default is _MISSING:
            raise ConfigError(f"{where}{key}: expected a positive integer, found nothing; add it")
        return None if default is None else int(default)
    if isinstance(value, bool) or not isinstance(value, int) or not 0 < value < 2**31:
        raise ConfigError(f"{where}{key}: expected a positive integer, found {value!r}")
    return value


def flag(config: Mapping[str, Any], key: str, default: bool = False, where: str = WHERE) -> bool:
    """A bool; the default when absent or null."""
    value = config.get(key)
    if value is None:
        return default
    if not isinstance(value, bool):
        raise ConfigError(f"{where}{key}: expected true or false, found {value!r}")
    return value


def id_list(config: Mapping[str, Any], key: str, where: str = WHERE) -> tuple[int, ...] | None:
    """A list of integers, or None when absent, null or empty."""
    value = config.get(key)
    if value is None or value == []:
        return None
    if not isinstance(value, list) or any(isinstance(k, bool) or not isinstance(k, int) for k in value):
        raise ConfigError(f"{where}{key}: expected a list of integers, found {value!r}")
    return tuple(value)
