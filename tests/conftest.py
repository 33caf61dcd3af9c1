# SPDX-License-Identifier: MIT
"""What all tests share: `helpers` on the path, no network, one seed, and a tiny pair of models.

This file must stay below tests/: a conftest in the root would put the checkout on `sys.path`, and its
`eaglecpp` would hide the installed one.
"""

from __future__ import annotations

import os
import socket
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parent))


@dataclass(frozen=True)
class Models:
    """GGUF files of a tiny target and of a drafter that is right about half the time."""

    target: Path
    draft: Path


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--seed", type=int, default=1, help="seed of the `rng` fixture")


def pytest_configure(config: pytest.Config) -> None:
    """No test may reach out: a test that needs the network would pass here and fail there. And none may know
    what the planner learned in another one.
    """
    os.environ["EAGLECPP_PLANNER_CACHE"] = "0"
    real = socket.socket.connect

    def connect(self: socket.socket, address: Any) -> None:
        if self.family in (socket.AF_INET, socket.AF_INET6) and not _is_local(address):
            refuse(address)
        real(self, address)

    def refuse(address: Any) -> NoReturn:
        raise RuntimeError(f"a test tried to connect to {address}")

    socket.socket.connect = connect  # type: ignore[method-assign]
    config.add_cleanup(lambda: setattr(socket.socket, "connect", real))


def _is_local(address: Any) -> bool:
    return isinstance(address, tuple) and address[0] in ("127.0.0.1", "::1", "localhost")


@pytest.fixture
def rng(pytestconfig: pytest.Config) -> np.random.Generator:
    return np.random.default_rng(pytestconfig.getoption("--seed"))


@pytest.fixture(scope="session")
def models(tmp_path_factory: pytest.TempPathFactory) -> Models:
    """The tiny pair as GGUF files, target F32 and drafter F32, with a chat template."""
    from eaglecpp.convert import convert_checkpoint
    from helpers.tiny import make_pair

    directory = tmp_path_factory.mktemp("models")
    pair = make_pair(directory)
    draft = directory / "draft-f32.gguf"
    convert_checkpoint(pair.checkpoint, target=pair.target.gguf, out=draft, type="F32")
    return Models(pair.target.gguf, draft)


@pytest.fixture(scope="session")
def base_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny target without a chat template."""
    from helpers.tiny import TargetSpec, make_target

    return make_target(tmp_path_factory.mktemp("base"), TargetSpec(n_layers=2, chat_template=False)).gguf
