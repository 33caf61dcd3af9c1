# SPDX-License-Identifier: MIT
"""P-EAGLE: drafts of all depths in one pass.

The last row with real features is followed by rows whose feature and token are not known yet. These rows have
the learnt `mask_hidden` as their feature, which passes through the same norms and fc. Their token is a mask
token with an ordinary embedding. Positions continue, attention is causal, and each row drafts one more token
(vllm-project/vllm#32887: vllm/v1/spec_decode/; arXiv 2602.01469). Everything else is as in EAGLE-3.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from .config import integer, nested, wrong
from .errors import ConfigError
from .spec import ParallelDraft

MASK_FEATURE = "mask_hidden"
MASK_TOKEN_KEYS = ("pard_token", "ptd_token_id", "mask_token_id")
"""Config keys of the mask token in vLLM, speculators and Automodel."""
_DEPTH_KEYS = ("para_depths", "num_depths")
_DEPTH = 8
"""Default depth of training in speculators and SpecForge. The depth limits the number of drafts and does not
change the arithmetic.
"""


def parse_parallel(config: Mapping[str, Any], vocab: int) -> tuple[ParallelDraft, str]:
    """Returns the mask token and the maximum number of drafts of a checkpoint with `mask_hidden`, and a note
    for the user (or ""). Raises ConfigError.
    """
    tokens = {key: _token(config[key], key) for key in MASK_TOKEN_KEYS if config.get(key) is not None}
    if len(set(tokens.values())) != 1:
        raise ConfigError(
            f"config.json: expected one mask token id in {', '.join(MASK_TOKEN_KEYS)}, found "
            f"{tokens or 'none'}"
        )
    (token,) = set(tokens.values())
    if not 0 <= token < vocab:
        raise wrong(next(iter(tokens)), f"a token id below {vocab}", token)
    depths = [integer(config, key) for key in _DEPTH_KEYS if config.get(key) is not None]
    depths += proposed_tokens(config)
    if not depths:
        return ParallelDraft(
            token, _DEPTH
        ), f"config.json does not give the number of tokens drafted at once; using at most {_DEPTH}"
    return ParallelDraft(token, depths[0]), ""


def _token(value: Any, key: str) -> int:
    if isinstance(value, bool) or not isinstance(value, (int, str)) or not str(value).isdigit():
        raise wrong(key, "a token id", value)
    return int(value)


def proposed_tokens(config: Mapping[str, Any]) -> list[int]:
    """Returns the number of drafted tokens of each proposal method in a speculators config, in the config's
    order.
    """
    methods = nested(config, "speculators_config").get("proposal_methods")
    return [
        integer(method, "speculative_tokens", where="config.json: speculators_config.proposal_methods: ")
        for method in (methods if isinstance(methods, list) else [])
        if isinstance(method, Mapping) and method.get("speculative_tokens") is not None
    ]
