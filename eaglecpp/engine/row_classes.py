# SPDX-License-Identifier: MIT
"""What a batch of n rows should cost a GPU, in times of one row, before anything was measured: by backend,
card family and weight type.

A backend multiplies a few rows with weights that it reads once; beyond the last such row it works in tiles,
which cost as much for nine rows as for sixteen. The limits are those of llama.cpp's sources, the prices those
that others measured:

- CUDA and ROCm: `ggml_cuda_should_use_mmvq` in mmvq.cu; of AMD's cards only Instinct from the MI100 on has
  limits of its own. RTX 3090, Q4_0: 1.12, 1.20, 1.33, 2.14 of 2, 3, 4, 8 rows and
  2.16 of 16 (llama.cpp#15802, #17505); A100, Q8_0: 1.07, 1.28, 1.72 of 2, 4, 8 and 3.9 of 9; MI50, Q8_0:
  1.20, 1.34, 1.99 and 3.21 of 9.
- Vulkan: mat-vec up to 8 rows and a cliff at 9 (llama.cpp#25356). Strix Halo, a mixture: 1.36, 1.93, 3.08 of
  2, 4, 8 and 5.8 of 9.
- Metal: `mul_mv_ext` shares weights among 2 to 8 rows (4 to 8 of K-quants, never of i-quants:
  llama.cpp#27350), but its quantised kernels compute nearly as long for each row. M4: 6.5 of 8 rows in Q3_K,
  1.60 in BF16; M4 Pro, Q4_0: 1.81 of 2 (#25250). M5 has other units for it: 1.24, 1.63, 2.25, and 2.6 of 16.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

__all__ = ["Card", "card_of"]

_MOST = 8
_K_QUANTS = ("Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K")
_LAST = {  # of CUDA's mat-vec kernels, where it is not _MOST
    "ada": {"Q2_K": 4, "Q3_K": 6},
    "blackwell": dict(zip(_K_QUANTS, (5, 5, 5, 6, 7), strict=True)),
    "cdna": dict(zip(_K_QUANTS, (5, 3, 3, 3, 5), strict=True)),
    "cdna1": dict(zip(_K_QUANTS, (4, 3, 2, 3, 4), strict=True))
    | {"Q4_0": 7, "Q4_1": 7, "Q5_1": 7, "Q8_0": 6}
    | {"IQ1_S": 5, "IQ2_XXS": 6, "IQ3_S": 6, "IQ4_XS": 6},
    "dgx_spark": {"Q2_K": 6},
    "orin": dict.fromkeys(_K_QUANTS, 1),
    "volta": dict(zip(_K_QUANTS, (4, 6, 5, 6, 7), strict=True)),
}
_FAMILIES = {
    "ada": r"RTX 40\d\d|RTX \d+ Ada|\bL4\b|\bL40",
    "blackwell": r"RTX 50\d\d|RTX PRO .*Blackwell|\bB[12]00\b",
    "cdna": r"\bMI[23]\d\d[A-Z]?\b",
    "cdna1": r"\bMI100\b",
    "dgx_spark": r"\bGB10\b",
    "orin": r"\bOrin\b",
    "volta": r"\bV100\b|TITAN V\b",
    "m5": r"\bM5\b",
}
_FLOATS = ("F16", "BF16", "F32")


@dataclass(frozen=True)
class Card:
    """backend: "cuda", "vulkan" or "metal"; family: one of those above, "" for any other; weights: ggml's
    name of their type.
    """

    backend: str
    family: str
    weights: str

    @property
    def cheap_rows(self) -> tuple[int, int]:
        """The first and the last number of rows that share the reading of weights; (1, 1) where none do."""
        if self.backend == "cuda":
            last = _LAST.get(self.family, {}).get(self.weights, _MOST)
            return (2, last) if last > 1 else (1, 1)
        if self.backend == "metal" and self.weights.startswith("IQ"):
            return 1, 1
        return (4 if self.backend == "metal" and self.weights.endswith("_K") else 2), _MOST

    def ratio(self, n_rows: int) -> float:
        """Of n rows over one."""
        row, tiles = self._prices()
        first, last = self.cheap_rows
        if n_rows <= last:
            return 1.0 + (n_rows - 1) * (row if n_rows >= first else 1.0)
        most = 1.0 + (last - 1) * row
        return max(most, tiles) + 0.05 * (n_rows - last - 1)

    def _prices(self) -> tuple[float, float]:
        """What each further row adds, and what tiles cost."""
        if self.backend == "cuda":
            if self.weights == "Q8_0":
                return 0.1, 3.5
            return (0.03, 1.2) if self.weights in _FLOATS else (0.15, 2.2)
        if self.backend == "vulkan":
            return 0.2, 4.0
        if self.family == "m5":
            return 0.2, 2.5
        return (0.09, 2.0) if self.weights in _FLOATS else (0.8, 5.0)


def card_of(name: str, description: str, weights: str) -> Card | None:
    """A device as llama.cpp calls and describes it; None where nothing is known of its backend."""
    for start, backend in (
        ("CUDA", "cuda"),
        ("ROCm", "cuda"),
        ("Vulkan", "vulkan"),
        ("MTL", "metal"),
        ("Metal", "metal"),
    ):
        if name.startswith(start):
            of_backend = [f for f, p in _FAMILIES.items() if re.search(p, description)]
            return Card(backend, of_backend[0] if of_backend else "", weights)
    return None
