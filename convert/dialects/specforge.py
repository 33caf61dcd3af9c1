# SPDX-License-Identifier: MIT
"""sgl-project/SpecForge: `midlayer.*`, ids (if any) in `eagle_config`, counted after the block; no embeddings
saved.

Its `norm_output` changed meaning (SpecForge#879, 2026-09-15) and no field of a checkpoint tells the two
apart, so the key is taken at its present meaning and the user is told about `--feed pre`.
"""

from __future__ import annotations

from typing import Any

from ..errors import ConfigError
from ..layer_ids import Convention
from .base import Dialect, Seen

__all__ = ["SpecForge"]


class SpecForge(Dialect):
    name = "specforge"
    title = "SpecForge"

    def matches(self, seen: Seen) -> bool:
        switches = {"eagle_config", "fc_norm", "norm_output"}
        if seen.architecture == "PEagleDraftModel":
            return True
        return seen.has("midlayer.") and any(seen.config.get(key) is not None for key in switches)

    def flatten(self, seen: Seen) -> dict[str, Any]:
        if seen.architecture == "PEagleDraftModel" and seen.config.get("norm_before_residual") is None:
            raise ConfigError(
                "config.json: norm_before_residual: expected true or false, found nothing; SpecForge "
                "takes it from the settings of the run (--norm-before-residual, in newer versions "
                "training.norm_before_residual) and does not write it. Add the value the drafter was trained "
                "with"
            )
        return dict(seen.config)

    def convention(self, seen: Seen, ids_key: str) -> Convention | None:
        return "post" if ids_key == "eagle_config" else None

    def notes(self, seen: Seen) -> tuple[str, ...]:
        if seen.config.get("norm_output") is not True:
            return ()
        return (
            "norm_output: true is read as the EAGLE 3.1 post-norm feed. SpecForge checkpoints trained "
            "between "
            "2026-07-19 and 2026-09-15 may mean the pre-norm feed; if acceptance drops from draft position "
            "2 on, "
            "convert again with --feed pre",
        )
