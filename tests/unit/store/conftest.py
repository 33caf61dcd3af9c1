# SPDX-License-Identifier: MIT
"""What the tests of stores share: a home of their own, a tiny pair, an Ollama store made by hand, a Hub."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from eaglecpp.store import Stores, packaged
from helpers.hub_server import HubServer
from helpers.stores import OllamaModel, Tiny
from helpers.tiny import Pair, make_pair


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Tiny:
    from eaglecpp.convert import convert_checkpoint
    from helpers.tiny import TargetSpec, make_target

    directory = tmp_path_factory.mktemp("tiny")
    pair: Pair = make_pair(directory / "pair")
    draft = directory / "draft.gguf"
    convert_checkpoint(pair.checkpoint, target=pair.target.gguf, out=draft, type="F32")
    other = make_target(directory / "other", TargetSpec(n_layers=5, n_embd=32, head_dim=16)).gguf
    return Tiny(pair.target.gguf, draft, pair.checkpoint, other)


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty home, so that no test sees the models, caches and tokens of whoever runs it."""
    folder = tmp_path / "home"
    folder.mkdir()
    own = ("EAGLECPP_MODELS", "EAGLECPP_HOME", "OLLAMA_MODELS", "XDG_DATA_HOME")
    for name in (*own, "HF_TOKEN", "HF_HUB_OFFLINE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(folder))
    monkeypatch.setenv("LLAMA_CACHE", str(folder / "cache"))
    nowhere = replace(packaged.SMOLLM2, requirement="not-a-package==1")  # whatever this environment has
    monkeypatch.setattr(packaged, "SMOLLM2", nowhere)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(folder / "hf"))
    monkeypatch.setattr("huggingface_hub.constants.HF_TOKEN_PATH", str(folder / "token"))
    return folder


@pytest.fixture
def root(home: Path) -> Path:
    """Where our store is."""
    return home / ".local" / "share" / "eaglecpp" / "models"


@pytest.fixture
def stores(home: Path) -> Stores:
    return Stores.open()


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[HubServer]:
    """A Hub that huggingface_hub and we talk to."""
    with HubServer() as server:
        monkeypatch.setenv("MODEL_ENDPOINT", server.url)
        yield server


@pytest.fixture
def ollama(home: Path) -> OllamaModel:
    """`ollama("library/llama3.2/3b", {"model": data, ...})`: puts a model into ~/.ollama/models.

    A list of (kind, data) pairs keeps an order; `config` replaces the config blob's keys.
    """
    store = home / ".ollama" / "models"

    def put(
        path: str,
        layers: Mapping[str, bytes] | list[tuple[str, bytes]],
        config: Mapping[str, Any] | None = None,
        host: str = "registry.ollama.ai",
    ) -> Path:
        pairs = layers if isinstance(layers, list) else list(layers.items())
        entries = [_blob(store, f"application/vnd.ollama.image.{kind}", data) for kind, data in pairs]
        values = {"model_format": "gguf", "model_family": "llama"} if config is None else config
        head = _blob(store, "application/vnd.docker.container.image.v1+json", json.dumps(values).encode())
        manifest = {
            "schemaVersion": 2,
            "mediaType": "application/vnd.docker.distribution.manifest.v2+json",
            "config": head,
            "layers": entries,
        }
        file = store / "manifests" / host / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(json.dumps(manifest), encoding="utf-8")
        return file

    return put


def _blob(store: Path, media_type: str, data: bytes) -> dict[str, Any]:
    digest = hashlib.sha256(data).hexdigest()
    path = store / "blobs" / f"sha256-{digest}"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    return {"mediaType": media_type, "digest": f"sha256:{digest}", "size": len(data)}
