# SPDX-License-Identifier: MIT
"""What a dialect is: one layout in which a trainer or exporter writes EAGLE drafters.

A dialect recognises a checkpoint, flattens its config and knows how its project counts layers. Everything
else (shapes, switches, checks) is common, because all dialects hold the same drafter once names are
canonical: `layers.{i}.*`, `fc.weight`, `norm.weight` and so on, as listed in `keys.TENSORS`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ..config import nested
from ..latent import has_latent
from ..readings import Choice, Convention
from ..tensor import TensorSource

_AUX_NORMS = {"aux_norm_low": 0, "aux_norm_mid": 1, "aux_norm_high": 2}  # SGLang's older names
_NEVER_USED = re.compile(r"(^|\.)(rotary_emb\.inv_freq|verifier_norm\..*|verifier_lm_head\..*)$")


@dataclass(frozen=True)
class Seen:
    """A checkpoint as opened: its config and the shape of every tensor under its original name."""

    config: Mapping[str, Any]
    shapes: Mapping[str, tuple[int, ...]]

    @classmethod
    def of(cls, config: Mapping[str, Any], tensors: Mapping[str, TensorSource]) -> Seen:
        return cls(config, {name: source.shape for name, source in tensors.items()})

    @property
    def architecture(self) -> str:
        """`architectures[0]`, or an empty string."""
        names = self.config.get("architectures")
        return str(names[0]) if isinstance(names, list) and names else ""

    @property
    def is_latent_class(self) -> bool:
        """Whether the class of `architectures` has multi-head latent attention."""
        return (
            re.fullmatch(r"Eagle3DeepseekV[23]ForCausalLM|DeepseekV3ForCausalLMEagle3", self.architecture)
            is not None
        )

    @property
    def has_latent_tensors(self) -> bool:
        return has_latent(self.shapes)

    @property
    def eagle_config(self) -> Mapping[str, Any]:
        """The nested `eagle_config`; empty when absent. Raises ConfigError when it is not an object."""
        return nested(self.config, "eagle_config")

    def has(self, prefix: str) -> bool:
        """Whether a tensor name starts with the prefix, ignoring a leading `model.`."""
        return any(name.removeprefix("model.").startswith(prefix) for name in self.shapes)

    def shape(self, canonical: str) -> tuple[int, ...] | None:
        """Shape of a tensor by its canonical name."""
        return next((s for name, s in self.shapes.items() if canonical_name(name) == canonical), None)


class Dialect:
    """Base of all dialects. `name` is written to `eaglecpp.family`, `title` is for people."""

    name = ""
    title = ""
    classes: tuple[str, ...] = ()
    """Of `architectures`, whose drafters this arithmetic is."""
    fuses_embedding = False
    """EAGLE-1 and 2, see `DraftSpec`."""
    reads_files = False
    """Whether the checkpoint is a GGUF."""
    is_block = False
    """DFlash, DSpark, DFlash2, see `BlockSpec`."""
    activations: tuple[str | None, ...] = (None, "swish", "silu")
    """Values of hidden_act, the one to name last."""
    is_gemma = False
    """Gemma 4's own layer."""
    conventions: tuple[Convention | None, Convention | None] = (None, None)
    """What explicit aux layer ids mean in `config` and in `eagle_config`; None where that cannot be known."""

    def matches(self, seen: Seen) -> bool:
        """Whether the checkpoint is in this layout. Dialects are asked in the order of the registry."""
        return seen.architecture in self.classes

    def flatten(self, seen: Seen) -> dict[str, Any]:
        """The config with every key the converter reads at the top level. Raises ConfigError."""
        return dict(seen.config)

    def convention(self, seen: Seen, ids_key: str) -> Convention | None:
        """As `conventions` says of a place, or None for a checkpoint that it does not hold for."""
        return self.conventions[ids_key == "eagle_config"]

    def choices(self, seen: Seen, config: Mapping[str, Any]) -> tuple[Choice, ...]:
        """What the checkpoint leaves open, beside the layer ids. config: flattened."""
        return ()

    def canonical(self, name: str) -> str | None:
        """Canonical name of a tensor, or None for one that inference never uses."""
        return canonical_name(name)

    def check(self, tensors: Mapping[str, TensorSource]) -> None:
        """Raises UnsupportedError for values that change the arithmetic. tensors: by their own names."""

    def adapted(
        self, sources: Mapping[str, TensorSource], config: Mapping[str, Any]
    ) -> dict[str, TensorSource]:
        """The tensors as other layouts have them. sources: by canonical name; config: flattened."""
        return dict(sources)


def canonical_name(name: str) -> str | None:
    """Canonical name of a checkpoint tensor, or None for one that inference never uses."""
    if _NEVER_USED.search(name):
        return None
    name = name.removeprefix("model.")
    head, _, rest = name.partition(".")
    if head in _AUX_NORMS:
        return f"fc_norm.{_AUX_NORMS[head]}.{rest}"
    if head == "midlayer":
        return f"layers.0.{rest}"
    return name
