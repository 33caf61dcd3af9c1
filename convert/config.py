# SPDX-License-Identifier: MIT
"""Typed reads from config.json objects. A wrong or missing value is a ConfigError that names the key.

`null` counts as absent everywhere, because exporters write it for unused keys.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

from .errors import CheckpointError, ConfigError
from .files import read_json

_MAX_BYTES = 4 << 20
"""Maximum bytes of a config. Known configs have up to 0.5 MB, if they list quantised modules. A parsed config
may take 25 times the size of its file.
"""
D = TypeVar("D")
_MISSING: Any = object()
WHERE = "config.json: "
"""Prefix of error messages about the drafter's own config. Readers of other JSON objects pass another
prefix.
"""


def load_json(path: Path, limit: int = _MAX_BYTES) -> dict[str, Any]:
    """Reads a JSON object. limit: maximum bytes of the file.

    Raises CheckpointError if the file is missing, unreadable, too large or not an object.
    """
    try:
        data = read_json(path, limit)
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or error
        raise CheckpointError(f"{path}: cannot be read as JSON: {why}") from error
    if not isinstance(data, dict):
        raise CheckpointError(f"{path}: expected a JSON object, found {type(data).__name__}")
    return data


_SMALLEST, _LARGEST = 1e-37, 3e38


def wrong(key: str, expected: str, found: Any, where: str = WHERE) -> ConfigError:
    """Returns the error for an invalid value of a config."""
    return ConfigError(f"{where}{key}: expected {expected}, found {shown(found)}")


def nested(config: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    """Returns the JSON object under a key of the config; {} if the key is absent or null."""
    value = config.get(key)
    if value is not None and not isinstance(value, Mapping):
        raise wrong(key, "an object", value)
    return value or {}


def shown(value: Any) -> str:
    """Formats a value for an error message, within one line."""
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."


def number(config: Mapping[str, Any], key: str, default: D = _MISSING, where: str = WHERE) -> float | D:
    """Returns a number >= 0 from the config, or the default if the key is absent or null. The number must fit
    in a 32-bit float.
    """
    value = config.get(key)
    if value is None:
        if default is _MISSING:
            raise ConfigError(f"{where}{key}: expected a number, found no such key; add the key")
        return default
    if isinstance(value, int | float) and not isinstance(value, bool):
        try:
            if value == 0 or _SMALLEST < value < _LARGEST:
                return float(value)
        except OverflowError:  # the integer is too large for a float
            pass
    raise wrong(key, "a number of 0 or more", value, where)


def positive(config: Mapping[str, Any], key: str, default: float = _MISSING, where: str = WHERE) -> float:
    """Returns a number > 0 from the config, as `number` does."""
    value = number(config, key, default, where)
    if value == 0:
        raise wrong(key, "a positive number", value, where)
    return value


def integer(config: Mapping[str, Any], key: str, default: D = _MISSING, where: str = WHERE) -> int | D:
    """Returns a positive integer below 2^31 from the config; the default if the key is absent or null."""
    value = config.get(key)
    if value is None:
        if default is _MISSING:
            raise ConfigError(f"{where}{key}: expected a positive integer, found no such key; add the key")
        return default
    if isinstance(value, bool) or not isinstance(value, int) or not 0 < value < 2**31:
        raise wrong(key, "a positive integer", value, where)
    return value


def flag(config: Mapping[str, Any], key: str, default: bool = False, where: str = WHERE) -> bool:
    """Returns a bool from the config; the default if the key is absent or null."""
    value = config.get(key)
    if value is None:
        return default
    if not isinstance(value, bool):
        raise wrong(key, "true or false", value, where)
    return value


def id_list(config: Mapping[str, Any], key: str, where: str = WHERE) -> tuple[int, ...] | None:
    """Returns a list of integers from the config; None if the key is absent or null, or if the list is
    empty.
    """
    value = config.get(key)
    if value is None or value == []:
        return None
    if not isinstance(value, list) or any(isinstance(k, bool) or not isinstance(k, int) for k in value):
        raise wrong(key, "a list of integers", value, where)
    return tuple(value)
