# SPDX-License-Identifier: MIT
"""Fixtures that run the installed command as a user does: as a process, from an empty directory."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from helpers.command import COMMAND, Cli, Start
from helpers.hub_server import HubServer


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Creates a home folder for the command, which then neither touches the real user's files nor downloads
    models.
    """
    monkeypatch.setenv("EAGLECPP_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("EAGLECPP_MODELS", str(tmp_path / "home" / "models"))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    return tmp_path / "home"


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch, home: Path) -> Iterator[HubServer]:
    """Starts a local Hub that the commands find by HF_ENDPOINT, like huggingface_hub."""
    with HubServer() as server:
        monkeypatch.setenv("HF_ENDPOINT", server.url)
        monkeypatch.setenv("HF_HUB_OFFLINE", "0")
        monkeypatch.setenv("HF_HOME", str(home / "hf"))
        yield server


@pytest.fixture
def cli(tmp_path: Path) -> Cli:
    """Returns a function `cli("generate", ...)` that runs the command to its end. stdin is empty unless
    `input` is given.
    """

    def run(*args: Any, **options: Any) -> subprocess.CompletedProcess[str]:
        if "input" not in options:
            options["stdin"] = subprocess.DEVNULL
        command = [COMMAND, *(str(arg) for arg in args)]
        return subprocess.run(
            command, cwd=tmp_path, capture_output=True, encoding="utf-8", timeout=600, check=False, **options
        )

    return run


@pytest.fixture
def start(tmp_path: Path) -> Start:
    """Returns a function `start("generate", ...)` that starts the command with pipes for stdout and
    stderr.
    """

    def run(*args: Any, **options: Any) -> subprocess.Popen[bytes]:
        command = [COMMAND, *(str(arg) for arg in args)]
        pipe = subprocess.PIPE
        environment = {**os.environ, "PYTHONUNBUFFERED": "1"}
        # With a buffer, `communicate` would not return bytes that an earlier `read` left in the pipe.
        options |= {"stdin": subprocess.DEVNULL, "stdout": pipe, "stderr": pipe, "bufsize": 0}
        return subprocess.Popen(command, cwd=tmp_path, env=environment, **options)

    return run
