# SPDX-License-Identifier: MIT
"""SafeAILab/EAGLE, the reference implementation: `midlayer.*`, everything at the top level of the config.

Its own trainer writes no layer ids (so the default applies); ids found at the top level were added by
someone else and may mean either convention.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..config import number
from ..errors import ConfigError
from .base import Dialect, Seen

__all__ = ["EagleRepo", "checked_theta"]


class EagleRepo(Dialect):
    name = "eagle"
    title = "SafeAILab/EAGLE"

    def matches(self, seen: Seen) -> bool:
        return seen.has("midlayer.")

    def flatten(self, seen: Seen) -> dict[str, Any]:
        return checked_theta(seen.config)


def checked_theta(config: Mapping[str, Any]) -> dict[str, Any]:
    """The config, unless the reference code and serving engines read its rope differently: the code builds
    scaled rope with base 10000 whatever the config says.
    """
    scaling = config.get("rope_scaling")
    kind = scaling.get("type", scaling.get("rope_type")) if isinstance(scaling, dict) else None
    if kind == "linear" and number(config, "rope_theta", 10000.0) != 10000.0:
        raise ConfigError(
            "config.json: rope_theta together with linear rope_scaling: SafeAILab/EAGLE trains with theta "
            "10000 in this case, serving engines use rope_theta; set rope_theta to the one the drafter was "
            "trained with, and architectures to Eagle3LlamaForCausalLM if that is not 10000"
        )
    return dict(config)
