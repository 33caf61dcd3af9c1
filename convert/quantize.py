# SPDX-License-Identifier: MIT
"""Chooses the type of each tensor, encodes float32 rows in this type, and measures the rounding error.

The requested type applies to the layers' matrices and the embedding table. If the requested type has less
than 6 bits, `fc` and the head get a better type. The head needs it, because it decides between near-equal
logits. (On a small trained EAGLE 3.1 drafter, Q4_0 for all tensors reduced the acceptance length by 4 %, and
Q4_0 with a Q5_0 head by 0.4 %.) `fc` needs it, because it affects every step, and it runs only for committed
rows. If F32, F16, BF16 or Q8_0 is requested, every tensor gets that type, as in llama.cpp's own converter. If
rows do not divide into blocks of 256, the tensor gets the type with blocks of 32 that llama.cpp's quantiser
uses instead (src/llama-quant.cpp, tensor_type_fallback), else Q8_0, else F16.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from concurrent.futures import Executor
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from gguf import GGML_QUANT_SIZES, LlamaFileType
from gguf import GGMLQuantizationType as Q

from . import ggml_lib
from .errors import QuantTypeError, TensorError
from .keys import TensorRole
from .tensor import FLOAT_DTYPES, NUMPY_TYPES


@dataclass(frozen=True)
class TypePlan:
    """Tensor types for one requested type. body: type of the layers' matrices and the embeddings; raised:
    type of `fc` and the head.
    """

    body: Q
    raised: Q


# Each entry has a type for `fc` and the head, and the requested types for which this type is used. Together,
# the entries contain every type that needs no importance matrix. A test compares this list with ggml.
_RAISED: tuple[tuple[Q | None, tuple[Q, ...]], ...] = (
    (None, (Q.F32, Q.F16, Q.BF16, Q.Q8_0, Q.Q6_K)),  # `fc` and the head get the requested type
    (Q.Q6_K, (Q.Q5_K, Q.Q5_1, Q.Q5_0)),
    (Q.Q5_K, (Q.Q4_K, Q.Q4_1, Q.Q4_0, Q.IQ4_NL, Q.IQ4_XS, Q.MXFP4, Q.NVFP4)),
    (Q.Q4_K, (Q.Q3_K, Q.IQ3_S, Q.IQ3_XXS, Q.Q2_K, Q.IQ2_S, Q.IQ1_M, Q.TQ2_0, Q.TQ1_0)),
)
TYPES: dict[str, TypePlan] = {
    kind.name: TypePlan(kind, raised or kind) for raised, kinds in _RAISED for kind in kinds
}

# Replacements for types with blocks of 256 values, if the length of a row is not a multiple of 256. Other
# types are replaced by Q8_0.
_SMALL_BLOCKS = {
    Q.Q5_K: Q.Q5_1, Q.Q4_K: Q.Q5_0, Q.Q3_K: Q.Q4_0, Q.Q2_K: Q.Q4_0, Q.TQ2_0: Q.Q4_0, Q.TQ1_0: Q.Q4_0,
    Q.IQ4_XS: Q.IQ4_NL, Q.IQ3_S: Q.IQ4_NL, Q.IQ3_XXS: Q.IQ4_NL, Q.IQ2_S: Q.IQ4_NL, Q.IQ1_M: Q.IQ4_NL,
}  # fmt: skip

# The names in llama.cpp are for mixtures of types, such as MOSTLY_Q4_K_S. A single type gets the name of the
# nearest mixture.
_FILE_TYPES = {"F32": "ALL_F32", "Q3_K": "MOSTLY_Q3_K_S", "Q4_K": "MOSTLY_Q4_K_S", "Q5_K": "MOSTLY_Q5_K_S",
               "MXFP4": "MOSTLY_MXFP4_MOE"}  # fmt: skip


def parse_type(name: str) -> TypePlan:
    """Returns the plan for the requested type with this name, in upper or lower case. Raises QuantTypeError,
    which lists the types.
    """
    plan = TYPES.get(name.upper())
    if plan is None:
        known = name.upper() in Q.__members__
        why = "cannot be made without an importance matrix" if known else "is unknown"
        raise QuantTypeError(f"type {name} {why}; expected one of {', '.join(TYPES)}")
    return plan


def file_type(plan: TypePlan) -> int:
    """Returns `general.file_type`: llama.cpp's number for the requested type."""
    name = plan.body.name
    return int(LlamaFileType[_FILE_TYPES.get(name, f"MOSTLY_{name}")])


def plan_type(plan: TypePlan, role: TensorRole, row: int) -> tuple[Q, str]:
    """Returns the type of a tensor with rows of `row` values. Also returns a note if the rows do not allow
    the planned type, else "".
    """
    if role == "map":
        return Q.I64, ""
    if role in ("norm", "bias", "freqs"):
        return Q.F32, ""
    wanted = plan.raised if role in ("fc", "head") else plan.body
    for kind in (wanted, _SMALL_BLOCKS.get(wanted, Q.Q8_0), Q.Q8_0, Q.F16):
        if row % GGML_QUANT_SIZES[kind][0] == 0:
            break
    if kind is wanted:
        return kind, ""
    return (
        kind,
        f"{kind.name}: rows of {row} are not divisible into {wanted.name} blocks of "
        f"{GGML_QUANT_SIZES[wanted][0]}",
    )


@dataclass
class ErrorSum:
    """Sums over all chunks of a tensor, for computing the tensor's relative RMS error."""

    error: float = 0.0
    signal: float = 0.0

    def add(self, values: npt.NDArray[np.float32], decoded: npt.NDArray[np.float32]) -> None:
        difference = (values - decoded).ravel()
        flat = values.ravel()
        self.error += float(np.dot(difference, difference))
        self.signal += float(np.dot(flat, flat))

    @property
    def relative_rms(self) -> float:
        """RMS of the rounding errors divided by the RMS of the values; 0 for a tensor of zeros."""
        return math.sqrt(self.error / self.signal) if self.signal else 0.0


def encode(
    values: npt.NDArray[np.float32], kind: Q, errors: ErrorSum, name: str, pool: Executor, n_workers: int
) -> Iterator[bytes]:
    """Encodes rows of a tensor, and adds their rounding error to `errors`. values: `[n_rows, n]` or `[n]`
    float32.

    Raises TensorError for values that are not finite or do not fit in the type.
    """
    if not np.isfinite(values).all():
        raise TensorError(f"tensor {name}: contains NaN or infinite values; the checkpoint is damaged")
    rows = values.reshape(-1, values.shape[-1])
    parts = np.array_split(rows, min(n_workers, len(rows)))
    for data, decoded, part in pool.map(lambda part: (*_encode_part(part, kind), part), parts):
        if not np.isfinite(decoded).all():
            raise TensorError(f"tensor {name}: {kind.name} cannot hold its values; use BF16, F32 or Q8_0")
        errors.add(part, decoded)
        yield data


def as_stored(values: npt.NDArray[np.float32], plan: TypePlan, role: TensorRole) -> npt.NDArray[np.float32]:
    """Returns rows `[n_rows, n]` float32 as readers of the file will decode them: encodes the rows, then
    decodes them.

    Releases the GIL. Rows are independent, so callers may distribute rows over threads. Values must be
    finite.
    """
    return _encode_part(values, plan_type(plan, role, values.shape[1])[0])[1]


def _encode_part(rows: npt.NDArray[np.float32], kind: Q) -> tuple[bytes, npt.NDArray[np.float32]]:
    rows = np.ascontiguousarray(rows)
    if kind.name in FLOAT_DTYPES:
        with np.errstate(over="ignore"):  # `encode` reports values that do not fit
            stored = rows.astype(NUMPY_TYPES[kind.name])
        return stored.tobytes(), stored.astype(np.float32)
    data = ggml_lib.quantize_rows(rows, kind)
    return data.tobytes(), ggml_lib.dequantize_rows(data, kind, rows.shape[1])
