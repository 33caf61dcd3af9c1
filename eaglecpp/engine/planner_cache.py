# SPDX-License-Identifier: MIT
"""What the planner has learned, kept between processes: costs of this machine with these files, acceptance of
this drafter.

Small JSON files below `data_dir()/planner`, read when an engine opens and written when it closes, and
every minute in between. A file that is damaged, old or from another machine or model is ignored and
rewritten; a folder that cannot be written is not an error. What is read counts as one measurement and never
changes which tokens come out.

Where no costs are on disk, opening the engine measures them (`exactness`, `rehearsal`).
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import os
import platform
import time
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from eaglecpp._extension import core, versions
from eaglecpp.data_dir import data_dir
from eaglecpp.engine.gains import KEPT_DAYS, Gains, read_record
from eaglecpp.files import fingerprint, replace_bytes
from eaglecpp.options import TEXT, DraftOptions, ModelOptions, describe

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

_log = logging.getLogger("eaglecpp.planner")
_SAVE_EVERY = 60.0  # seconds
# Options that do not change what a round costs, or are in the key by what they lead to.
_FREE = {
    "n_ctx",
    "n_batch",
    "n_sequences",
    "n_threads",
    "use_mmap",
    "use_mlock",
    "planner_cache",
    "n_draft_max",
    "exact",
    "text_drafts",
    "mmproj",
    "learn",
    "prompt_cache",
    "prompt_cache_bytes",
}


class _Learned(msgspec.Struct):
    key: str
    state: dict[str, list[float]]


class PlannerCache:
    """The files of one engine."""

    def __init__(self, costs_key: str, acceptance_key: str) -> None:
        self._costs_key, self._acceptance_key = costs_key, acceptance_key
        self._costs = planner_file(costs_key, "costs")
        self._acceptance = planner_file(acceptance_key, "acceptance")
        self.gains = Gains(planner_file(costs_key, "answers"))
        self._saved: object = None
        self._saved_at = time.monotonic()
        self._is_writable = True

    @classmethod
    def of(
        cls,
        native: core.Engine,
        target: Path,
        draft: Path | None,
        model: ModelOptions,
        drafting: DraftOptions,
    ) -> PlannerCache:
        """The cache of a loaded engine. The key of the costs names llama.cpp, machine, files and every option
        that changes what a round costs; that of the acceptance target and drafter. `draft` None: drafts from
        the text alone.
        """
        drafter = TEXT if draft is None else fingerprint(draft)
        files = f"target={fingerprint(target)} draft={drafter}"
        facts = [files, machine(), _threads(native), options_key(model, drafting)]
        return cls(" ".join(facts), files)

    @staticmethod
    def is_wanted(drafting: DraftOptions) -> bool:
        """Not switched off by the option `planner_cache` or by EAGLECPP_PLANNER_CACHE=0."""
        return drafting.planner_cache and os.environ.get("EAGLECPP_PLANNER_CACHE", "1") != "0"

    def load(self, native: core.Engine) -> bool:
        """Hands what is known to the planner. True if costs were on disk."""
        # what an engine leaves that was closed before it decoded is no price
        has_costs = _read(self._costs, self._costs_key, lambda it: "verify" in it and native.load_costs(it))
        _read(self._acceptance, self._acceptance_key, native.load_acceptance)
        self._saved = native.planner_state()
        return has_costs

    def save_now_and_then(self, native: core.Engine) -> None:
        """As `save`, at most once a minute."""
        if time.monotonic() - self._saved_at > _SAVE_EVERY:
            self.save(native)

    def save(self, native: core.Engine) -> None:
        """Writes what has changed; an error is logged, once."""
        self._saved_at = time.monotonic()
        costs, acceptance = state = native.planner_state()
        if not self._is_writable or state == self._saved:
            return
        try:
            replace_bytes(self._costs, msgspec.json.encode(_Learned(self._costs_key, costs)))
            replace_bytes(self._acceptance, msgspec.json.encode(_Learned(self._acceptance_key, acceptance)))
            self.gains.save()
            _drop_old(self._costs.parent)
        except OSError as error:
            self._is_writable = False
            _log.info("cannot save what the planner learned: %s", error)
        self._saved = state


def _read(path: Path, key: str, load: Callable[[dict[str, list[float]]], bool]) -> bool:
    found = read_record(path, _Learned)
    if found is None or (found.key == key and load(found.state)):
        return found is not None
    _log.info("%s is damaged or from another version; measuring again", path)
    return False


def planner_file(key: str, kind: str) -> Path:
    """The file of that kind for what is learned under a key."""
    return data_dir() / "planner" / f"{_digest(key)}.{kind}"


def options_key(model: ModelOptions, drafting: DraftOptions, free: Collection[str] = ()) -> str:
    """Every option that changes what a round costs, less those in `free`."""
    return " ".join(
        f"{option.name}={getattr(owner, option.name)}"
        for owner in (model, drafting)
        for option in describe(owner)
        if option.name not in _FREE and option.name not in free
    )


def target_key(native: core.Engine, target: Path) -> str:
    """The target's file, llama.cpp, machine and threads."""
    return f"target={fingerprint(target)} {machine()} {_threads(native)}"


def _threads(native: core.Engine) -> str:
    return f"n_threads={native.device_info()['n_threads']}"


def machine() -> str:
    """llama.cpp, the processor and the devices."""
    info, found = core.system_info(), versions()
    devices = [f"{device['name']}:{device['description']}" for device in info["devices"]]
    build = f"llama={found['llama']} {found['ggml_commit']}"
    return f"{build} {platform.machine()} cores={info['n_cores']} {devices}"


def _digest(key: str) -> str:
    return hashlib.sha256(key.encode("utf-8")).hexdigest()[:24]


def _drop_old(folder: Path) -> None:
    oldest = time.time() - KEPT_DAYS * 86400
    for path in folder.iterdir():
        with contextlib.suppress(OSError):  # another process may have been here first
            if path.stat().st_mtime < oldest:
                path.unlink()
