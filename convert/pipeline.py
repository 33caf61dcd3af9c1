# SPDX-License-Identifier: MIT
"""`convert_checkpoint`: open, recognise, check, plan, write, verify, rename. Reads from top to bottom.

Tensors pass through in chunks of rows, so memory stays far below the size of the drafter.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from gguf import GGMLQuantizationType

from .build_spec import Options, build_spec
from .checkpoint import Checkpoint, open_checkpoint
from .config import flag
from .dialects import Seen, canonical_name, recognise
from .errors import CheckpointError, ConfigError, TensorError, WriteError
from .layer_ids import Convention
from .mapping import Slot, check_tensors, slots
from .metadata import build_metadata
from .quantize import ErrorSum, TypePlan, encode, file_type, parse_type, plan_type
from .rope import rope_divisors
from .spec import DraftSpec
from .target_info import TargetInfo, open_target
from .tensor import TensorSource
from .verify import verify_file
from .vocab_map import absolute_ids
from .writer import PlannedTensor, replace_file, write_gguf

__all__ = ["ConvertReport", "Progress", "TensorReport", "convert_checkpoint"]

_CHUNK_VALUES = 4 << 20  # values decoded to float32 at a time: 16 MiB, and as much again for the error
_MAX_WORKERS = 8


@dataclass(frozen=True)
class TensorReport:
    """One written tensor.

    shape: slowest axis first. rel_rms_error: RMS of the rounding over RMS of the values.
    """

    name: str
    type: str
    shape: tuple[int, ...]
    n_bytes: int
    rel_rms_error: float
    note: str = ""


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
    """Told before every chunk. done, total: bytes of the output's tensors; what: the tensor or step."""

    what: str
    done: int
    total: int


def convert_checkpoint(
    src: str | Path,
    target: str | Path,
    out: str | Path | None = None,
    type: str = "Q8_0",
    aux_layers: Sequence[int] | None = None,
    layer_ids: Convention | None = None,
    feed: str | None = None,
    progress: Callable[[Progress], None] | None = None,
) -> ConvertReport:
    """Convert an EAGLE-3 or 3.1 drafter checkpoint to a GGUF.

    src: checkpoint directory, weight file or hub id.
    target: the target's GGUF, Hugging Face directory or hub id.
    out: default `<name>-<TYPE>.gguf` in the current directory; an existing file is replaced when all is done.
    type: a name in `quantize.TYPES`. aux_layers: boundary ids R_k (with layer_ids="post": block numbers).
    layer_ids: how the checkpoint's ids count, "boundary" or "post".
    feed: "pre" or "post" overrides norm_output.

    Raises ConvertError (a subclass per cause), and ValueError for unknown values of layer_ids or feed.
    """
    options = _options(aux_layers, layer_ids, feed)
    tell = progress or (lambda _: None)
    types = parse_type(type)
    checkpoint = open_checkpoint(src, lambda what: tell(Progress(what, 0, 0)))
    target_info = open_target(target)
    destination = _destination(out, checkpoint, target_info, types)
    seen = Seen(checkpoint.config, {name: source.shape for name, source in checkpoint.tensors.items()})
    dialect = recognise(seen)
    sources = _tie_head(_canonical(checkpoint), dialect.flatten(seen))
    shapes = {name: source.shape for name, source in sources.items()}
    spec, notes = build_spec(seen, dialect, shapes, target_info, options)
    expected = slots(spec, shapes)
    check_tensors(expected, shapes, dialect.title)
    ids, map_note = absolute_ids(
        _small(sources, "d2t"), _small(sources, "t2d"), spec.draft_vocab_size, spec.vocab_size
    )
    with ThreadPoolExecutor(min(os.cpu_count() or 1, _MAX_WORKERS)) as pool:
        plan = _Plan(spec, types, sources, ids, pool)
        tensors = [plan.tensor(slot) for slot in expected if slot.required or slot.source in sources]
        tell(Progress("hashing the source", 0, plan.total))
        fields = build_metadata(
            spec,
            checkpoint,
            target_info,
            file_type=file_type(types),
            n_params=sum(math.prod(tensor.shape) for tensor in tensors),
            sha256=checkpoint.sha256(),
        )
        with replace_file(destination) as temporary:
            crcs = write_gguf(temporary, spec.architecture, fields, tensors, plan.meter(tell))
            tell(Progress("verifying", plan.total, plan.total))
            verify_file(temporary, spec.architecture, fields, tensors, crcs)
            size = temporary.stat().st_size
    blockers = spec.stock_blockers
    why = (
        f"architecture eagle31, which llama.cpp does not run, because of: {', '.join(blockers)}"
        if blockers
        else ""
    )
    all_notes = tuple(note for note in (*checkpoint.notes, *notes, map_note, why) if note)
    return ConvertReport(
        destination, spec, dialect.title, types.body.name, size, plan.reports(tensors), all_notes
    )


def _options(aux_layers: Sequence[int] | None, layer_ids: Convention | None, feed: str | None) -> Options:
    if layer_ids not in (None, "boundary", "post"):
        raise ValueError(f"layer_ids: expected 'boundary' or 'post', found {layer_ids!r}")
    if feed not in (None, "pre", "post"):
        raise ValueError(f"feed: expected 'pre' or 'post', found {feed!r}")
    return Options(None if aux_layers is None else tuple(aux_layers), layer_ids, feed)


def _destination(out: str | Path | None, checkpoint: Checkpoint, target: TargetInfo, types: TypePlan) -> Path:
    path = Path(out) if out is not None else Path(f"{checkpoint.short_name}-{types.body.name}.gguf")
    if path.is_dir():
        raise WriteError(f"{path}: is a directory; give a file name")
    if not path.parent.is_dir():
        raise WriteError(f"{path}: directory {path.parent} does not exist")
    if path.exists() and any(path.samefile(source) for source in (*checkpoint.files, *target.files)):
        raise WriteError(f"{path}: is a file this conversion reads; choose another output name")
    return path


def _canonical(checkpoint: Checkpoint) -> dict[str, TensorSource]:
    """The checkpoint's tensors by canonical name, without those inference never uses."""
    found: dict[str, TensorSource] = {}
    for name, source in checkpoint.tensors.items():
        canonical = canonical_name(name)
        if canonical is None:
            continue
        if canonical in found:
            raise CheckpointError(
                f"tensors {found[canonical].name} and {name} are the same one under two names"
            )
        found[canonical] = source
    return _one_attention_norm(found)


def _one_attention_norm(sources: dict[str, TensorSource]) -> dict[str, TensorSource]:
    """Later layers have one norm before attention; exporters call it input_layernorm or hidden_norm."""
    renamed: dict[str, TensorSource] = {}
    for name, source in sources.items():
        head, _, layer_norm = name.rpartition(".hidden_norm")
        wanted = f"{head}.input_layernorm{layer_norm}"
        if not head.startswith("layers.") or head == "layers.0":
            renamed[name] = source
        elif wanted in sources:
            raise TensorError(
                f"tensors {name} and {wanted}: expected one norm before attention in {head}, found both"
            )
        else:
            renamed[wanted] = source
    return renamed


def _tie_head(sources: dict[str, TensorSource], config: Mapping[str, Any]) -> dict[str, TensorSource]:
    if not flag(config, "tie_word_embeddings"):
        return sources
    if "lm_head.weight" in sources:
        raise ConfigError(
            "config.json: tie_word_embeddings is true, but the checkpoint has its own lm_head.weight"
        )
    if "embed_tokens.weight" not in sources:
        return sources  # embeddings and head are both the target's
    return {**sources, "lm_head.weight": sources["embed_tokens.weight"]}


def _small(sources: Mapping[str, TensorSource], name: str) -> npt.NDArray[Any] | None:
    return sources[name].read() if name in sources else None


class _Plan:
    """Turns slots into tensors to write and keeps the error of each."""

    def __init__(
        self, spec: DraftSpec, types: TypePlan, sources: Mapping[str, TensorSource],
        ids: npt.NDArray[np.int64] | None, pool: ThreadPoolExecutor,
    ) -> None:  # fmt: skip
        self.spec, self.types, self.sources, self.ids, self.pool = spec, types, sources, ids, pool
        self.errors: dict[str, ErrorSum] = {}
        self.notes: dict[str, str] = {}
        self.total = 0
        self.done = 0

    def tensor(self, slot: Slot) -> PlannedTensor:
        kind, note = plan_type(self.types, slot.role, slot.shape[-1])
        self.errors[slot.name], self.notes[slot.name] = ErrorSum(), note
        planned = PlannedTensor(slot.name, slot.shape, kind, lambda: self.chunks(slot, kind))
        self.total += planned.n_bytes
        return planned

    def chunks(self, slot: Slot, kind: GGMLQuantizationType) -> Iterator[bytes]:
        if slot.role == "map":
            assert self.ids is not None
            yield self.ids.astype("<i8").tobytes()
            return
        blocks = (
            self.rows(slot) if slot.source else iter((rope_divisors(self.spec.rope, self.spec.head_dim),))
        )
        for values in blocks:
            yield from encode(values, kind, self.errors[slot.name], slot.name, self.pool, self.n_workers)

    @property
    def n_workers(self) -> int:
        return min(os.cpu_count() or 1, _MAX_WORKERS)

    def rows(self, slot: Slot) -> Iterator[npt.NDArray[np.float32]]:
        """The tensor's rows in chunks, q and k rows in rope's pair order."""
        source = self.sources[slot.source]
        if not source.is_float:
            raise TensorError(f"tensor {source.name}: expected floating point values, found {source.dtype}")
        step = max(1, _CHUNK_VALUES // max(1, math.prod(source.shape[1:])))
        if slot.head_rows:
            step = max(slot.head_rows, step // slot.head_rows * slot.head_rows)
        for start in range(0, source.n_rows, step):
            values = source.read_rows(start, min(start + step, source.n_rows))
            yield _pair_rows(values, slot.head_rows) if slot.head_rows else values

    def meter(self, tell: Callable[[Progress], None]) -> Callable[[str, int], None]:
        def advance(name: str, n_bytes: int) -> None:
            self.done += n_bytes
            tell(Progress(name, self.done, self.total))

        return advance

    def reports(self, tensors: Sequence[PlannedTensor]) -> tuple[TensorReport, ...]:
        return tuple(
            TensorReport(
                t.name, t.type.name, t.shape, t.n_bytes, self.errors[t.name].relative_rms, self.notes[t.name]
            )
            for t in tensors
        )


def _pair_rows(values: npt.NDArray[np.float32], head_dim: int) -> npt.NDArray[np.float32]:
    """Rows of whole heads from HF's half-split order to rope's adjacent pairs (ggml's NORM type)."""
    rest = values.shape[1:]
    halves = values.reshape(-1, 2, head_dim // 2, *rest)
    return np.ascontiguousarray(halves.swapaxes(1, 2)).reshape(values.shape)
