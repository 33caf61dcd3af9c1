# SPDX-License-Identifier: MIT
"""sgl-project/SpecForge: `midlayer.*`, ids (if any) in `eagle_config`, counted after the block; no embeddings
saved.

Two things changed their meaning and no field of a checkpoint tells (sgl-project/SpecForge:
specforge/modeling/draft/llama3_eagle.py). `norm_output` came on 2026-07-19 and is in release 0.2.0: there
it says whether the head reads the normed state, the default is true, and the state before the norm is fed
back in every case. Since SpecForge#879 (2026-09-15) it is EAGLE 3.1's switch, as engines read it. And until
2025-10-30 rope was built without the config's theta, until 2025-11-12 without llama3's scaling.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..errors import ConfigError
from ..readings import Choice, ignored_theta
from ..rope import rope_kind
from .base import Dialect, Seen


class SpecForge(Dialect):
    name = "specforge"
    title = "SpecForge"
    conventions = (None, "post")
    classes = ("PEagleDraftModel", "DeepseekV3ForCausalLMEagle3")

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

    def choices(self, seen: Seen, config: Mapping[str, Any]) -> tuple[Choice, ...]:
        if seen.architecture == "PEagleDraftModel":
            return ()
        switch = config.get("norm_output")
        if switch is True:
            why = (
                "norm_output: true is EAGLE 3.1's switch since SpecForge#879 (2026-09-15), but means the "
                "state before the norm in SpecForge 0.2.0 and in its sources from 2026-07-19 on"
            )
            return (Choice("feed", ("post", "pre"), why),)
        if switch is False:
            why = (
                "norm_output: false means a head that reads the state without the norm in SpecForge 0.2.0 "
                "and in its sources from 2026-07-19 to 2026-09-15"
            )
            return (Choice("head_norm", ("yes", "no"), why),)
        if seen.is_latent_class or config.get("fc_norm") is not None:  # younger than both mends
            return ()
        theta = ignored_theta(config, "SpecForge before 2025-10-30 trains", ("default", "linear", "llama3"))
        if rope_kind(config) != "llama3":
            return theta
        why = "SpecForge before 2025-11-12 trains without llama3's scaling"
        return (*theta, Choice("rope_scaling", ("config", "none"), why))
