# SPDX-License-Identifier: MIT
"""Builds the `BlockSpec` of a block drafter from its flattened config and its tensors.

A block drafter has Qwen3's (or Gemma 4's) layers. Unlike in Qwen3, the keys and values of the text are
computed from the target's features, and each row of a block gives a draft (z-lab/dflash,
deepseek-ai/DeepSpec; vLLM: model_executor/models/qwen3_dflash.py, qwen3_dflash2.py, qwen3_dspark.py).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from .config import flag, integer, number, positive, wrong
from .errors import ConfigError, TensorError, UnsupportedError
from .spec import BlockSpec, GemmaLayer
from .tensor import TensorSource, computed

CONFIDENCE = "confidence_head.proj.weight"
MARKOV = "markov_head.markov_w1.weight"
SELECTOR = "candidate_selector.hidden_projection.weight"
SINKS = ".self_attn.sinks"
GATE = ".self_attn.g_proj.weight"
CAUSAL = ("is_causal", "causal", "dflash_query_causal")
"""Config keys that set causal attention for all layers: each row of a block attends only to earlier rows."""
_MOST, _MOST_CANDIDATES = 64, 1024
"""Maximum block size and number of candidates that the engine supports (native/draft/draft_file.cpp)."""

Shapes = Mapping[str, tuple[int, ...]]


def parse_block(
    config: Mapping[str, Any],
    shapes: Shapes,
    sliding: Sequence[bool],
    vocab: int,
    gemma: GemmaLayer | None,
) -> BlockSpec:
    """Returns the `BlockSpec` of a drafter's flattened config. Raises ConfigError, UnsupportedError.

    config: the flattened config, to which the dialect has added `anchor_first`; sliding: for each layer, True
        if it has a sliding window
    """
    size = integer(config, "block_size")
    anchor_first = flag(config, "anchor_first")
    if not 2 - anchor_first <= size <= _MOST:
        raise wrong("block_size", f"2 to {_MOST} positions", size)
    if any(sliding) and integer(config, "sliding_window") < size:
        raise UnsupportedError(
            f"config.json: sliding_window: expected at least {size}, the block size, found "
            f"{config['sliding_window']}, because trainers apply a window only to the text, but engines also "
            "to the block"
        )
    rank = _rank(config, shapes)
    for key in ("enable_confidence_head", "use_confidence_head"):
        _agree(config, key, CONFIDENCE in shapes, CONFIDENCE)
    _agree(config, "attention_sink_bias", any(name.endswith(SINKS) for name in shapes), f"layers.*{SINKS}")
    hidden = integer(config, "hidden_size")
    scale = positive(config, "input_embedding_scale", 1.0)
    if SELECTOR not in shapes and any(config.get(key) for key in ("selector_rank", "selector_top_k")):
        raise wrong("selector_rank", f"a tensor {SELECTOR}", None)
    conv, selector = None, None
    if SELECTOR in shapes:
        conv = integer(config, "conv_kernel_size"), integer(config, "conv_group_size")
        selector = integer(config, "selector_rank"), integer(config, "selector_top_k")
        if selector[1] > min(vocab, _MOST_CANDIDATES):
            raise wrong("selector_top_k", f"at most {min(vocab, _MOST_CANDIDATES)}", selector[1])
        if hidden % conv[1] or conv[0] > size:
            raise ConfigError(
                f"config.json: conv_kernel_size {conv[0]} must be at most the block size {size}, and "
                f"conv_group_size {conv[1]} must divide hidden_size {hidden}"
            )
        if rank or anchor_first or "d2t" in shapes or "t2d" in shapes:
            raise UnsupportedError(
                "DFlash2 drafters with a Markov head, a draft vocabulary or a draft at the anchor's "
                "position are not supported: no known trainer produces them"
            )
    return BlockSpec(
        size=size,
        anchor_first=anchor_first,
        mask_token=_mask_token(config, vocab),
        causal=_causal(config, sliding),
        markov_rank=rank,
        confidence=CONFIDENCE in shapes,
        conv=conv,
        selector=selector,
        embedding_scale=hidden**0.5 if gemma else scale,
        softcap=number(config, "final_logit_softcapping", 0.0),
        value_scale=positive(config, "attention_value_scale", 1.0),
        target_head="embed_tokens.weight" in shapes
        and "lm_head.weight" not in shapes
        and not flag(config, "tie_word_embeddings"),
        gated=any(name.endswith(GATE) for name in shapes),
    )


def _mask_token(config: Mapping[str, Any], vocab: int) -> int:
    token = config.get("mask_token_id")
    if isinstance(token, bool) or not isinstance(token, int) or not 0 <= token < vocab:
        raise wrong("mask_token_id", f"a token id below {vocab}", token)
    return token


def _causal(config: Mapping[str, Any], sliding: Sequence[bool]) -> tuple[bool, ...]:
    """Returns for each layer True if its attention is causal. If the config has no key for all layers
    (`CAUSAL`), layers with a sliding window are causal, as in z-lab's code, SpecForge and vLLM. With the key
    sliding_window_non_causal of speculators, these layers are not causal.
    """
    for key in CAUSAL:
        if config.get(key) is not None:
            return (flag(config, key),) * len(sliding)
    return tuple(slides and not flag(config, "sliding_window_non_causal") for slides in sliding)


def _rank(config: Mapping[str, Any], shapes: Shapes) -> int:
    """Returns the rank of the Markov head; 0 = no head. Raises ConfigError if the config states another
    rank.
    """
    rank = (shapes.get(MARKOV) or (0, 0))[-1]
    for key in ("markov_rank", "dspark_markov_rank"):
        stated = config.get(key)
        if stated is not None and stated != rank:
            raise wrong(key, str(rank or f"0, because the checkpoint has no tensor {MARKOV}"), stated)
    return rank


def _agree(config: Mapping[str, Any], key: str, has: bool, tensor: str) -> None:
    """Raises ConfigError if a switch in the config is on without its tensors, or off with its tensors."""
    if config.get(key) is not None and flag(config, key) != has:
        raise ConfigError(
            f"config.json: {key} is {not has}, but the checkpoint has {'a' if has else 'no'} tensor {tensor}"
        )


def with_markov_part(sources: Mapping[str, TensorSource], hidden: int) -> dict[str, TensorSource]:
    """Pads a confidence head that reads only the state. Its weights for the row of the Markov head become
    zeros.
    """
    head, markov = sources.get(CONFIDENCE), sources.get(MARKOV)
    if head is None or markov is None or head.shape != (1, hidden):
        return dict(sources)
    rank = markov.shape[-1]

    def rows(start: int, stop: int) -> npt.NDArray[Any]:
        return np.pad(head.read_rows(start, stop), ((0, 0), (0, rank)))

    return {**sources, CONFIDENCE: computed(head, rows, (1, hidden + rank))}


def default_layers(n_target: int, n_layers: int) -> list[int]:
    """Returns the default layer ids of z-lab and SpecForge. An id is the number of the target's block whose
    output the drafter reads.
    """
    if n_target < 5:
        raise TensorError(f"config.json: num_target_layers: expected at least 5, found {n_target}")
    if n_layers == 1:
        return [n_target // 2]
    return [round(1 + i * (n_target - 4) / (n_layers - 1)) for i in range(n_layers)]
