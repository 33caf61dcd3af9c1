# SPDX-License-Identifier: MIT
"""Base of dialects. A dialect is a layout in which a trainer or exporter writes EAGLE drafters.

A dialect recognises a checkpoint, flattens its config, and has the convention of its project for layer ids.
Once the tensors have canonical names, all dialects describe the same drafter, so they share shapes, switches
and checks. Canonical names are `layers.{i}.*`, `fc.weight`, `norm.weight` and so on, as listed in
`keys.TENSORS`.
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

IDS = "eagle_aux_hidden_state_layer_ids"
"""Config key of layer ids, at the top level and in `eagle_config`."""
_AUX_NORMS = {"aux_norm_low": 0, "aux_norm_mid": 1, "aux_norm_high": 2}  # older names of tensors in SGLang
_NEVER_USED = re.compile(r"(^|\.)(rotary_emb\.inv_freq|verifier_norm\..*|verifier_lm_head\..*)$")


@dataclass(frozen=True)
class Seen:
    """An opened checkpoint: its config, and the shape of every tensor by the tensor's original name."""

    config: Mapping[str, Any]
    shapes: Mapping[str, tuple[int, ...]]

    @classmethod
    def of(cls, config: Mapping[str, Any], tensors: Mapping[str, TensorSource]) -> Seen:
        return cls(config, {name: source.shape for name, source in tensors.items()})

    @property
    def architecture(self) -> str:
        """`architectures[0]`, or ""."""
        names = self.config.get("architectures")
        return str(names[0]) if isinstance(names, list) and names else ""

    @property
    def is_latent_class(self) -> bool:
        """True if the class in `architectures` has multi-head latent attention."""
        return (
            re.fullmatch(r"Eagle3DeepseekV[23]ForCausalLM|DeepseekV3ForCausalLMEagle3", self.architecture)
            is not None
        )

    @property
    def has_latent_tensors(self) -> bool:
        return has_latent(self.shapes)

    @property
    def eagle_config(self) -> Mapping[str, Any]:
        """The object `eagle_config` in the config; {} if absent. Raises ConfigError if `eagle_config` is not
        an object.
        """
        return nested(self.config, "eagle_config")

    def has(self, prefix: str) -> bool:
        """Returns True if a tensor name starts with the prefix, ignoring a leading `model.`."""
        return any(name.removeprefix("model.").startswith(prefix) for name in self.shapes)

    def shape(self, canonical: str) -> tuple[int, ...] | None:
        """Returns the shape of the tensor with this canonical name."""
        return next((s for name, s in self.shapes.items() if canonical_name(name) == canonical), None)


class Dialect:
    """Base class of all dialects. `name` is written to the key `eaglecpp.family`; `title` is shown to
    users.
    """

    name = ""
    title = ""
    classes: tuple[str, ...] = ()
    """Values of `architectures` for drafters with the arithmetic of this dialect."""
    fuses_embedding = False
    """True for EAGLE-1 and 2, see `DraftSpec.fuses_embedding`."""
    reads_files = False
    """True if the checkpoint is a GGUF."""
    is_block = False
    """True for block drafters (DFlash, DSpark, DFlash2), see `BlockSpec`."""
    activations: tuple[str | None, ...] = (None, "swish", "silu")
    """Accepted values of hidden_act. Error messages name the last value."""
    is_gemma = False
    """True if the drafter has Gemma 4's layer."""
    conventions: tuple[Convention | None, Convention | None] = (None, None)
    """Conventions of explicit aux layer ids at the config's top level and in `eagle_config`; None =
    unknown.
    """

    def matches(self, seen: Seen) -> bool:
        """Returns True if the checkpoint has this layout. The registry tries the dialects in order."""
        return seen.architecture in self.classes

    def flatten(self, seen: Seen) -> dict[str, Any]:
        """Returns the config with all keys that the converter reads at the top level. Raises ConfigError."""
        return dict(seen.config)

    def convention(self, seen: Seen, ids_key: str) -> Convention | None:
        """Returns the convention of the layer ids in a place of the config; None if the checkpoint does not
        identify the convention.
        """
        return self.conventions[ids_key == "eagle_config"]

    def choices(self, seen: Seen, config: Mapping[str, Any]) -> tuple[Choice, ...]:
        """Returns the checkpoint's ambiguities, except layer ids. config: the flattened config."""
        return ()

    def canonical(self, name: str) -> str | None:
        """Returns the canonical name of a tensor, or None for a tensor that inference never uses."""
        return canonical_name(name)

    def check(self, tensors: Mapping[str, TensorSource]) -> None:
        """Raises UnsupportedError for config values that change the arithmetic. tensors: shapes by original
        name.
        """

    def adapted(
        self, sources: Mapping[str, TensorSource], config: Mapping[str, Any]
    ) -> dict[str, TensorSource]:
        """Converts the tensors to the common layout. sources: tensors by canonical name; config: the
        flattened config.
        """
        return dict(sources)


def canonical_name(name: str) -> str | None:
    """Returns the canonical name of a tensor, or None for a tensor that inference never uses."""
    if _NEVER_USED.search(name):
        return None
    name = name.removeprefix("model.")
    head, _, rest = name.partition(".")
    if head in _AUX_NORMS:
        return f"fc_norm.{_AUX_NORMS[head]}.{rest}"
    if head == "midlayer":
        return f"layers.0.{rest}"
    return name
