# SPDX-License-Identifier: MIT
"""`convert_checkpoint`: open, recognise, check, plan, write, verify, rename. Reads from top to bottom.

Nothing is written before every check has passed, and the output takes its name only when it has been read
back.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from .build_spec import Options, build_spec, find_choices
from .canonical import canonical_tensors
from .checkpoint import Checkpoint, open_checkpoint
from .dialects import Seen, recognise
from .errors import EagleError, InvalidValueError, WriteError
from .head_check import check_head
from .layer_ids import Convention
from .mapping import Slot, check_tensors, slots
from .metadata import build_metadata
from .quantised import dequantised
from .quantize import TypePlan, file_type, parse_type
from .readings import Choice, checked_readings, read_as
from .spec import DraftSpec
from .stream import N_WORKERS, TensorReport, TensorStream
from .target_info import TargetInfo, open_target
from .tensor import TensorSource
from .verify import verify_file
from .vocab_map import absolute_ids
from .writer import replace_file, write_gguf

__all__ = [
    "ConvertReport",
    "DraftCheckpoint",
    "Progress",
    "convert_checkpoint",
    "open_choices",
    "open_drafter",
]


@dataclass(frozen=True)
class ConvertReport:
    """What a conversion made. family and type as recognised and requested; size in bytes."""

    out: Path
    spec: DraftSpec
    family: str
    type: str
    size: int
    tensors: tuple[TensorReport, ...]
    notes: tuple[str, ...]


@dataclass(frozen=True)
class Progress:
    """A step.

    what: the tensor or activity; done, total: bytes of tensors written (total 0: not yet known).
    """

    what: str
    done: int
    total: int


@dataclass(frozen=True)
class DraftCheckpoint:
    """A checkpoint, understood and checked: all that writing needs.

    family: who wrote it; sources: tensors by canonical name; ids: the target id of each draft id, None when
    they are the same.
    """

    spec: DraftSpec
    family: str
    sources: Mapping[str, TensorSource]
    slots: tuple[Slot, ...]
    ids: npt.NDArray[np.int64] | None
    notes: tuple[str, ...]


def open_drafter(
    src: str | Path,
    target: str | Path,
    aux_layers: Sequence[int] | None = None,
    layer_ids: Convention | None = None,
    feed: str | None = None,
    window: int | None = None,
    rope_theta: float | None = None,
    readings: Mapping[str, str] | None = None,
) -> DraftCheckpoint:
    """Reads and checks a checkpoint without converting it; arguments and errors as `convert_checkpoint`."""
    options = _options(aux_layers, layer_ids, feed, window, rope_theta, readings)
    return _understand(open_checkpoint(src), open_target(target), options)


def open_choices(
    src: str | Path,
    target: str | Path,
    aux_layers: Sequence[int] | None = None,
    layer_ids: Convention | None = None,
    feed: str | None = None,
    window: int | None = None,
    rope_theta: float | None = None,
    readings: Mapping[str, str] | None = None,
) -> tuple[Choice, ...]:
    """What the checkpoint leaves open and the arguments do not say; arguments and errors as
    `convert_checkpoint`, though not every check is made.
    """
    options = _options(aux_layers, layer_ids, feed, window, rope_theta, readings)
    checkpoint = open_checkpoint(src)
    tensors, _ = dequantised(checkpoint.tensors, checkpoint.config)
    seen = _seen(checkpoint, tensors)
    dialect = recognise(seen)
    return find_choices(seen, dialect, dialect.flatten(seen), open_target(target), options)


def convert_checkpoint(
    src: str | Path,
    target: str | Path,
    out: str | Path | None = None,
    type: str = "Q8_0",
    aux_layers: Sequence[int] | None = None,
    layer_ids: Convention | None = None,
    feed: str | None = None,
    progress: Callable[[Progress], None] | None = None,
    hub_id: str | None = None,
    target_id: str | None = None,
    share_head: bool = False,
    window: int | None = None,
    rope_theta: float | None = None,
    readings: Mapping[str, str] | None = None,
    reasons: Mapping[str, str] | None = None,
) -> ConvertReport:
    """Convert an EAGLE drafter checkpoint to a GGUF.

    src: checkpoint directory, weight file or a drafter's GGUF.
    target: the target's GGUF or Hugging Face directory.
    out: default `<name>-<TYPE>.gguf` in the current directory; an existing file is replaced when all is done.
    type: a name in `quantize.TYPES`. aux_layers: boundary ids R_k (with layer_ids="post": block numbers).
    layer_ids: how the checkpoint's ids count, "boundary" or "post".
    feed: "pre" or "post" overrides norm_output.
    rope_theta: in place of the config's. readings: these three and others by name (`readings.KNOWN`), where a
    checkpoint can be read in several ways; reasons: why, for the record in the file.
    hub_id: what the checkpoint in the directory `src` was downloaded from; named in the file as its source.
    target_id: likewise for the directory `target`; named in the file as the model it was made for.
    share_head: leave the head out, because it is the target's own, copied for other readers.
    window: rows that every layer sees, for a drafter that is served with a window its config does not name.

    Raises EagleError (a subclass per cause), InvalidValueError for unknown readings, for values of theirs or
    of window that there are not, and for a reading given in two ways.
    """
    options = _options(aux_layers, layer_ids, feed, window, rope_theta, readings, reasons)
    tell = progress or (lambda _: None)
    types = parse_type(type)
    checkpoint = open_checkpoint(src)
    if hub_id is not None:
        checkpoint = replace(checkpoint, name=hub_id, from_hub=True)
    target_info = open_target(target)
    if target_id is not None:
        target_info = replace(target_info, name=target_id)
    destination = _destination(out, checkpoint, target_info, types)
    if share_head:
        checkpoint = replace(
            checkpoint,
            tensors={n: t for n, t in checkpoint.tensors.items() if not n.endswith("lm_head.weight")},
        )
    drafter = _understand(checkpoint, target_info, options)
    size, reports = _write(drafter, checkpoint, target_info, types, destination, tell)
    return ConvertReport(
        destination, drafter.spec, drafter.family, types.body.name, size, reports, drafter.notes
    )


def _options(
    aux_layers: Sequence[int] | None,
    layer_ids: Convention | None,
    feed: str | None,
    window: int | None,
    rope_theta: float | None,
    readings: Mapping[str, str] | None,
    reasons: Mapping[str, str] | None = None,
) -> Options:
    if window is not None and window < 1:
        raise InvalidValueError(f"window: expected a positive number of rows, found {window}")
    found = checked_readings(readings or {})
    short = {"layer_ids": layer_ids, "feed": feed, "rope_theta": rope_theta}
    for name, value in checked_readings({k: v for k, v in short.items() if v is not None}).items():
        if found.setdefault(name, value) != value:
            raise InvalidValueError(f"reading {name}: given twice, as {value} and as {found[name]}")
    return Options(None if aux_layers is None else tuple(aux_layers), found, dict(reasons or {}), window)


def _destination(out: str | Path | None, checkpoint: Checkpoint, target: TargetInfo, types: TypePlan) -> Path:
    path = Path(out) if out is not None else Path(f"{checkpoint.short_name}-{types.body.name}.gguf")
    if path.is_dir():
        raise WriteError(f"{path}: this is a directory; give a file name")
    if not path.parent.is_dir():
        raise WriteError(f"{path}: directory {path.parent} does not exist")
    if path.exists() and any(path.samefile(source) for source in (*checkpoint.files, *target.files)):
        raise WriteError(f"{path}: this conversion reads that file; choose another output name")
    return path


def _understand(checkpoint: Checkpoint, target: TargetInfo, options: Options) -> DraftCheckpoint:
    """Recognise the checkpoint and run every check that needs no pass over the weights."""
    try:
        return _checked(checkpoint, target, options)
    except EagleError as error:
        if checkpoint.general is None or str(checkpoint.files[0]) in str(error):
            raise
        raise type(error)(f"{checkpoint.files[0]}, whose keys were read as a config: {error}") from error


def _checked(checkpoint: Checkpoint, target: TargetInfo, options: Options) -> DraftCheckpoint:
    tensors, quantised_note = dequantised(checkpoint.tensors, checkpoint.config)
    seen = _seen(checkpoint, tensors)
    dialect = recognise(seen)
    dialect.check(tensors)
    sources = canonical_tensors(tensors, dialect.flatten(seen), dialect)
    shapes = {name: source.shape for name, source in sources.items()}
    spec, readings, notes = build_spec(seen, dialect, shapes, target, options)
    sources = read_as(sources, readings)
    shapes = {name: source.shape for name, source in sources.items()}
    expected = slots(spec, shapes)
    check_tensors(expected, shapes, dialect.title)
    ids, map_note = absolute_ids(
        _small(sources, "d2t"), _small(sources, "t2d"), spec.draft_vocab_size, spec.vocab_size
    )
    present = tuple(slot for slot in expected if slot.required or slot.source in sources)
    all_notes = (
        *checkpoint.notes,
        quantised_note,
        *notes,
        map_note,
        *_vocabulary_notes(ids, sources, target),
        _architecture_note(spec),
    )
    return DraftCheckpoint(
        spec, dialect.title, sources, present, ids, tuple(note for note in all_notes if note)
    )


def _seen(checkpoint: Checkpoint, tensors: Mapping[str, TensorSource]) -> Seen:
    return Seen(checkpoint.config, {name: source.shape for name, source in tensors.items()})


def _vocabulary_notes(
    ids: npt.NDArray[np.int64] | None, sources: Mapping[str, TensorSource], target: TargetInfo
) -> tuple[str, ...]:
    if ids is None:
        return ()
    note = ""
    if target.eos_token_id is not None and target.eos_token_id not in ids:
        note = f"the target's end-of-sequence token {target.eos_token_id} is outside the draft vocabulary"
    head = check_head(sources["lm_head.weight"], ids, target.head) if target.head else ""
    return note, head


def _architecture_note(spec: DraftSpec) -> str:
    blockers = ", ".join(spec.stock_blockers)
    return (
        f"written as {spec.architecture}, which llama.cpp does not support, because of: {blockers}"
        if blockers
        else ""
    )


def _small(sources: Mapping[str, TensorSource], name: str) -> npt.NDArray[Any] | None:
    return sources[name].read() if name in sources else None


def _write(
    drafter: DraftCheckpoint,
    checkpoint: Checkpoint,
    target: TargetInfo,
    types: TypePlan,
    out: Path,
    tell: Callable[[Progress], None],
) -> tuple[int, tuple[TensorReport, ...]]:
    """Write, verify and rename; returns the file's size and what each tensor cost."""
    spec = drafter.spec
    with ThreadPoolExecutor(N_WORKERS) as pool:
        stream = TensorStream(spec, types, drafter.sources, drafter.ids, pool)
        tensors = stream.plan(drafter.slots)
        total = sum(tensor.n_bytes for tensor in tensors)
        tell(Progress("hashing the source", 0, total))
        fields = build_metadata(
            spec,
            checkpoint,
            target,
            file_type=file_type(types),
            n_params=sum(math.prod(tensor.shape) for tensor in tensors),
            sha256=checkpoint.sha256(),
        )
        done = 0

        def advance(name: str, n_bytes: int) -> None:
            nonlocal done
            done += n_bytes
            tell(Progress(name, done, total))

        with replace_file(out) as temporary:
            crcs = write_gguf(temporary, spec.architecture, fields, tensors, advance)
            tell(Progress("verifying", total, total))
            verify_file(temporary, spec.architecture, fields, tensors, crcs)
            size = temporary.stat().st_size
    return size, stream.reports(tensors)
