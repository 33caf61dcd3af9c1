# SPDX-License-Identifier: MIT
"""Measurements of an engine, saved between processes: costs of rounds on this machine, acceptance of the
drafter's tokens, exact batch sizes, and speed-ups of the last answers.

There is one small JSON file per key in `data_dir()/planner`. An engine reads its file when it opens, and
writes it every minute and when it closes. A file that is damaged, old, or from another machine or model is
ignored and rewritten. A read-only folder is not an error. A loaded value counts as one measurement. It never
changes which tokens are generated.

Without such a file, opening the engine measures (see `loading`).
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import platform
import time
from collections.abc import Collection
from pathlib import Path
from typing import Annotated

import msgspec

from eaglecpp._extension import core, versions
from eaglecpp.data_dir import data_dir
from eaglecpp.engine.gains import Answered, Gains
from eaglecpp.files import fingerprint, replace_bytes
from eaglecpp.opening.plan import OpeningPlan
from eaglecpp.options import TEXT, DraftOptions, ModelOptions, describe

_log = logging.getLogger("eaglecpp.planner")
_Rows = Annotated[int, msgspec.Meta(ge=1, le=1 << 20)]  # the native engine walks up to the largest number
_Exact = tuple[list[tuple[_Rows, bool]], list[Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]]]
_SAVE_EVERY = 60.0  # minimum seconds between two writes of the file
# Seconds after which a measurement expires. Drivers may change although the key stays the same.
_KEPT_S = 30 * 86400.0
# Options that are not in the key. They do not change the cost of a round, or their effect is in another part
# of the key.
_FREE = {
    "n_ctx", "n_batch", "n_sequences", "n_threads", "use_mmap", "use_mlock", "planner_cache", "n_draft_max",
    "exact", "text_drafts", "mmproj", "learn", "prompt_cache", "prompt_cache_bytes",
}  # fmt: skip


class _Learned(msgspec.Struct):
    """Content of a planner file. measured_at: Unix time of the first measurement. exact: measured exactness
    as (batch size, is exact), and hashes for its continuation, by a text of the options that limit batches.
    """

    key: str
    measured_at: float
    costs: dict[str, list[float]]
    acceptance: dict[str, list[float]]
    exact: dict[str, _Exact]
    answers: list[Answered]
    kernels: float | None


class PlannerCache:
    """The planner file of a loaded engine. The key of the file: llama.cpp, machine, model files and every
    option that changes the cost of a round.
    """

    def __init__(self, native: core.Engine, plan: OpeningPlan, drafting: DraftOptions, gains: Gains) -> None:
        model = plan.model_options()
        drafter = TEXT if plan.draft is None else fingerprint(plan.draft)
        files = f"target={fingerprint(plan.target)} draft={drafter}"
        threads = f"n_threads={native.device_info()['n_threads']}"
        build = core.__file__ and fingerprint(Path(core.__file__))  # hash of the extension and its kernels
        self._key = f"{files} {machine()} build={build} {threads} {options_key(model, drafting)}"
        # Options that limit the batch size. A batch contains the drafts of all conversations and parts of
        # prompts. The context length matters only below 1024 tokens, because it then limits the tokens before
        # a batch.
        self._batches = (
            f"n_draft_max={native.n_draft_max} n_sequences={model.n_sequences} "
            f"n_shared_rows={native.n_shared_rows} n_ctx={min(native.n_ctx, 1024)}"
        )
        self._exact: dict[str, _Exact] = {}
        self._measured_at = time.time()
        digest = hashlib.sha256(self._key.encode("utf-8")).hexdigest()[:24]
        self._path = data_dir() / "planner" / f"{digest}.learned"
        self._gains = gains
        self._saved = b""
        self._saved_at = time.monotonic()

    def load(self, native: core.Engine) -> bool:
        """Loads saved measurements into the engine, which must be unused. Returns False for a missing, old or
        damaged file.
        """
        with contextlib.suppress(OSError, msgspec.MsgspecError):
            saved = msgspec.json.decode(self._path.read_bytes(), type=_Learned)
            is_own = saved.key == self._key and abs(time.time() - saved.measured_at) < _KEPT_S
            # If an engine was closed before it decoded anything, its file has no costs.
            if is_own and "verify" in saved.costs and native.load_planner(saved.costs, saved.acceptance):
                self._gains.replace(saved.answers, saved.kernels)
                self._exact, self._measured_at = saved.exact, saved.measured_at
                native.set_exact_rows(*self._exact.get(self._batches, ([], [])), is_complete=False)
                self._saved = msgspec.json.encode(saved)
                return True
        if self._path.is_file():
            _log.info("%s is old, damaged or from another version; measuring again", self._path)
        return False

    def save(self, native: core.Engine, *, is_last: bool = False) -> None:
        """Writes changed measurements to the planner file, at most once a minute. is_last: write now, because
        the engine closes. Errors are logged.
        """
        if not is_last and time.monotonic() - self._saved_at < _SAVE_EVERY:
            return
        self._saved_at = time.monotonic()
        state = native.exact_state
        exact = self._exact | {self._batches: (state["points"], state["alone"])}
        gains, (costs, acceptance) = self._gains, native.planner_state()
        learned = msgspec.json.encode(
            _Learned(self._key, self._measured_at, costs, acceptance, exact, gains.answers, gains.kernels)
        )
        if learned == self._saved:
            return
        try:
            replace_bytes(self._path, learned)
        except OSError as error:
            _log.info("cannot save the planner's measurements: %s", error)
        self._saved = learned


def options_key(model: ModelOptions, drafting: DraftOptions, free: Collection[str] = ()) -> str:
    """Returns a text with every option that changes the cost of a round, except the options in `free`."""
    return " ".join(
        f"{option.name}={getattr(owner, option.name)}"
        for owner in (model, drafting)
        for option in describe(owner)
        if option.name not in _FREE and option.name not in free
    )


def machine() -> str:
    """Describes llama.cpp, the processor and the devices."""
    info, version = core.system_info(), versions()
    devices = [f"{device['name']}:{device['description']}" for device in info["devices"]]
    build = f"llama={version['llama']} {version['ggml_commit']}"
    return f"{build} {platform.machine()} cores={info['n_cores']} {devices}"
