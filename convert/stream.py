# SPDX-License-Identifier: MIT
"""Turns the tensors of a checkpoint into the bytes of a GGUF. Ranges of rows are read, reordered and encoded,
and the rounding error is recorded.

Only a few chunks of rows are in memory as float32 at a time, for any tensor. Chunks are encoded in threads,
because ggml releases the GIL. Rows are independent, so the result does not depend on the number of threads.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from functools import partial

import numpy as np
import numpy.typing as npt
from gguf import GGMLQuantizationType

from .errors import TensorError
from .mapping import MappedTensor
from .quantize import ErrorSum, TypePlan, encode, plan_type
from .rope import pair_rows, rope_divisors
from .spec import DraftSpec
from .tensor import TensorSource
from .writer import PlannedTensor

N_WORKERS = min(os.cpu_count() or 1, 8)
_CHUNK_VALUES = 4 << 20  # a chunk takes 16 MiB as float32, and its decoded copy takes 16 MiB


@dataclass(frozen=True)
class TensorReport:
    """Report on a written tensor.

    shape: slowest axis first. rel_rms_error: RMS of the rounding errors divided by the RMS of the values.
    """

    name: str
    type: str
    shape: tuple[int, ...]
    n_bytes: int
    rel_rms_error: float
    note: str = ""

    @classmethod
    def of(cls, tensor: PlannedTensor) -> TensorReport:
        errors = tensor.errors.relative_rms
        return cls(tensor.name, tensor.type.name, tensor.shape, tensor.n_bytes, errors, tensor.note)


@dataclass(frozen=True)
class TensorStream:
    """Creates `PlannedTensor`s for the writer.

    ids: target id of each draft id; None without a vocabulary map
    """

    spec: DraftSpec
    types: TypePlan
    sources: Mapping[str, TensorSource]
    ids: npt.NDArray[np.int64] | None
    pool: Executor

    def plan(self, slots: Sequence[MappedTensor]) -> list[PlannedTensor]:
        """Returns the tensors to write, in the order of `slots`. Raises TensorError for a source without
        floating-point values.
        """
        wrong = [
            f"{self.sources[s.source].name} ({self.sources[s.source].dtype})"
            for s in slots
            if s.source and not self.sources[s.source].is_float
        ]
        if wrong:
            raise TensorError(f"expected floating point values, found integers in: {', '.join(wrong)}")
        return [self._tensor(slot) for slot in slots]

    def _tensor(self, slot: MappedTensor) -> PlannedTensor:
        kind, note = plan_type(self.types, slot.role, slot.shape[-1])
        errors = ErrorSum()
        chunks = partial(self._chunks, slot, kind, errors)
        return PlannedTensor(slot.name, slot.shape, kind, chunks, errors, note)

    def _chunks(self, slot: MappedTensor, kind: GGMLQuantizationType, errors: ErrorSum) -> Iterator[bytes]:
        if slot.role == "map":
            assert self.ids is not None
            yield self.ids.astype("<i8").tobytes()
            return
        for values in self._rows(slot):
            yield from encode(values, kind, errors, slot.name, self.pool, N_WORKERS)

    def _rows(self, slot: MappedTensor) -> Iterator[npt.NDArray[np.float32]]:
        """Yields a tensor's rows in chunks. The rows of q and k are permuted to rope's order of pairs."""
        if slot.role == "freqs":
            yield rope_divisors(self.spec.rope, self.spec.head_dim)
            return
        source = self.sources[slot.source]
        if slot.part:
            yield from _parts(source, slot)
            return
        step = max(1, _CHUNK_VALUES // math.prod(source.shape[1:]))
        if slot.head_rows:
            step = max(slot.head_rows, step // slot.head_rows * slot.head_rows)
        for start in range(0, source.n_rows, step):
            values = source.read_rows(start, min(start + step, source.n_rows))
            yield pair_rows(values, slot.head_rows) if slot.head_rows else values


def _parts(source: TensorSource, slot: MappedTensor) -> Iterator[npt.NDArray[np.float32]]:
    """Splits kv_b_proj, which has rows for keys and rows for values in each head. Yields the rows for keys or
    the rows for values (`slot.part`), as `[n_heads, rows, row]`.
    """
    n_heads, rank = slot.shape[0], slot.source_shape[1]
    n_rows = slot.source_shape[0] // n_heads
    step = max(1, _CHUNK_VALUES // (n_rows * rank))
    for start in range(0, n_heads, step):
        stop = min(start + step, n_heads)
        heads = source.read_rows(start * n_rows, stop * n_rows).reshape(-1, n_rows, rank)
        if slot.part == "keys":
            yield np.ascontiguousarray(heads[:, : slot.shape[2]].swapaxes(1, 2))
        else:
            yield np.ascontiguousarray(heads[:, n_rows - slot.shape[1] :])
