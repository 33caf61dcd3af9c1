# SPDX-License-Identifier: MIT
"""Objects of JSON Lines files and JSON arrays, each with its place, so that an error names file and line."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from eaglecpp.errors import DataError

JSON_SUFFIXES = (".jsonl", ".ndjson", ".json")


class NoTextError(DataError):
    """A file that is not text."""


def read_objects(path: Path) -> Iterator[tuple[str, Any]]:
    """(place, value) of each line of a JSON Lines file, or of each element of a JSON array.

    Raises DataError for a line that is not JSON.
    """
    if path.suffix.lower() == ".json":
        text = decoded(path, path.read_bytes(), str(path))
        if text.lstrip()[:1] == "[":
            for index, value in enumerate(_parsed(text, str(path))):
                yield f"{path}[{index}]", value
            return
    with path.open("rb") as stream:
        for number, line in enumerate(stream, 1):
            if line.strip():
                place = f"{path}:{number}"
                yield place, _parsed(decoded(path, line, place), place)


def decoded(path: Path, data: bytes, place: str) -> str:
    """UTF-8 text of a file or of one of its lines. Raises NoTextError."""
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        found = f"byte 0x{data[error.start]:02x} at offset {error.start}"
        raise NoTextError(f"{place}: expected text in UTF-8, found {found}; convert the file") from None
    if "\0" in text:
        raise NoTextError(f"{place}: expected text, found NUL characters; is {path.name} a binary file?")
    return text


def _parsed(text: str, place: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise DataError(f"{place}: expected JSON, found {short(text.strip())} ({error})") from None


def short(value: Any) -> str:
    """A value for an error message, at most 60 characters."""
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
