# SPDX-License-Identifier: MIT
"""Tests adapters that a request chooses. The text must equal that of an engine that is opened with these
adapters, and other requests must not change.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from eaglecpp import Engine
from eaglecpp.server.config import Adapter, Preset
from helpers.http_server import DRAFT, FAST, TARGET, TestServer
from helpers.lora import write_lora

PROMPT = "The function returns a list of"
N = 24


@pytest.fixture(scope="module")
def adapters(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    folder = tmp_path_factory.mktemp("adapters")
    paths = folder / "first.gguf", folder / "second.gguf"
    write_lora(paths[0], TARGET, size=2.0)
    write_lora(paths[1], TARGET, size=2.0, only="blk.2.ffn_down.weight")
    return paths


@pytest.fixture(scope="module")
def server(store_root: Path, adapters: tuple[Path, Path]) -> Iterator[TestServer]:
    own = (Adapter(str(adapters[0])), Adapter(str(adapters[1]), 0.0))
    presets = {"adapted": Preset(str(TARGET), str(DRAFT), adapters=own), "bare": Preset(str(TARGET))}
    files = dict.fromkeys(presets, TARGET)
    with TestServer(files=files, presets=presets, draft=None, n_models=4) as running:
        yield running


def body(lora: Any = None, **rest: Any) -> dict[str, Any]:
    given = {} if lora is None else {"lora": [{"id": i, "scale": scale} for i, scale in lora]}
    return {"model": "adapted", "prompt": PROMPT, "n_predict": N, "temperature": 0} | given | rest


def text(server: TestServer, lora: Any = None, **rest: Any) -> str:
    return str(server.call("/completion", body(lora, **rest))["content"])


def of_engine(*lora: tuple[Path, float]) -> str:
    """Returns the text of an engine that is opened with these adapters."""
    options = FAST | {"lora": tuple((str(path), scale) for path, scale in lora)}
    with Engine.open(TARGET, strategy="off", **options) as engine:
        return engine.generate(PROMPT, max_tokens=N, temperature=0).text


CHOICES = [None, [], [(0, 1.0)], [(1, 1.0)], [(0, 0.5), (1, 1.0)]]


def test_texts_equal_those_of_adapted_engines(server: TestServer, adapters: tuple[Path, Path]) -> None:
    first, second = adapters
    expected = [
        of_engine((first, 1.0)), of_engine(), of_engine((first, 1.0)), of_engine((second, 1.0)),
        of_engine((first, 0.5), (second, 1.0)),
    ]  # fmt: skip
    assert len(set(expected)) == 4, "the test needs four different texts"
    assert [text(server, lora) for lora in CHOICES] == expected
    reply = server.call("/completion", body([(1, 1.0)]))
    assert reply["timings"]["rounds"] < N, "an answer with adapters must be drafted too"
    assert server.call("/completion", body([(1, 1.0)], draft=False))["content"] == reply["content"]


def test_parallel_requests_with_other_adapters_keep_their_texts(server: TestServer) -> None:
    alone = [text(server, lora) for lora in CHOICES]
    with ThreadPoolExecutor() as pool:
        for _ in range(2):
            assert list(pool.map(lambda lora: text(server, lora), CHOICES)) == alone


def test_adapters_are_listed_and_no_request_sets_them_for_all(server: TestServer) -> None:
    listed = server.get("/lora-adapters?model=adapted").json()
    assert listed == [
        {"id": 0, "path": "first.gguf", "scale": 1.0},
        {"id": 1, "path": "second.gguf", "scale": 0.0},
    ]
    assert server.get("/lora-adapters?model=bare").json() == []
    assert text(server, [], model="bare") == text(server, model="bare")
    refused = server.post("/lora-adapters", [{"id": 0, "scale": 0.0}])
    assert refused.status_code == 405 and "not allowed" in refused.json()["error"]["message"]
    assert server.get("/lora-adapters?model=adapted").json() == listed


@pytest.mark.parametrize(
    ("wrong", "said"),
    [({"lora": [{"id": 2, "scale": 1}]}, "adapter 2; number of adapters: 2"),
     ({"lora": [{"id": -1, "scale": 1}]}, "no adapter -1"),
     ({"lora": [{"id": 0, "scale": 1}], "model": "bare"}, "adapters: 0"), ({"lora": [{"id": 0}]}, "lora"),
     ({"lora": [{"id": 0, "scale": 1e9}]}, "lora"), ({"lora": "first.gguf"}, "lora"),
     ({"lora": [{"id": 0, "scale": 1}, {"id": 0, "scale": 0}]}, "listed twice")],
)  # fmt: skip
def test_a_missing_adapter_is_refused(server: TestServer, wrong: dict[str, Any], said: str) -> None:
    refused = server.post("/completion", body() | wrong)
    assert refused.status_code == 400 and said in refused.json()["error"]["message"], refused.text


def test_unloading_a_model_unloads_it_with_all_adapters(server: TestServer) -> None:
    for lora in CHOICES[:2]:
        text(server, lora)
    assert server.call("/models/unload", {"model": "adapted"}) == {"success": True}
    assert [one for one in server.get("/api/ps").json()["models"] if one["name"] == "adapted"] == []
