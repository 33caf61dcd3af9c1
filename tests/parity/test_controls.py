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
from helpers.reference.gemma import GemmaDrafter
from helpers.reference.layers import LatentAttention, Rope, rms

from .cases import CASES, EAGLE1, EAGLE3, EAGLE31, GEMMA, LATENT31, MISTRAL, SMALL, TOUCHY
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


class NormedOutput(Drafter):
    """EAGLE-1 with a norm before the head, as engines made for Llama have one (vllm#11672)."""

    def output(self, hidden: torch.Tensor) -> torch.Tensor:
        return rms(hidden, torch.ones(hidden.shape[-1]), self.eps)


class NormedInput(Drafter):
    """EAGLE-1 with a norm before the first layer's attention."""

    def first_input(self, hidden: torch.Tensor) -> torch.Tensor:
        return rms(hidden, torch.ones(hidden.shape[-1]), self.eps)


class Without(Drafter):
    """Tensors left out, as by an engine that does not know them."""

    ending = ""

    def reset(self) -> None:
        super().reset()
        self.w = {name: value for name, value in self.w.items() if not name.endswith(self.ending)}


class NoFcBias(Without):
    ending = "fc.bias"


class NoQueryNorm(Without):
    ending = "self_attn.q_norm.weight"


class OtherNorm(Drafter):
    """Mistral's drafter fed with the state before the norm, as EAGLE-1's."""

    def fed(self, hidden: torch.Tensor, normed: torch.Tensor) -> torch.Tensor:
        return hidden


class PlainValues(GemmaDrafter):
    def values(self, v: torch.Tensor) -> torch.Tensor:
        return v


class Silu(GemmaDrafter):
    def activation(self, gate: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.silu(gate)


class Uncapped(GemmaDrafter):
    def capped(self, logits: torch.Tensor) -> torch.Tensor:
        return logits


class NoNormAfter(GemmaDrafter):
    def after(self, x: torch.Tensor, name: str) -> torch.Tensor:
        return x


class WholeRope(GemmaDrafter):
    """All of a head rotated."""

    def turning(self, rope: dict[str, Any]) -> Rope:
        return Rope({"rope_theta": rope["rope_theta"]}, self.shape.head_dim)


class Unscaled(GemmaDrafter):
    def embedded(self, tokens: Sequence[int]) -> torch.Tensor:
        return self.embedding[self.token_ids(tokens)]


class ScaledScores(GemmaDrafter):
    """Scores over the root of the width, as everywhere else; put into the queries."""

    def reset(self) -> None:
        super().reset()
        name = "layers.0.self_attn.q_norm.weight"
        self.w = self.w | {name: self.w[name] / self.shape.head_dim**0.5}


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
    (SwappedHalves, EAGLE1),
    (LatePosition, EAGLE1),
    (ShiftedIds, EAGLE1),
    (NormedOutput, EAGLE1),
    (NormedInput, EAGLE1),
    (NoFcBias, CASES["eagle1-biases"]),
    (NoQueryNorm, CASES["deepspec"]),
    (OtherFeed, CASES["deepspec"]),
    (OtherNorm, MISTRAL),
    (Unscaled, SMALL),
    *((mistake, GEMMA) for mistake in (PlainValues, Silu, Uncapped, NoNormAfter, WholeRope, ScaledScores)),
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
