# SPDX-License-Identifier: MIT
"""Fixtures for the device under test, and for tiny models.

`python tests/run.py gpu` runs these tests on each device that works without hardware: the counting device
(tests/native/gpu), ggml's RPC backend on the loopback interface, ggml's Vulkan backend on Mesa's lavapipe. If
llama.cpp was installed with a GPU backend, `pytest tests/gpu` runs them on that GPU. Otherwise they are
skipped.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import pytest

import eaglecpp
from eaglecpp.lowlevel import system_info
from helpers.backends import Counts
from helpers.rpc_server import RpcServer
from helpers.tiny import ConvertedPair, converted_pair

T = TypeVar("T")
SERVERS = int(os.environ.get("EAGLECPP_TEST_RPC_SERVERS", "0"))
SIZES: dict[str, Any] = {"n_ctx": 1024, "n_threads": 1, "n_batch": 512, "n_ubatch": 128}


@dataclass(frozen=True)
class Device:
    """A device that is not the CPU. `is_exact`: the device computes with the CPU's code. `is_slow`: the
    device is lavapipe, which runs Vulkan on the CPU. A token takes a hundred times as long on lavapipe as on
    a GPU, so tests use fewer tokens.
    """

    name: str
    is_exact: bool
    is_slow: bool

    def some(self, all_of_them: Sequence[T]) -> Sequence[T]:
        """Returns all items, or only the first one on a slow device."""
        return all_of_them[:1] if self.is_slow else all_of_them

    @property
    def sizes(self) -> dict[str, Any]:
        """Returns the size options of an engine. When an engine opens, it computes up to 600 tokens to find
        the exact batch sizes. A short context limits this number to about 100, which takes seconds instead of
        minutes on a slow device.
        """
        return SIZES | {"n_ctx": 128} if self.is_slow else SIZES

    @property
    def n_tokens(self) -> int:
        """Returns the length of a test's text in tokens, which depends on the device."""
        return 24 if self.is_slow else 60

    def assert_same_text(self, ours: Sequence[int], theirs: eaglecpp.Completion) -> None:
        """Compares two texts token by token. The comparison ends at the first position where the
        log-probabilities of the two best tokens are so close that a GPU may choose the second token.
        """
        for i, (a, b) in enumerate(zip(ours, theirs.tokens, strict=True)):
            if a != b:
                best, second = (value for _, value in theirs.logprobs[i].top[:2])
                assert best - second < (1e-3 if self.is_exact else 0.1), f"token {i}: expected {b}, found {a}"
                return


@pytest.fixture(scope="session")
def servers() -> Iterator[tuple[str, ...]]:
    """Starts RPC servers if the tests run on several servers, and yields them."""
    running = [RpcServer() for _ in range(SERVERS)]
    try:
        yield tuple(server.endpoint for server in running)
    finally:
        for server in running:
            server.kill()


@pytest.fixture(scope="session")
def device(servers: tuple[str, ...]) -> Device:
    if servers:
        from eaglecpp.engine import rpc

        rpc.connect(servers)
    found = [d for d in system_info()["devices"] if d["kind"] == "gpu"]
    if not found:
        pytest.skip("no GPU backend found; `python tests/run.py gpu` builds backends")
    name = found[0]["name"]
    return Device(name, name.startswith(("Counting", "RPC")), "llvmpipe" in found[0]["description"])


@pytest.fixture
def greedy(device: Device) -> dict[str, Any]:
    """Returns greedy options, for which only one answer is right."""
    return {"temperature": 0.0, "ignore_eos": True, "max_tokens": device.n_tokens, "n_probs": 2}


@pytest.fixture(scope="session")
def it(tmp_path_factory: pytest.TempPathFactory) -> ConvertedPair:
    return converted_pair(tmp_path_factory.mktemp("gpu"), "eagle31")


@pytest.fixture(scope="session")
def open_engine(it: ConvertedPair, device: Device) -> Callable[..., eaglecpp.Engine]:
    """Returns a function `open_engine(place, **options)`, where `place` names the devices of target and
    drafter.
    """
    places: dict[str, dict[str, Any]] = {
        "all": {"n_gpu_layers": -1, "draft_device": device.name},
        "some layers": {"n_gpu_layers": 3, "draft_device": device.name},
        "drafter": {"n_gpu_layers": 0, "draft_device": device.name},
        "target": {"n_gpu_layers": -1, "draft_device": "cpu"},
        "cpu": {"n_gpu_layers": 0, "draft_device": "cpu"},
    }

    def make(place: str, draft: bool = True, **options: Any) -> eaglecpp.Engine:
        options = {**device.sizes, **places[place], **options}
        return eaglecpp.Engine.open(it.pair.target.gguf, draft=it.draft if draft else None, **options)

    return make


@pytest.fixture(scope="session")
def counts(device: Device) -> Callable[[], Counts]:
    """Returns the counters of the counting device, or zeros on other devices."""
    if not device.name.startswith("Counting"):
        pytest.skip(f"{device.name} does not count operations")
    read = ctypes.CDLL(os.environ["GGML_BACKEND_PATH"]).eaglecpp_counts
    read.restype = Counts
    return read
