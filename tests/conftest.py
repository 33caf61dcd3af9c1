# SPDX-License-Identifier: MIT
"""Setup and fixtures for all tests: puts `helpers` on the path, blocks the network, sets a fixed seed, and
writes a tiny pair of models.

This file must stay below tests/: a conftest in the root would put the checkout on `sys.path`, and its
`eaglecpp` would hide the installed one.
"""

from __future__ import annotations

import asyncio
import inspect
import os
import signal
import socket
import sys
from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any, NoReturn

import hypothesis
import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parent))

from helpers.models import Models

if TYPE_CHECKING:
    from helpers.tiny import TinyTarget


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--seed", type=int, default=1, help="seed of the `rng` fixture")
    parser.addoption("--limit", type=float, default=600.0, help="maximum seconds of a test")


def pytest_configure(config: pytest.Config) -> None:
    """Blocks the network, because a test that needs the network would pass here and fail elsewhere. Also
    keeps a test from reading what the planner learned in another test.
    """
    os.environ["EAGLECPP_PLANNER_CACHE"] = "0"
    # There is no deadline, because a busy machine must not fail a test.
    hypothesis.settings.register_profile("busy", deadline=None)
    hypothesis.settings.load_profile("busy")
    # Background jobs of a shell ignore Ctrl+C, and processes that a test starts would inherit this setting.
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    real = socket.socket.connect

    def connect(self: socket.socket, address: Any) -> None:
        if self.family in (socket.AF_INET, socket.AF_INET6) and not _is_local(address):
            refuse(address)
        real(self, address)

    def refuse(address: Any) -> NoReturn:
        raise RuntimeError(f"a test tried to connect to {address}")

    socket.socket.connect = connect  # type: ignore[method-assign]
    config.add_cleanup(lambda: setattr(socket.socket, "connect", real))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, Any, Any]:
    """Fails a test that hangs in Python, so that the other tests run. A hang in native code, where Python's
    signal handlers cannot run, is left to `faulthandler_timeout`.
    """
    if not hasattr(signal, "SIGALRM"):
        return (yield)
    limit = item.config.getoption("--limit")

    def fail(number: int, frame: FrameType | None) -> NoReturn:
        pytest.fail(f"not done after {limit:g} s")

    before = signal.signal(signal.SIGALRM, fail)
    # the signal repeats, in case the test's teardown hangs too
    signal.setitimer(signal.ITIMER_REAL, limit, limit)
    try:
        return (yield)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def _is_local(address: Any) -> bool:
    return isinstance(address, tuple) and address[0] in ("127.0.0.1", "::1", "localhost")


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Runs a test that is an asynchronous function."""
    if not inspect.iscoroutinefunction(pyfuncitem.function):
        return None
    fixtures = {name: pyfuncitem.funcargs[name] for name in inspect.signature(pyfuncitem.function).parameters}
    asyncio.run(pyfuncitem.obj(**fixtures))
    return True


@pytest.fixture(autouse=True, scope="session")
def _whole_measurements() -> None:
    """Opens engines without a time limit, because a busy machine must not decide how much is measured."""
    from eaglecpp.engine import loading

    loading._MEASURE_S = 1e9


@pytest.fixture
def rng(pytestconfig: pytest.Config) -> np.random.Generator:
    return np.random.default_rng(pytestconfig.getoption("--seed"))


@pytest.fixture
def create(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    """Returns a function `create(modelfile, name)` that creates a model in the test's own store, and returns
    the model. The test runs in `tmp_path`.
    """
    for name in ("EAGLECPP_HOME", "EAGLECPP_MODELS", "EAGLECPP_CACHE", "OLLAMA_MODELS"):
        monkeypatch.setenv(name, str(tmp_path / name.lower()))
    monkeypatch.chdir(tmp_path)

    def make(text: str, name: str = "tiny") -> Any:
        from eaglecpp.modelfile import Modelfile, ModelName
        from eaglecpp.store import Stores
        from eaglecpp.store.create import create_model

        return create_model(Stores.open(), ModelName.parse(name), Modelfile.from_text(text), tmp_path)

    return make


@pytest.fixture(scope="session")
def models(tmp_path_factory: pytest.TempPathFactory) -> Models:
    """Writes the GGUF files of the tiny pair, with a chat template. Target and drafter are F32."""
    from helpers.tiny import converted_pair

    pair = converted_pair(tmp_path_factory.mktemp("models"))
    return Models(pair.pair.target.gguf, pair.draft)


@pytest.fixture(scope="module")
def engine(models: Models) -> Iterator[Any]:
    """Opens an engine with the tiny pair, once per test file."""
    from eaglecpp import Engine

    with Engine.open(models.target, models.draft, n_ctx=256, n_threads=1) as opened:
        yield opened


@pytest.fixture(scope="session")
def base_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Writes a tiny target without a chat template."""
    from helpers.tiny import TargetSpec, make_target

    return make_target(tmp_path_factory.mktemp("base"), TargetSpec(n_layers=2, chat_template=False)).gguf


@pytest.fixture
def named(models: Models, create: Callable[..., Any]) -> Callable[..., str]:
    """Returns a function `named(*lines)` that stores a model of the tiny pair with these Modelfile lines. The
    function returns the model's name.
    """

    def make(*lines: str) -> str:
        create("\n".join([f"FROM {models.target}", f"DRAFT {models.draft}", *lines, ""]))
        return "tiny"

    return make


@pytest.fixture(scope="session")
def target(tmp_path_factory: pytest.TempPathFactory) -> TinyTarget:
    """Writes a tiny target with 8 blocks, a width of 64 and 367 tokens. Tests write random drafters for this
    target.
    """
    from helpers.tiny import make_target

    return make_target(tmp_path_factory.mktemp("target"))
