# SPDX-License-Identifier: MIT
"""AdamW on fp32 weights: the learning-rate schedule, gradient scaling and clipping, and skipped steps.

Norm weights do not decay. A step whose gradient is not finite changes nothing and is counted; its data is
used again in the next epoch.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn

_BETAS = (0.9, 0.95)
_WEIGHT_DECAY = 0.01


def default_lr(n_embd: int) -> float:
    """2e-3 up to a width of 512, falling with the width from there (2.5e-4 at 4096)."""
    return 2e-3 * 512 / max(n_embd, 512)


def lr_factor(progress: float, warmup: float) -> float:
    """Share of the full learning rate at `progress` of the run (0..1): linear warm-up, then half a cosine
    down to a hundredth.
    """
    if progress < warmup:
        return max(progress / warmup, 0.01)
    rest = min((progress - warmup) / max(1.0 - warmup, 1e-9), 1.0)
    return 0.01 + 0.99 * 0.5 * (1.0 + math.cos(math.pi * rest))


class Optimizer:
    """One step: `step(scale, lr)` after the gradients have been accumulated."""

    def __init__(self, parameters: Iterable[nn.Parameter]) -> None:
        self.parameters = [p for p in parameters if p.requires_grad]
        self.n_skipped = 0
        groups = [
            {"params": [p for p in self.parameters if p.ndim > 1], "weight_decay": _WEIGHT_DECAY},
            {"params": [p for p in self.parameters if p.ndim < 2], "weight_decay": 0.0},
        ]
        self.adam = torch.optim.AdamW(groups, lr=0.0, betas=_BETAS, fused=True)

    def step(self, scale: Tensor, lr: float) -> float:
        """Multiplies the gradients by `scale`, clips them to a norm of 1 and updates the weights; clears
        the gradients. Returns the norm before clipping; NaN or Inf means that nothing was changed.
        """
        gradients = [p.grad for p in self.parameters if p.grad is not None]
        norm = torch.nn.utils.get_total_norm(gradients) * scale
        found = float(norm)
        if not math.isfinite(found):
            self.n_skipped += 1
        else:
            torch._foreach_mul_(gradients, float(scale) * min(1.0, 1.0 / (found + 1e-6)))
            for group in self.adam.param_groups:
                group["lr"] = lr
            self.adam.step()
        self.adam.zero_grad(set_to_none=True)
        return found

    def state_dict(self) -> dict[str, Any]:
        """All that a resumed run needs."""
        return {"adam": self.adam.state_dict(), "n_skipped": self.n_skipped}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Takes over what `state_dict` gave."""
        self.adam.load_state_dict(state["adam"])
        self.n_skipped = int(state["n_skipped"])
