# SPDX-License-Identifier: MIT
"""The state of a run on disk: written completely or not at all, and resumed only by the run it belongs to."""

from __future__ import annotations

import json
import pickle
import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch

from eaglecpp.errors import MismatchError, TrainError
from eaglecpp.files import replaced

_FORMAT = 2


def save_state(path: Path, state: Mapping[str, Any]) -> None:
    """Writes to a temporary name, flushes to the disk, renames: a crash leaves the previous state."""
    with replaced(path) as temporary, temporary.open("wb") as file:
        torch.save({"format": _FORMAT, **state}, file)


def load_state(path: Path) -> dict[str, Any]:
    """What `save_state` wrote, on the CPU. Raises TrainError for a file that is none."""
    try:
        state: dict[str, Any] = torch.load(path, map_location="cpu", weights_only=True)
    except FileNotFoundError:
        raise TrainError(f"{path}: there is no training to resume; leave out --resume to start one") from None
    except (OSError, RuntimeError, EOFError, zipfile.BadZipFile, pickle.UnpicklingError) as error:
        raise TrainError(f"{path}: expected the state of a training, cannot read it: {error}") from error
    if not isinstance(state, dict) or state.get("format") != _FORMAT:
        raise TrainError(
            f"{path}: expected the state of a training in format {_FORMAT}, found another; begin anew in "
            "another folder, or delete this one"
        )
    return state


def check_same_run(path: Path, stored: Mapping[str, Any], now: Mapping[str, Any]) -> None:
    """Raises MismatchError, with all differences, when a state was made by another run than this one.

    What the stored run does not name came with a later version, and the run was without it.
    """
    before, after = dict(_single(stored)), dict(_single(now))
    wrong = [
        f"{key}: the stored run has {value!r}, this one {after.get(key)!r}"
        for key, value in sorted(before.items())
        if value != after.get(key)
    ]
    if wrong:
        raise MismatchError(
            f"{path}: --resume continues the same run only, and {'; '.join(wrong)}. Give the command of the "
            "first run (steps, epochs and minutes may differ), or train into another directory"
        )


def _single(facts: Mapping[str, Any], of: str = "") -> Iterator[tuple[str, Any]]:
    """Each fact by its own name, also those of the drafter (JSON) and its block."""
    for key, value in facts.items():
        inner = json.loads(value) if key == "drafter" else value
        if isinstance(inner, dict):
            yield from _single(inner, f"{of}{key}.")
        else:
            yield of + key, inner
