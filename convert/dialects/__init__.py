# SPDX-License-Identifier: MIT
"""Registry of dialects, and the choice of a checkpoint's dialect.

Dialects are tried in order, and the dialect with the most reliable mark comes first. Tensors and nested
configs are more reliable marks than `architectures`, because several exporters leave this key at the value of
a template.
"""

from __future__ import annotations

from ..errors import UnsupportedError
from . import block, eagle
from .base import IDS, Dialect, Seen, canonical_name
from .refused import refuse

__all__ = ["DIALECTS", "IDS", "Dialect", "Seen", "canonical_name", "recognise"]

DIALECTS: tuple[Dialect, ...] = (
    block.SpeculatorsBlock(), block.DeepSpecBlock(), block.DeepSpecGemmaBlock(), block.SpecForgeBlock(),
    block.Liquid(), block.Muse(), block.Laguna(), block.ZLab(), block.BlockFile(), eagle.MistralEagle(),
    eagle.Eagle1(), eagle.DeepSpec(), eagle.DeepSpecGemma(), eagle.Speculators(), eagle.VllmNative(),
    eagle.Automodel(), eagle.ModelOpt(), eagle.TorchSpec(), eagle.SpecForge(), eagle.EagleRepo(),
)  # fmt: skip


_CLASSES = frozenset(name for dialect in DIALECTS for name in dialect.classes)
_BLOCK_CLASSES = frozenset(name for dialect in DIALECTS if dialect.is_block for name in dialect.classes)


def recognise(seen: Seen) -> Dialect:
    """Returns the dialect of a checkpoint. Raises UnsupportedError for an unsupported or unknown kind of
    checkpoint.
    """
    refuse(seen, _CLASSES, _BLOCK_CLASSES)
    # Every drafter has one of these three tensors, and no ordinary model has any of them. Other missing
    # tensors are reported later.
    marks = ("fc.weight", "encoder.fc.weight", "layers.0.hidden_norm.weight")
    if any(seen.shape(mark) is not None for mark in marks):
        for dialect in DIALECTS:
            if dialect.matches(seen):
                return dialect
        if seen.has("layers.0."):
            raise UnsupportedError(
                "the tensors layers.0.* are of an EAGLE-3 drafter, but config.json does not show which "
                "program wrote it: expected transformer_layer_config, eagle_config, or architectures "
                '["Eagle3LlamaForCausalLM"]. If vLLM runs this drafter, set architectures to that'
            )
    tried = ", ".join(dialect.title for dialect in DIALECTS)
    sample = ", ".join(sorted(seen.shapes)[:4]) or "none"
    raise UnsupportedError(
        "not an EAGLE or block drafter: expected tensors such as fc.weight and "
        f"midlayer.self_attn.q_proj.weight or layers.0.self_attn.q_proj.weight, found {len(seen.shapes)} "
        f"tensors ({sample}, ...). Known kinds of drafters: {tried}"
    )
