# SPDX-License-Identifier: MIT
"""What was measured of an engine, kept between processes: costs of this machine with these files, acceptance
of this drafter, which batches are exact, what the last answers gave.

One small JSON file for each key below `data_dir()/planner`, read when an engine opens and written when it
closes, and every minute in between. A file that is damaged, old or from another machine or model is ignored
and rewritten; a folder that cannot be written is not an error. What is read counts as one measurement and
never changes which tokens come out.

Where nothing is on disk, opening the engine measures it (`exactness`, `rehearsal`).
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import platform
import time
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from eaglecpp._extension import core, versions
from eaglecpp.data_dir import data_dir
from eaglecpp.engine.gains import Answered, Gains
from eaglecpp.files import fingerprint, replace_bytes
from eaglecpp.options import TEXT, DraftOptions, ModelOptions, describe

if TYPE_CHECKING:
    from collections.abc import Collection

    from eaglecpp.opening.plan import OpeningPlan

_log = logging.getLogger("eaglecpp.planner")
_SAVE_EVERY = 60.0  # seconds
_KEPT_S = 30 * 86400.0  # measurements are believed for so long: drivers and machines change behind their keys
# Options that do not change what a round costs, or are in the key by what they lead to.
_FREE = {
    "n_ctx", "n_batch", "n_sequences", "n_threads", "use_mmap", "use_mlock", "planner_cache", "n_draft_max",
    "exact", "text_drafts", "mmproj", "learn", "prompt_cache", "prompt_cache_bytes",
}  # fmt: skip


class _Learned(msgspec.Struct):
    """exact: by the sizes of the batches in which they were looked for."""

    key: str
    costs: dict[str, list[float]]
    acceptance: dict[str, list[float]]
    exact: dict[str, list[tuple[int, bool]]]
    answers: list[Answered]
    kernels: float | None


class PlannerCache:
    """The file of a loaded engine. Its key: llama.cpp, machine, files and every option that changes what a
    round costs.
    """

    def __init__(self, native: core.Engine, plan: OpeningPlan, drafting: DraftOptions) -> None:
        model = plan.model_options()
        drafter = TEXT if plan.draft is None else fingerprint(plan.draft)
        files = f"target={fingerprint(plan.target)} draft={drafter}"
        threads = f"n_threads={native.device_info()['n_threads']}"
        build = core.__file__ and fingerprint(Path(core.__file__))  # which has our kernels
        self._key = f"{files} {machine()} build={build} {threads} {options_key(model, drafting)}"
        # batches of the drafts of all conversations and of prompts beside them; a context as short as that
        # has room for fewer rows before them
        self._batches = (
            f"n_draft_max={native.n_draft_max} n_sequences={model.n_sequences} "
            f"n_shared_rows={native.n_shared_rows} n_ctx={min(native.n_ctx, 1024)}"
        )
        self._exact: dict[str, list[tuple[int, bool]]] = {}
        digest = hashlib.sha256(self._key.encode("utf-8")).hexdigest()[:24]
        self._path = data_dir() / "planner" / f"{digest}.learned"
        self.gains = Gains()
        self._saved = b""
        self._saved_at = time.monotonic()
        self._is_writable = True

    def load(self, native: core.Engine) -> tuple[bool, bool]:
        """Hands what is known to the engine, which must not have been used yet. Whether costs were on disk,
        and which batches are exact.
        """
        found = self._read(native)
        if found is None:
            return False, False
        native.load_acceptance(found.acceptance)
        self.gains = Gains(found.answers, found.kernels)
        self._exact = found.exact
        has_exact = self._batches in self._exact
        if has_exact:
            native.set_exact_rows(self._exact[self._batches])
        self._saved = msgspec.json.encode(found)
        return True, has_exact

    def save(self, native: core.Engine, *, is_last: bool = False) -> None:
        """Writes what has changed, at most once a minute until the last time; an error is logged, once."""
        if not is_last and time.monotonic() - self._saved_at < _SAVE_EVERY:
            return
        self._saved_at = time.monotonic()
        exact = self._exact | {self._batches: native.exact_points}
        gains, (costs, acceptance) = self.gains, native.planner_state()
        learned = msgspec.json.encode(
            _Learned(self._key, costs, acceptance, exact, gains.answers, gains.kernels)
        )
        if not self._is_writable or learned == self._saved:
            return
        try:
            replace_bytes(self._path, learned)
            self._drop_old()
        except OSError as error:
            self._is_writable = False
            _log.info("cannot save what the planner learned: %s", error)
        self._saved = learned

    def _read(self, native: core.Engine) -> _Learned | None:
        """What was written there, its costs loaded; None where there is none, or it is old or damaged."""
        with contextlib.suppress(OSError, msgspec.MsgspecError):
            if time.time() - self._path.stat().st_mtime > _KEPT_S:
                return None
            found = msgspec.json.decode(self._path.read_bytes(), type=_Learned)
            # what an engine leaves that was closed before it decoded is no price
            if found.key == self._key and "verify" in found.costs and native.load_costs(found.costs):
                return found
        if self._path.is_file():
            _log.info("%s is damaged or from another version; measuring again", self._path)
        return None

    def _drop_old(self) -> None:
        oldest = time.time() - _KEPT_S
        for path in self._path.parent.iterdir():
            with contextlib.suppress(OSError):  # another process may have been here first
                if path.stat().st_mtime < oldest:
                    path.unlink()


def options_key(model: ModelOptions, drafting: DraftOptions, free: Collection[str] = ()) -> str:
    """Every option that changes what a round costs, less those in `free`."""
    return " ".join(
        f"{option.name}={getattr(owner, option.name)}"
        for owner in (model, drafting)
        for option in describe(owner)
        if option.name not in _FREE and option.name not in free
    )


def machine() -> str:
    """llama.cpp, the processor and the devices."""
    info, found = core.system_info(), versions()
    devices = [f"{device['name']}:{device['description']}" for device in info["devices"]]
    build = f"llama={found['llama']} {found['ggml_commit']}"
    return f"{build} {platform.machine()} cores={info['n_cores']} {devices}"
