# SPDX-License-Identifier: MIT
"""The defaults of `run` for options that neither model nor user sets: Ollama's, and one of ours."""

from __future__ import annotations

from typing import Any

from eaglecpp.modelfile.parameters import engine_options

__all__ = ["N_BATCH", "run_defaults"]

N_BATCH = 512
"""Tokens per prefill slice. Ctrl+C and the display of progress wait for a slice to end; longer ones are no
faster, because a compute graph takes 512 tokens anyway.
"""


def run_defaults() -> dict[str, Any]:
    """Values by "group.field" of `eaglecpp.options`; what is absent is the engine's own default."""
    return {**engine_options({}), "model.n_batch": N_BATCH}
