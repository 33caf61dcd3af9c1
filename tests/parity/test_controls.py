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
from torch.nn import functional as F

from helpers.random_drafter import DraftShape
from helpers.reference.drafter import Drafter, Switches
from helpers.reference.gemma import GemmaDrafter
from helpers.reference.layers import LatentAttention, Rope, rms

from .cases import CASES, EAGLE1, EAGLE3, EAGLE31, GEMMA, LATENT31, MISTRAL, SMALL, TOUCHY
from .conftest import Both, random_rows
from .steps import CHUNKS, TOLERANCE, compare_steps


def mistaken(base: type[Any], **methods: Callable[..., Any]) -> type[Any]:
    """The class with these methods in place of its own."""
    return type("Mistaken", (base,), methods)


def with_fields(**fields: Any) -> type[Drafter]:
    """A drafter with these fields, whatever its checkpoint says."""

    def reset(self: Drafter) -> None:
        Drafter.reset(self)
        vars(self).update(fields)

    return mistaken(Drafter, reset=reset)


def without(ending: str) -> type[Drafter]:
    """Tensors left out, as by an engine that does not know them."""

    def reset(self: Drafter) -> None:
        Drafter.reset(self)
        self.w = {name: value for name, value in self.w.items() if not name.endswith(ending)}

    return mistaken(Drafter, reset=reset)


def latent(**methods: Callable[..., Any]) -> type[Drafter]:
    """A drafter with another latent attention."""
    kind = mistaken(LatentAttention, **methods)
    return mistaken(Drafter, latent_attention=lambda self, config: kind(config))


def latent_with(change: Callable[[LatentAttention], object]) -> type[Drafter]:
    """The same, made otherwise."""

    def made(self: LatentAttention, config: dict[str, Any]) -> None:
        LatentAttention.__init__(self, config)
        change(self)

    return latent(__init__=made)


def shifted_ids(self: Drafter, tokens: Sequence[int]) -> torch.Tensor:
    shifted = [getattr(self, "last", 0), *tokens][:-1]
    self.last = tokens[-1]  # type: ignore[attr-defined]
    return Drafter.token_ids(self, shifted)


def scaled_scores(self: GemmaDrafter) -> None:
    """Over the root of the width, as everywhere else; put into the queries."""
    GemmaDrafter.reset(self)
    name = "layers.0.self_attn.q_norm.weight"
    self.w = self.w | {name: self.w[name] / self.shape.head_dim**0.5}


def normed(self: Drafter, hidden: torch.Tensor) -> torch.Tensor:
    return rms(hidden, torch.ones(hidden.shape[-1]), self.eps)


NO_WINDOW = with_fields(switches=Switches(False, False, windows=(0,)))
SWAPPED_HALVES = mistaken(Drafter, concat=lambda self, embedded, feature: torch.cat([feature, embedded], -1))
LATE_POSITION = mistaken(Drafter, place=lambda self, depth: Drafter.place(self, depth) + 1)
OTHER_FEED = mistaken(Drafter, fed=lambda self, hidden, out: hidden if self.switches.norm_output else out)
OTHER_MAGNITUDE = latent_with(lambda it: setattr(it.rope, "magnitude", 1 + it.magnify))
# what is wrong, the drafter that has it wrong, where that shows
CONTROLS: list[tuple[str, type[Drafter], DraftShape]] = [
    *(("feature before embedding", SWAPPED_HALVES, shape) for shape in (EAGLE3, EAGLE31, EAGLE1, LATENT31)),
    *(
        ("draft rows one position too far", LATE_POSITION, shape)
        for shape in (EAGLE3, CASES["rope-llama3"], EAGLE1, LATENT31)
    ),
    *(("the other state is fed", OTHER_FEED, shape) for shape in (EAGLE3, EAGLE31, CASES["deepspec"])),
    *(
        ("the token at the feature's position", mistaken(Drafter, token_ids=shifted_ids), shape)
        for shape in (EAGLE3, EAGLE1)
    ),
    ("eps 1e-6 for 1e-5", with_fields(eps=1e-6), TOUCHY),
    ("fc_norm left out", with_fields(n_fc_norms=0), EAGLE31),
    ("full attention for a window", NO_WINDOW, CASES["sliding-window"]),
    ("full attention for a latent window", NO_WINDOW, CASES["latent-window"]),
    # engines made for Llama have one (vllm#11672)
    ("EAGLE-1 with a norm before the head", mistaken(Drafter, output=normed), EAGLE1),
    ("EAGLE-1 with a norm before attention", mistaken(Drafter, first_input=normed), EAGLE1),
    ("fc without its bias", without("fc.bias"), CASES["eagle1-biases"]),
    ("queries without their norm", without("self_attn.q_norm.weight"), CASES["deepspec"]),
    ("Mistral's fed before its norm", mistaken(Drafter, fed=lambda self, hidden, out: hidden), MISTRAL),
    (
        "Gemma's embedding unscaled",
        mistaken(GemmaDrafter, embedded=lambda self, tokens: self.embedding[self.token_ids(tokens)]),
        SMALL,
    ),
    ("Gemma's values unnormed", mistaken(GemmaDrafter, values=lambda self, v: v), GEMMA),
    ("Gemma with silu", mistaken(GemmaDrafter, activation=lambda self, gate: F.silu(gate)), GEMMA),
    ("Gemma's logits uncapped", mistaken(GemmaDrafter, capped=lambda self, logits: logits), GEMMA),
    ("Gemma without norms after", mistaken(GemmaDrafter, after=lambda self, x, name: x), GEMMA),
    (
        "all of Gemma's head rotated",
        mistaken(
            GemmaDrafter,
            turning=lambda self, rope: Rope({"rope_theta": rope["rope_theta"]}, self.shape.head_dim),
        ),
        GEMMA,
    ),
    ("Gemma's scores scaled", mistaken(GemmaDrafter, reset=scaled_scores), GEMMA),
    ("latent, halves rotated", latent(rotate=lambda self, x, at: self.rope(x, at)), LATENT31),
    ("latent, not rotated, as Kimi K3 itself", latent(rotate=lambda self, x, at: x), LATENT31),
    (
        "latent, scores without yarn's share",
        latent_with(lambda it: setattr(it, "scale", (it.nope + it.rotated) ** -0.5)),
        LATENT31,
    ),
    ("latent, cos and sin as Llama's yarn", OTHER_MAGNITUDE, LATENT31),
    ("latent, uneven, cos and sin as Llama's yarn", OTHER_MAGNITUDE, CASES["latent-uneven-yarn"]),
    ("latent, kv_a_layernorm left out", latent(normed=lambda self, latent, weight: latent), LATENT31),
    (
        "latent, each head's value before its key",
        latent(split_head=lambda self, kv: (kv[..., self.value :], kv[..., : self.value])),
        LATENT31,
    ),
]


@pytest.mark.parametrize(
    ("mistake", "shape"), [row[1:] for row in CONTROLS], ids=[row[0] for row in CONTROLS]
)
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
