# SPDX-License-Identifier: MIT
"""SafeAILab/EAGLE, the reference implementation: `midlayer.*`, everything at the top level of the config.

Its own trainer writes no layer ids (so the default applies); ids found at the top level were added by
someone else and may mean either convention. The trainer (eagle/traineagle3/cnets.py) builds its rope
without the config's theta, while the inference code beside it (eagle/model/cnets.py) reads it, except for
scaled rope.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..readings import Choice, ignored_theta
from .base import Dialect, Seen


class EagleRepo(Dialect):
    name = "eagle"
    title = "SafeAILab/EAGLE"
    classes = ("", "LlamaForCausalLM", "LlamaForCausalLMEagle3")

    def matches(self, seen: Seen) -> bool:
        return seen.has("midlayer.")

    def choices(self, seen: Seen, config: Mapping[str, Any]) -> tuple[Choice, ...]:
        plain = ignored_theta(config, "its trainer for EAGLE-3 rotates", ("default",))
        return plain or theta_of_scaled_rope(config)


def theta_of_scaled_rope(config: Mapping[str, Any]) -> tuple[Choice, ...]:
    """Trainer and inference of the reference code agree on 10000 here, so that no default is safe."""
    return ignored_theta(
        config, "with linear rope_scaling, SafeAILab/EAGLE rotates", ("linear",), is_open=True
    )
