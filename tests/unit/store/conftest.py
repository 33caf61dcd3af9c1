# SPDX-License-Identifier: MIT
"""Fixtures for tests of stores: a separate home folder, a tiny pair, an Ollama store, a Hub."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from eaglecpp.store import Stores, packaged
from helpers.hub_server import HubServer
from helpers.stores import OllamaModel, Tiny, put_into_ollama


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Tiny:
    from helpers.tiny import TargetSpec, converted_pair, make_target

    directory = tmp_path_factory.mktemp("tiny")
    pair = converted_pair(directory / "pair")
    other = make_target(directory / "other", TargetSpec(n_layers=5, n_embd=32, head_dim=16)).gguf
    return Tiny(pair.pair.target.gguf, pair.draft, pair.pair.checkpoint, other)


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Creates an empty home, so that no test sees the user's models, caches and tokens."""
    folder = tmp_path / "home"
    folder.mkdir()
    own = ("EAGLECPP_MODELS", "EAGLECPP_HOME", "OLLAMA_MODELS", "XDG_DATA_HOME")
    for name in (*own, "HF_TOKEN", "HF_HUB_OFFLINE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(folder))
    monkeypatch.setenv("LLAMA_CACHE", str(folder / "cache"))
    # The requirement names a package that is never installed, in case this environment has the real package.
    monkeypatch.setattr(packaged, "REQUIREMENT", "not-a-package==1")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(folder / "hf"))
    monkeypatch.setattr("huggingface_hub.constants.HF_TOKEN_PATH", str(folder / "token"))
    return folder


@pytest.fixture
def root(home: Path) -> Path:
    """The folder of eaglecpp's store."""
    return home / ".local" / "share" / "eaglecpp" / "models"


@pytest.fixture
def stores(home: Path) -> Stores:
    return Stores.open()


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[HubServer]:
    """Starts a Hub for huggingface_hub and for eaglecpp."""
    with HubServer() as server:
        monkeypatch.setenv("MODEL_ENDPOINT", server.url)
        yield server


@pytest.fixture
def ollama(home: Path) -> OllamaModel:
    """Returns a function `ollama("library/llama3.2/3b", {"model": data, ...})` that writes a model into
    ~/.ollama/models.
    """
    return partial(put_into_ollama, home / ".ollama" / "models")
