# SPDX-License-Identifier: MIT
"""One server for the tests that do not need one of their own, with a store of its own."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from helpers.http_server import TestServer


@pytest.fixture(scope="session")
def store_root(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """An empty store, whatever the user who runs the tests has."""
    home = tmp_path_factory.mktemp("home")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HOME", str(home))
        patch.setenv("EAGLECPP_MODELS", str(home / "models"))
        patch.delenv("OLLAMA_MODELS", raising=False)
        yield home / "models"


@pytest.fixture(scope="session")
def server(store_root: Path) -> Iterator[TestServer]:
    with TestServer(preload="demo") as running:
        yield running
