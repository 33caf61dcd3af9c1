# SPDX-License-Identifier: MIT
"""What the scripts of the clients share: the model, and eaglecpp in the place of llama_cpp's class."""

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
"""For clients that hand arguments on which they do not know."""
IS_DEMO = "EAGLECPP_CLIENT_MODEL" not in os.environ
"""Whether answers are known."""


def take_its_place() -> None:
    """For clients that make their own `llama_cpp.Llama`: before they are imported."""
    llama_cpp.Llama = eaglecpp.Llama


def open_model(**options: object) -> eaglecpp.Llama:
    """For clients that are given one."""
    return eaglecpp.Llama(MODEL, draft_model=DRAFT, **{"n_ctx": 1024, "verbose": False, **options})


def done(text: str) -> None:
    """The last line: what was shown."""
    print(f"ok: {text}")
