# SPDX-License-Identifier: MIT
"""Samples kept on disk, for targets whose capture costs more than reading; and the choice between the two.

A cache folder belongs to one target file and one way of reading it: its header names the file's hash, the
layers, the labels and the type of the KV cache; a run with others is refused. Captures are found by the hash
of their tokens, so other data, another split or another loss mask reuse what is there. A run first says how
much space it will take, then adds what is missing, and goes on where a killed one stopped.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from filelock import FileLock

from eaglecpp.errors import DataError
from eaglecpp.files import replace_bytes
from eaglecpp.human import human_bytes
from eaglecpp.options import ModelOptions
from eaglecpp.train.capture.cache_file import CacheFile, FeatureType, Layout
from eaglecpp.train.capture.crew import samples_of
from eaglecpp.train.capture.features import N_TOP, Capture, TargetSource
from eaglecpp.train.capture.files import differences
from eaglecpp.train.capture.identity import TargetIdentity, identify
from eaglecpp.train.data.texts import token_hash
from eaglecpp.train.samples import Sample, TrainText

__all__ = ["CacheOptions", "CachePlan", "CachedSource", "estimate_bytes", "open_source"]

_FORMAT = "eaglecpp features 1"
_SPARE_BYTES = 256 << 20
_MAX_ERROR = 0.1
"""Relative error (RMS) of a cached layer against a recapture. int8 stays below 0.03 on real targets; another
target, layer or row gives about 1.
"""


@dataclass(frozen=True)
class CacheOptions:
    """Where and how to keep captures. max_bytes: most that they may take, 0 = what the disk has."""

    folder: Path
    feature_type: FeatureType = "bf16"
    max_bytes: int = 0


@dataclass(frozen=True)
class CachePlan:
    """What filling a cache will take. n_bytes: to be written; n_free: on the disk of the folder."""

    folder: Path
    n_cached: int
    n_missing: int
    n_bytes: int
    n_free: int

    def __str__(self) -> str:
        return (
            f"cache {self.folder}: {self.n_cached} conversations are cached, {self.n_missing} still to "
            f"capture, {human_bytes(self.n_bytes)} ({human_bytes(self.n_free)} free)"
        )


class CachedSource:
    """Samples read from a filled cache; needs no target. A `FeatureSource`. Made by `open_source`."""

    def __init__(self, file: CacheFile, conversations: Sequence[TrainText], facts: dict[str, Any]) -> None:
        self.conversations = conversations
        self.layers: tuple[int, ...] = tuple(facts["layers"])
        self.n_top, self.n_embd = file.layout.n_top, file.layout.n_embd
        self.n_vocab, self.n_layer = file.layout.n_vocab, int(facts["n_layer"])
        self._file = file
        self.lengths = [len(one.tokens) for one in conversations]
        self._hashes = [token_hash(one.tokens) for one in conversations]

    def sample(self, index: int) -> Sample:
        """Reads one sample. Raises DataError when the file was damaged."""
        one = self.conversations[index]
        return Sample(one.tokens, one.turns, *self._file.read(self._hashes[index]))

    def close(self) -> None:
        """Lets go of the file."""
        self._file.close()


def estimate_bytes(conversations: Sequence[TrainText], layout: Layout) -> int:
    """Bytes that these conversations take in a cache, each token list counted once."""
    sizes = {token_hash(one.tokens): layout.n_bytes(len(one.tokens)) for one in conversations}
    return sum(sizes.values())


def open_source(
    target: str | os.PathLike[str],
    conversations: Sequence[TrainText],
    cache: CacheOptions | None = None,
    *,
    layers: Sequence[int] | None = None,
    n_top: int = N_TOP,
    model: ModelOptions | None = None,
    on_plan: Callable[[CachePlan], None] = lambda plan: None,
    on_progress: Callable[[int, int], None] = lambda n_done, n_tokens: None,
) -> TargetSource | CachedSource:
    """Samples of these conversations: from the running target, or with `cache` from the disk, after what is
    missing there has been captured (the target is then freed).

    on_plan:     called once before anything is captured
    on_progress: (tokens captured, tokens to capture), after each conversation
    Several processes may open the same folder; one captures, the others wait for it.
    Raises DataError for a cache of another target or with other settings, for too little disk, and when the
    cached sample that is captured again for comparison differs; and what opening the target raises.
    """
    source = TargetSource(target, conversations, layers, n_top, model)
    if cache is None:
        return source
    try:
        return _Filling(source, cache).filled(on_plan, on_progress)
    finally:
        source.close()


class _Filling:
    """One cache folder being checked and filled from a running target."""

    def __init__(self, source: TargetSource, options: CacheOptions) -> None:
        self._source, self._options = source, options
        self._layout = Layout(
            len(source.layers), source.n_embd, source.n_vocab, source.n_top, options.feature_type
        )
        self._facts = _facts(source, identify(source.target_path), self._layout)

    def filled(
        self, on_plan: Callable[[CachePlan], None], on_progress: Callable[[int, int], None]
    ) -> CachedSource:
        folder = self._options.folder
        folder.mkdir(parents=True, exist_ok=True)
        with FileLock(folder / "lock"):
            self._check_header()
            file = CacheFile(folder, self._layout)
            missing, cached = self._sorted_out(file)
            plan = CachePlan(
                folder,
                len(cached),
                len(missing),
                estimate_bytes([self._source.conversations[index] for index in missing], self._layout),
                shutil.disk_usage(folder).free,
            )
            on_plan(plan)
            self._check_space(plan)
            if cached:
                self._verify(file, self._source.conversations[cached[0]])
            self._capture(file, missing, on_progress)
        return CachedSource(file, self._source.conversations, self._facts)

    def _sorted_out(self, file: CacheFile) -> tuple[list[int], list[int]]:
        """(missing, cached) indices of conversations, each token list once."""
        unique: dict[bytes, int] = {}
        for index, one in enumerate(self._source.conversations):
            unique.setdefault(token_hash(one.tokens), index)
        missing = [index for digest, index in unique.items() if digest not in file]
        return missing, [index for digest, index in unique.items() if digest in file]

    def _check_header(self) -> None:
        """Writes the header of a new folder; refuses a folder of something else."""
        folder = self._options.folder
        path = folder / "header.json"
        if not path.exists():
            others = [name.name for name in folder.iterdir() if name.name[0] != "." and name.name != "lock"]
            if others:
                raise DataError(
                    f"{folder}: expected a feature cache or an empty folder, found {sorted(others)[0]!r}"
                )
            replace_bytes(path, json.dumps(self._facts, indent=1).encode())
            return
        try:
            found = json.loads(path.read_bytes())
        except ValueError:
            found = None
        if not isinstance(found, dict):
            raise DataError(f"{path}: expected the header of a feature cache, found no JSON object")
        differing = differences(self._facts, found)
        if differing:
            raise DataError(
                f"{folder}: this cache was made with another target or other settings "
                f"({differing}); name another folder, or delete this one"
            )

    def _check_space(self, plan: CachePlan) -> None:
        limit = self._options.max_bytes
        n_all = estimate_bytes(self._source.conversations, self._layout)
        if limit and n_all > limit:
            raise DataError(
                f"{plan.folder}: these conversations need {human_bytes(n_all)}, more than the limit of "
                f"{human_bytes(limit)}; use fewer, int8 features, or no cache"
            )
        if plan.n_bytes + _SPARE_BYTES > plan.n_free and plan.n_missing:
            raise DataError(
                f"{plan.folder}: expected room for {human_bytes(plan.n_bytes)} of features, found "
                f"{human_bytes(plan.n_free)} free; free some space, use int8 features, or no cache"
            )

    def _verify(self, file: CacheFile, one: TrainText) -> None:
        """Captures one cached conversation again. Raises DataError when it is not the same."""
        cached, fresh = file.read(token_hash(one.tokens)), self._source.capture(one.tokens)
        problem = _difference(cached, fresh)
        if problem:
            raise DataError(
                f"{self._options.folder}: a cached conversation of {len(one.tokens)} tokens differs from "
                f"what the target computes now: {problem}; delete the folder and capture again"
            )

    def _capture(
        self, file: CacheFile, missing: Sequence[int], on_progress: Callable[[int, int], None]
    ) -> None:
        if not missing:
            return
        n_done, n_tokens = 0, sum(self._source.lengths[index] for index in missing)
        with closing(samples_of(self._source, missing)) as samples, file.appending() as appender:
            for one in samples:
                captured = Capture(one.features, one.label_ids, one.label_logp)
                appender.append(token_hash(one.tokens), captured)
                n_done += len(one.tokens)
                on_progress(n_done, n_tokens)


def _facts(source: TargetSource, identity: TargetIdentity, layout: Layout) -> dict[str, Any]:
    """What must be the same for a capture to be the same."""
    model = source.model
    return {
        "format": _FORMAT,
        **asdict(identity),
        "n_layer": source.n_layer,
        "layers": list(source.layers),
        "n_embd": layout.n_embd,
        "n_vocab": layout.n_vocab,
        "n_top": layout.n_top,
        "feature_type": layout.feature_type,
        "type_k": model.type_k,
        "type_v": model.type_v,
        "rope": [model.rope_freq_base, model.rope_freq_scale],
        "lora": [[Path(path).name, scale] for path, scale in model.lora],
    }


def _difference(cached: Capture, fresh: Capture) -> str:
    """What differs by more than the types explain, "" if nothing does."""
    error = np.linalg.norm(cached.features - fresh.features, axis=(1, 2))
    size = np.linalg.norm(fresh.features, axis=(1, 2))
    worst = float(np.max(error / np.maximum(size, 1e-30)))
    if worst > _MAX_ERROR:
        return f"expected features within {_MAX_ERROR:.0%}, found {worst:.0%} apart"
    agreeing = float(np.mean(cached.label_ids[:, 0] == fresh.label_ids[:, 0]))
    return "" if agreeing > 0.9 else f"expected the same best tokens, found {agreeing:.0%} of them"
