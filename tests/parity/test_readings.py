# SPDX-License-Identifier: MIT
"""Compares checkpoint variants, which trainers compute differently, with PyTorch. The reference follows the
trainer's convention, and the native drafter is converted as the same variant.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch

from eaglecpp.convert import convert_checkpoint
from eaglecpp.lowlevel import Drafter
from helpers.checkpoints import write_checkpoint
from helpers.random_drafter import DraftShape
from helpers.reference.drafter import Drafter as Reference
from helpers.reference.layers import rms
from helpers.tiny import TinyTarget

from .conftest import exact_options, random_rows
from .steps import CHUNKS, TOLERANCE, compare_steps

PLAIN = DraftShape()


class NormedTwice(Reference):
    """A reference with ModelOpt's first layer, which applies input_layernorm and then hidden_norm to the
    feature.
    """

    def layer(self, i: int, h: torch.Tensor, *rest: Any) -> torch.Tensor:
        if i > 0:
            return super().layer(i, h, *rest)
        # This class computes rms(rms(x; w1); w2). The parent class applies only one norm, and adds the
        # residual.
        self.inner = rms(h, self.w["layers.0.input_layernorm.weight"], self.eps)
        return super().layer(i, h, *rest)

    def concat(self, embedded: torch.Tensor, feature: torch.Tensor) -> torch.Tensor:
        return super().concat(embedded, rms(self.inner, self.w["layers.0.hidden_norm.weight"], self.eps))


class Headless(Reference):
    """A reference for SpecForge 0.2.0 with norm_output false, in which the head reads the same state that is
    fed to the next step.
    """

    def output(self, hidden: torch.Tensor) -> torch.Tensor:
        return hidden


@pytest.fixture
def differences(target: TinyTarget, tmp_path: Path) -> Callable[..., list[float]]:
    """Returns a function `differences(kind, family, shape, edit, *readings)`, which returns the largest
    difference of a logit from the reference under each reading.
    """

    def run(
        kind: type[Reference],
        family: str,
        shape: DraftShape,
        edit: Mapping[str, Any],
        *several: Mapping[str, str],
    ) -> list[float]:
        checkpoint = write_checkpoint(tmp_path / "in", family, shape, edit=edit)
        tables = [torch.from_numpy(target.weights[f"{x}.weight"]) for x in ("model.embed_tokens", "lm_head")]
        rows = random_rows(shape, sum(CHUNKS))
        found = []
        for index, readings in enumerate(several):
            out = tmp_path / f"{index}.gguf"
            convert_checkpoint(
                checkpoint, target.gguf, out, "F32", aux_layers=shape.layers, readings=readings
            )
            own = family not in ("specforge", "modelopt")
            native = Drafter(str(out), exact_options(), None if own else tables[0].numpy())
            reference = kind.load(checkpoint, *tables)
            steps = compare_steps(native, reference, rows, teacher_forced=True)
            found.append(max(step.logits for step in steps))
        return found

    return run


def test_a_head_without_a_norm_is_exact(differences: Callable[..., list[float]]) -> None:
    edit = {"norm_output": False}
    none, normed = differences(Headless, "specforge", PLAIN, edit, {"head_norm": "no"}, {"head_norm": "yes"})
    assert none < TOLERANCE < normed


def test_two_merged_norms_are_closer_than_either_alone(differences: Callable[..., list[float]]) -> None:
    """Tests that merging two norms into one norm is closer to the trainer than either norm alone. The merged
    norm is not exact, because the size of a row after the first norm's weights varies between rows. The
    variation is largest for narrow rows, like the rows of 64 values here.
    """
    twice, once = differences(
        NormedTwice, "modelopt", PLAIN, {}, {"feature_norm": "twice"}, {"feature_norm": "once"}
    )
    assert twice < once / 2
