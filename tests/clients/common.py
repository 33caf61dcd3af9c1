# SPDX-License-Identifier: MIT
"""Functions for the scripts of the clients: they open the model, and replace llama_cpp's class by
eaglecpp's.
"""

from __future__ import annotations

import os
from pathlib import Path

import llama_cpp

import eaglecpp

DEMO = Path(__file__).parents[2] / "examples" / "demo_model" / "pair"
MODEL = os.environ.get("EAGLECPP_CLIENT_MODEL") or str(DEMO / "demo-target.gguf")
DRAFT = os.environ.get("EAGLECPP_CLIENT_DRAFT") or (
    None if "EAGLECPP_CLIENT_MODEL" in os.environ else str(DEMO / "demo-draft.gguf")
)
WITH_DRAFT = {"draft_model": DRAFT} if DRAFT else {}
"""For clients that pass on unknown arguments."""
IS_DEMO = "EAGLECPP_CLIENT_MODEL" not in os.environ
"""True for the demo model, whose answers are known."""


def take_its_place() -> None:
    """Replaces `llama_cpp.Llama` by `eaglecpp.Llama`, for clients that create a `Llama` themselves. Call this
    function before importing the clients.
    """
    llama_cpp.Llama = eaglecpp.Llama


def open_model(**options: object) -> eaglecpp.Llama:
    """Opens the model for a client that takes an opened model."""
    return eaglecpp.Llama(MODEL, draft_model=DRAFT, **{"n_ctx": 1024, "verbose": False, **options})


def done(text: str) -> None:
    """Prints the last line of a script, which names the features that worked."""
    print(f"ok: {text}")
