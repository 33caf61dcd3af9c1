# SPDX-License-Identifier: MIT
"""Negative controls: a reference with one known mistake must differ from the native drafter.

A parity test that also passes under these would prove nothing (drafter-format notes of the EAGLE projects
list them as the mistakes that really happen). Each control runs on a shape where the right reference
agrees.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch

from helpers.random_drafter import DraftShape
from helpers.reference.drafter import Drafter
from helpers.reference.layers import LatentAttention

from .cases import CASES, EAGLE3, EAGLE31, LATENT31, TOUCHY
from .conftest import Both, random_rows
from .steps import CHUNKS, TOLERANCE, compare_steps


class SwappedHalves(Drafter):
    """Feature first, embedding second."""

    def concat(self, embedded: torch.Tensor, feature: torch.Tensor) -> torch.Tensor:
        return torch.cat([feature, embedded], dim=-1)


class LatePosition(Drafter):
    """Draft rows one position too far."""

    def place(self, depth: int) -> int:
        return super().place(depth) + 1


class OtherFeed(Drafter):
    """Pre-norm state where post-norm is fed, and the reverse."""

    def fed(self, hidden: torch.Tensor, normed: torch.Tensor) -> torch.Tensor:
        return hidden if self.switches.norm_output else normed


class ShiftedIds(Drafter):
    """The token at the feature's own position instead of the one after it."""

    last = 0

    def token_ids(self, tokens: Sequence[int]) -> torch.Tensor:
        shifted = [self.last, *tokens][:-1]
        self.last = tokens[-1]
        return super().token_ids(shifted)


class OtherEps(Drafter):
    """1e-6 for 1e-5."""

    def reset(self) -> None:
        super().reset()
        self.eps = 1e-6


class NoFcNorm(Drafter):
    """`fc_norm` left out, as by an engine that skips unknown tensors."""

    def reset(self) -> None:
        super().reset()
        self.n_fc_norms = 0


class NoWindow(Drafter):
    """Full attention for a sliding-window drafter."""

    def reset(self) -> None:
        super().reset()
        self.switches = type(self.switches)(False, False, windows=(0,))


def latent(kind: type[LatentAttention]) -> type[Drafter]:
    """A drafter with another latent attention."""

    class Other(Drafter):
        def latent_attention(self, config: dict[str, Any]) -> LatentAttention:
            return kind(config)

    Other.__name__ = kind.__name__
    return Other


class RotatedHalves(LatentAttention):
    """The rotation of Llama's checkpoints."""

    def rotate(self, x: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        return self.rope(x, positions)


class PlainScale(LatentAttention):
    """Scores without yarn's share."""

    def __init__(self, config: dict[str, Any]) -> None:
        super().__init__(config)
        self.scale = (self.nope + self.rotated) ** -0.5


class HuggingFaceYarn(LatentAttention):
    """cos and sin with the magnitude that Llama's yarn has where mscale is not given."""

    def __init__(self, config: dict[str, Any]) -> None:
        super().__init__(config)
        self.rope.magnitude = 1 + self.magnify


class UnnormedLatent(LatentAttention):
    """`kv_a_layernorm` left out."""

    def normed(self, latent: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return latent


class SwappedParts(LatentAttention):
    """Each head's value before its key."""

    def split_head(self, kv: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return kv[..., self.value :], kv[..., : self.value]


class UnrotatedKeys(LatentAttention):
    """Latent attention without positions, as Kimi K3 itself has it."""

    def rotate(self, x: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        return x


LATENT_MISTAKES = (RotatedHalves, PlainScale, HuggingFaceYarn, UnnormedLatent, SwappedParts, UnrotatedKeys)

CONTROLS: list[tuple[type[Drafter], DraftShape]] = [
    (SwappedHalves, EAGLE3),
    (SwappedHalves, EAGLE31),
    (LatePosition, EAGLE3),
    (LatePosition, CASES["rope-llama3"]),
    (OtherFeed, EAGLE3),
    (OtherFeed, EAGLE31),
    (ShiftedIds, EAGLE3),
    (OtherEps, TOUCHY),
    (NoFcNorm, EAGLE31),
    (NoWindow, CASES["sliding-window"]),
    (LatePosition, LATENT31),
    (SwappedHalves, LATENT31),
    *((latent(mistake), LATENT31) for mistake in LATENT_MISTAKES),
    (latent(HuggingFaceYarn), CASES["latent-uneven-yarn"]),
    (NoWindow, CASES["latent-window"]),
]


@pytest.mark.parametrize(("mistake", "shape"), CONTROLS)
def test_a_known_mistake_is_seen(
    mistake: type[Drafter], shape: DraftShape, both: Callable[[DraftShape], Both]
) -> None:
    it = both(shape)
    rows = random_rows(shape, sum(CHUNKS))
    assert (
        max(d.logits for d in compare_steps(it.native, it.reference, rows, teacher_forced=True)) < TOLERANCE
    )
    it.native.reset()
    wrong = compare_steps(it.native, it.reference_of(mistake), rows, teacher_forced=False)
    assert max(d.logits for d in wrong) > 10 * TOLERANCE, wrong
