# SPDX-License-Identifier: MIT
"""Fixtures for the server's tests: a server with its own store, which tests share unless they need a separate
server.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from eaglecpp.engine.scheduler import Scheduler
from helpers.http_server import TestServer, store


@pytest.fixture(scope="session")
def store_root(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Creates an empty store, independent of the user's store."""
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


@pytest.fixture
def slow_rounds(monkeypatch: pytest.MonkeyPatch) -> None:
    """Slows rounds down, so that on any machine a long answer is still running when other requests arrive."""
    step = Scheduler.step

    def slow_step(self: Scheduler) -> Any:
        time.sleep(0.02)
        self._for_ms = 0.0
        return step(self)

    monkeypatch.setattr(Scheduler, "step", slow_step)


@pytest.fixture(scope="module")
def thinker(server: TestServer) -> Iterator[str]:
    """Stores a model whose template supports thinking, and removes the model after the tests of a module."""
    template = (
        "{{ range .Messages }}{{ .Role }}: {{ if .Thinking }}<think>{{ .Thinking }}</think>{{ end }}"
        "{{ .Content }}{{ range .ToolCalls }} [{{ .Function.Name }}]{{ end }}\n{{ end }}assistant: "
    )
    store("thinker", f'TEMPLATE """{template}"""')
    yield "thinker"
    server.delete("thinker")
