# SPDX-License-Identifier: MIT
"""Quantisation-aware training: a model computes with the rounded weights that its file will store.

With matrices in four or five bits, the exported drafter differs from the trained one. So the forward pass may
use weights rounded by ggml's quantiser, while the optimiser applies the resulting gradients to the exact
weights (a straight-through estimator: Jacob et al., arXiv:1712.05877). The file then contains the weights
that were trained.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Literal

import torch
from torch import nn

from eaglecpp.convert import TypePlan, as_stored

_ROLES: dict[str, Literal["fc", "head"]] = {"fc": "fc", "head": "head", "markov_w2": "head"}
"""All other weights are plain matrices."""
_N_ROWS = 256
"""Rows quantised at once."""


class StoredWeights:
    """Temporarily replaces a model's trained matrices by their quantised values. Vectors are not
    quantised.
    """

    def __init__(self, model: nn.Module, plan: TypePlan) -> None:
        self._plan = plan
        self._matrices = {name: p for name, p in model.named_parameters() if p.requires_grad and p.ndim == 2}
        self._pool = ThreadPoolExecutor(torch.get_num_threads())
        self._stored = {name: torch.empty_like(p.data) for name, p in self._matrices.items()}

    @contextlib.contextmanager
    def lent(self) -> Iterator[None]:
        """Replaces the model's matrices by rounded ones inside the `with` block, and restores the exact
        matrices afterwards. Keeps gradients.
        """
        self._round()
        exact = {name: p.data for name, p in self._matrices.items()}
        try:
            for name, p in self._matrices.items():
                p.data = self._stored[name]
            yield
        finally:
            for name, p in self._matrices.items():
                p.data = exact[name]

    def _round(self) -> None:
        """Quantises a matrix in several threads, each of which takes a range of rows. The quantiser releases
        the interpreter's lock.
        """
        parts: list[tuple[str, torch.Tensor, torch.Tensor]] = []  # (name, values, destination)
        for name, p in self._matrices.items():
            # The values are rounded to bf16 first, because the file is made from a bf16 checkpoint.
            values = p.data.bfloat16().float().cpu()
            places = torch.split(self._stored[name], _N_ROWS)
            parts += [(name, *rows) for rows in zip(torch.split(values, _N_ROWS), places, strict=True)]
        for (_, _, place), rounded in zip(parts, self._pool.map(self._as_stored, parts), strict=True):
            place.copy_(rounded)

    def _as_stored(self, part: tuple[str, torch.Tensor, torch.Tensor]) -> torch.Tensor:
        name, values, _ = part
        return torch.from_numpy(as_stored(values.numpy(), self._plan, _ROLES.get(name, "matrix")))
