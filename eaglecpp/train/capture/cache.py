# SPDX-License-Identifier: MIT
"""Caches captures on disk, and chooses between this cache and the running target. The cache pays for targets
that need longer to compute a capture than the disk needs to read it.

A cache folder belongs to one target file and one set of capture settings. Its header names the file's hash,
the layers, the labels and the type of the KV cache; a run with other settings is refused. Each capture is a
file, written atomically and named by the hash of its tokens, so a run with other data, another split or
another loss mask reuses it. A run first reports the space that it needs, then captures the missing
conversations, also after a killed run. Hidden states are stored as bf16 (with a relative error of 0.2 %), or
as int8 with an fp16 scale per row and layer (with a relative error of 1 %). Labels are stored as ids and fp16
log-probabilities.
"""

from __future__ import annotations

import json
import os
import shutil
import zipfile
from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any, Literal

import ml_dtypes
import numpy as np
from filelock import FileLock
from numpy.typing import NDArray

from eaglecpp.errors import DataError
from eaglecpp.files import make_folder, replace_bytes, sync
from eaglecpp.human import counted, human_bytes
from eaglecpp.options import ModelOptions
from eaglecpp.train.capture.features import Capture, TargetSource, differences, identify, samples_of
from eaglecpp.train.data.texts import token_hash
from eaglecpp.train.samples import Sample, TrainText

FeatureType = Literal["bf16", "int8"]
_FORMAT = "eaglecpp features 2"
_FILE_BYTES = 2048
"""Overhead of a capture's file."""
_SPARE_BYTES = 256 << 20


class CachedSource:
    """A `FeatureSource` that reads a filled cache and needs no target. `open_source` creates it."""

    def __init__(self, folder: Path, conversations: Sequence[TrainText]) -> None:
        self.conversations = conversations
        self.lengths = [len(one.tokens) for one in conversations]
        self._folder = folder

    def sample(self, index: int) -> Sample:
        """Reads one sample from the cache. Raises DataError if the sample's file is damaged."""
        one = self.conversations[index]
        return Sample(one.tokens, one.turns, *_read(_path(self._folder, one)))

    def close(self) -> None:
        """Does nothing, because the source holds no resources."""


def open_source(
    target: str | os.PathLike[str],
    conversations: Sequence[TrainText],
    folder: Path | None = None,
    feature_type: FeatureType = "bf16",
    *,
    layers: Sequence[int] | None = None,
    model: ModelOptions | None = None,
    on_plan: Callable[[str], None] = lambda text: None,
    on_progress: Callable[[int, int], None] = lambda n_done, n_tokens: None,
) -> TargetSource | CachedSource:
    """Opens the samples of these conversations. Without a `folder`, the running target computes the samples.
    With a `folder`, missing samples are captured first, the target is freed, and all samples are read from
    the disk.

    on_plan:     called once before capturing, with the space needed
    on_progress: called after each conversation with (tokens captured, tokens to capture)

    Several processes may open the same folder. One process captures, and the others wait for it. Raises
    DataError for a cache of another target or other settings, or for too little disk space, and the errors of
    opening the target.
    """
    source = TargetSource(target, conversations, layers, model)
    if folder is None:
        return source
    make_folder(folder)
    with closing(source), FileLock(folder / "lock", mode=0o644):
        _check_header(folder, _facts(source, feature_type))
        unique = {_path(folder, one): index for index, one in reversed([*enumerate(conversations)])}
        cached = [path for path in unique if path.exists()]
        missing = sorted(index for path, index in unique.items() if path not in set(cached))
        n_bytes = sum(_n_bytes(source, feature_type, index) for index in missing)
        n_free = shutil.disk_usage(folder).free
        on_plan(
            f"cache {folder}: {counted(len(cached), 'conversation')} cached, {len(missing)} to capture, "
            f"{human_bytes(n_bytes)} ({human_bytes(n_free)} free)"
        )
        if missing and n_bytes + _SPARE_BYTES > n_free:
            raise DataError(
                f"{folder}: the hidden states need {human_bytes(n_bytes)}, but {human_bytes(n_free)} are "
                "free. Free some space, store them as int8, or use no cache"
            )
        n_done, n_tokens = 0, sum(source.lengths[index] for index in missing)
        with closing(samples_of(source, missing)) as samples:
            for index, one in zip(missing, samples, strict=True):
                _write(_path(folder, conversations[index]), one, _id_type(source), feature_type)
                n_done += len(one.tokens)
                on_progress(n_done, n_tokens)
    return CachedSource(folder, conversations)


def _n_bytes(source: TargetSource, feature_type: FeatureType, index: int) -> int:
    """Returns the size in bytes of the file with a conversation's capture."""
    labels = source.n_top * (np.dtype(_id_type(source)).itemsize + 2)
    features = len(source.layers) * (source.n_embd + 2 if feature_type == "int8" else 2 * source.n_embd)
    return _FILE_BYTES + source.lengths[index] * (labels + features)


def _check_header(folder: Path, facts: dict[str, Any]) -> None:
    """Writes the header of a new folder. Raises DataError for a folder with other content or settings."""
    path = folder / "header.json"
    if not path.exists():
        others = [name.name for name in folder.iterdir() if name.name[0] != "." and name.name != "lock"]
        if others:
            raise DataError(
                f"{folder}: expected a feature cache or an empty folder, found {sorted(others)[0]!r}"
            )
        replace_bytes(path, json.dumps(facts, indent=1).encode())
        return
    try:
        header = json.loads(path.read_bytes())
    except ValueError:
        header = None
    if not isinstance(header, dict):
        raise DataError(f"{path}: expected the header of a feature cache, found no JSON object")
    if differing := differences(facts, header):
        raise DataError(
            f"{folder}: this cache was made with another target or other settings "
            f"({differing}); name another folder, or delete this one"
        )


def _write(path: Path, one: Sample, id_type: type[np.integer[Any]], feature_type: FeatureType) -> None:
    """Writes a capture atomically."""
    arrays: dict[str, NDArray[Any]] = {"ids": one.label_ids.astype(id_type)}
    arrays["logp"] = one.label_logp.astype(np.float16)
    if feature_type == "int8":
        arrays["scales"], arrays["features"] = _to_int8(one.features)
    else:
        arrays["features"] = one.features.astype(ml_dtypes.bfloat16).view(np.uint16)
    # A killed run may have left this file. It is safe to overwrite, because the folder is locked.
    temporary = path.with_name("part.tmp")
    temporary.touch(0o644)  # gives the file permissions that do not depend on the umask
    with temporary.open("wb") as file:
        np.savez(file, allow_pickle=False, **arrays)
    sync(temporary)
    temporary.replace(path)


def _path(folder: Path, one: TrainText) -> Path:
    return folder / f"{token_hash(one.tokens).hex()}.npz"


def _id_type(source: TargetSource) -> type[np.integer[Any]]:
    return np.uint16 if source.n_vocab <= 1 << 16 else np.int32


def _read(path: Path) -> Capture:
    """Reads a capture. Raises DataError for a damaged file."""
    try:
        with path.open("rb") as file, np.load(file, allow_pickle=False) as arrays:
            features = arrays["features"]
            if "scales" in arrays:
                features = features.astype(np.float32) * arrays["scales"].astype(np.float32)[:, :, None]
            else:
                features = features.view(ml_dtypes.bfloat16).astype(np.float32)
            return Capture(features, arrays["ids"].astype(np.int32), arrays["logp"].astype(np.float32))
    except (OSError, ValueError, KeyError, EOFError, TypeError, zipfile.BadZipFile) as error:
        raise DataError(
            f"{path}: expected a cached conversation, found a damaged file ({error}); delete this "
            "file to capture it again"
        ) from None


def _to_int8(values: NDArray[np.float32]) -> tuple[NDArray[np.float16], NDArray[np.int8]]:
    """Returns hidden states as scales f16 [n_layers, S] and integers from -127 to 127. Each scale is rounded
    to f16 before the division, because reading multiplies by the rounded scale.
    """
    scales = np.minimum(np.abs(values).max(axis=2) / 127, np.finfo(np.float16).max).astype(np.float16)
    scales = np.maximum(scales, np.finfo(np.float16).tiny)
    return scales, np.clip(np.rint(values / scales.astype(np.float32)[:, :, None]), -127, 127).astype(np.int8)


def _facts(source: TargetSource, feature_type: FeatureType) -> dict[str, Any]:
    """Returns the settings on which the content of a capture depends."""
    model = source.model
    return {
        "format": _FORMAT,
        **identify(source.target_path),
        "layers": list(source.layers),
        "n_top": source.n_top,
        "feature_type": feature_type,
        "type_k": model.type_k,
        "type_v": model.type_v,
        "rope": [model.rope_freq_base, model.rope_freq_scale],
        "lora": [[Path(path).name, scale] for path, scale in model.lora],
    }
