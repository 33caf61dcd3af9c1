# SPDX-License-Identifier: MIT
"""Tests that a model is loaded only once for all spellings of its name, and that requests for lists read no
model file.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import requests

from eaglecpp.errors import GgufError
from eaglecpp.references import ModelName
from eaglecpp.server import models
from eaglecpp.store import Stores
from eaglecpp.store.transaction import copy_model, remove_model
from eaglecpp.threads import check_wanted
from helpers.http_server import DRAFT, TARGET, TestServer, store, until

PARAMETERS = "PARAMETER temperature 0\nPARAMETER num_predict 2\n"
SPELLINGS = ("pair", "pair:latest", "PAIR", "library/pair:latest", "registry.ollama.ai/library/Pair")


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[TestServer]:
    """Starts a server whose own store contains the model `pair`."""
    monkeypatch.setenv("EAGLECPP_MODELS", str(tmp_path / "models"))
    make("pair", PARAMETERS)
    with TestServer(files={}, draft=None) as running:
        yield running


def make(name: str, rest: str = "", draft: bool = True) -> None:
    store(name, rest, f"FROM {TARGET}" + (f"\nDRAFT {DRAFT}" if draft else ""))


def say(server: TestServer, name: str, **rest: Any) -> requests.Response:
    return server.post("/api/generate", {"model": name, "prompt": "x", "stream": False, **rest})


def loaded(server: TestServer) -> list[str]:
    return [one["name"] for one in server.get("/api/ps").json()["models"]]


def test_a_name_means_its_current_model(own: TestServer) -> None:
    assert say(own, "pair").json()["eval_count"] == 2
    make("pair", "PARAMETER num_predict 3")
    assert say(own, "Pair").json()["eval_count"] == 3
    assert own.post("/api/generate", {"model": "pair", "keep_alive": 0}).json()["done_reason"] == "unload"
    assert loaded(own) == []


def test_a_model_is_created_from_a_stored_one_and_copied(own: TestServer) -> None:
    """Sends the requests of Open WebUI's model builder and of `ollama.create`."""
    system = 'Answer.\n"""\nDRAFT /etc/hostname\n#eaglecpp: learn on'
    body = {
        "model": "mine", "from": "Pair", "system": system, "template": "{{ .System }}|{{ .Prompt }}",
        "parameters": {"num_predict": 3, "stop": ["never"], "num_gqa": 1},
        "messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}],
    }  # fmt: skip
    steps = [line["status"] for line in own.lines("/api/create", body)]
    assert steps[0] == "gathering model components" and steps[-1] == "success"
    assert own.call("/api/create", body | {"stream": False}) == {"status": "success"}
    shown = own.call("/api/show", {"model": "mine"})
    assert (shown["system"], shown["template"]) == (system, body["template"])
    assert [one["content"] for one in shown["messages"]] == ["a", "b"]
    assert "num_predict" in shown["parameters"] and say(own, "mine").json()["eval_count"] == 3
    assert own.post("/api/copy", {"source": "mine", "destination": "other"}).status_code == 200
    assert own.call("/api/show", {"model": "other"})["system"] == system
    assert say(own, "other").json()["eval_count"] == 3


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"from": str(TARGET)}, "invalid model name"), ({"from": ""}, "from: "),
        ({"from": "../pair"}, "invalid model name"),
        ({"files": {"a.gguf": "sha256:0"}}, "files: not supported"),
        ({"modelfile": "FROM /etc/hostname"}, "modelfile: not supported"),
        ({"parameters": {"temprature": 1}}, "parameters.temprature: unknown"),
        ({"messages": [{"role": "tool", "content": "x"}]}, "messages"),
        ({"template": "{{ range }}"}, "template"), ({"system": "x" * (5 << 20)}, "at most"),
    ],
    ids=lambda one: "-".join(one) if isinstance(one, dict) else "",
)  # fmt: skip
def test_an_invalid_model_is_refused(own: TestServer, wrong: dict[str, Any], said: str) -> None:
    answer = own.post("/api/create", {"model": "mine", "from": "pair", "stream": False} | wrong)
    assert 400 <= answer.status_code < 500 and said in answer.json()["error"].lower(), answer.text
    assert own.post("/api/copy", {"source": "mine", "destination": "x"}).status_code == 404
    assert own.post("/api/copy", {"source": "pair", "destination": "../x"}).status_code == 400


def test_a_model_removed_while_it_loads_is_not_lost(own: TestServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tests a model that is removed while it is loading. In a former version, such a model stayed in memory
    as long as the process ran.
    """
    opened = models.open_fitting

    def removing(*given: Any) -> Any:
        found = opened(*given)
        remove_model(Stores.open().own, ModelName.parse("pair"))
        return found

    monkeypatch.setattr(models, "open_fitting", removing)
    assert say(own, "pair").status_code == 200
    assert loaded(own) == ["pair:latest"]


def test_a_stopping_server_closes_a_loading_model(monkeypatch: pytest.MonkeyPatch) -> None:
    opened, engines, is_loading = models.open_fitting, list[Any](), threading.Event()

    def slow(*given: Any) -> Any:
        found = opened(*given)
        engines.append(found[0])
        is_loading.set()
        time.sleep(1)
        return found

    monkeypatch.setattr(models, "open_fitting", slow)
    with ThreadPoolExecutor() as pool:
        with TestServer(grace_s=0.1) as server:
            pool.submit(say, server, "demo")
            assert is_loading.wait(60)
        until(lambda: [engine.closed for engine in engines] == [True])


def test_a_stopping_server_cancels_the_load(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tests that a stopping server cancels the load. A former version finished loading, and then loaded the
    model again for a second request.
    """
    loads = list[str]()

    def endless(*given: Any) -> Any:
        loads.append("begun")
        while True:
            time.sleep(0.01)
            check_wanted()

    monkeypatch.setattr(models, "open_fitting", endless)
    with ThreadPoolExecutor() as pool:
        with TestServer(grace_s=60) as server:
            asked = [pool.submit(say, server, "demo") for _ in range(3)]
            until(lambda: sum(server.server._shared._n_asked.values()) == 3 and bool(loads))
        answers = [one.result() for one in asked]
    assert [one.status_code for one in answers] == [503] * 3 and "is stopping" in answers[0].text
    assert loads == ["begun"]


def test_requests_that_wait_for_a_load_share_its_error(monkeypatch: pytest.MonkeyPatch) -> None:
    loads, may_fail = list[str](), threading.Event()

    def failing(*given: Any) -> Any:
        loads.append("begun")
        may_fail.wait(60)
        raise GgufError("broken")

    monkeypatch.setattr(models, "open_fitting", failing)
    with ThreadPoolExecutor() as pool, TestServer() as server:
        asked = [pool.submit(say, server, "demo") for _ in range(3)]
        until(lambda: sum(server.server._shared._n_asked.values()) == 3 and bool(loads))
        time.sleep(0.1)
        may_fail.set()
        assert {(one.result().status_code, one.result().json()["error"]) for one in asked} == {
            (500, "broken")
        }
        assert loads == ["begun"]
        assert say(server, "demo").status_code == 500 and len(loads) == 2


def test_every_spelling_of_a_name_is_one_model(own: TestServer) -> None:
    for name in SPELLINGS:
        assert say(own, name).status_code == 200
    assert own.metric("eaglecpp_model_loads_total") == 1
    assert loaded(own) == ["pair:latest"]
    for name in SPELLINGS:
        assert say(own, "pair").status_code == 200
        assert own.post("/api/generate", {"model": name, "keep_alive": 0}).json()["done_reason"] == "unload"
        assert loaded(own) == [], name


def test_a_requests_options_override_the_authors_pragmas(own: TestServer) -> None:
    make("short", "PARAMETER temperature 0\n#eaglecpp: max_tokens 2\n#eaglecpp: ignore_eos true\n")
    assert say(own, "short").json()["eval_count"] == 2
    assert say(own, "short", options={"num_predict": 5}).json()["eval_count"] == 5


def test_a_copy_is_the_same_model(own: TestServer) -> None:
    stores = Stores.open()
    copy_model(stores, stores.get(ModelName.parse("pair")), ModelName.parse("twin"))
    for name in ("pair", "twin"):
        assert say(own, name).status_code == 200
    assert own.metric("eaglecpp_model_loads_total") == 1 and loaded(own) == ["pair:latest"]
    own.delete("pair")
    assert loaded(own) == [] and say(own, "twin").status_code == 200


@pytest.mark.parametrize("difference", ["PARAMETER temperature 1", "SYSTEM Be brief.", "no drafter"])
def test_another_modelfile_on_the_same_weights_is_another_model(own: TestServer, difference: str) -> None:
    has_drafter = difference != "no drafter"
    make("other", PARAMETERS + (difference if has_drafter else ""), draft=has_drafter)
    for name in ("pair", "other"):
        assert say(own, name, options={"num_predict": 1}).status_code == 200
    assert sorted(loaded(own)) == ["other:latest", "pair:latest"]


class Opened:
    """Records the files that the process opens while `is_on`. An audit hook cannot be removed."""

    def __init__(self) -> None:
        self.is_on = False
        self.paths: list[str] = []
        sys.addaudithook(self._hear)

    def _hear(self, event: str, arguments: tuple[Any, ...]) -> None:
        if self.is_on and event == "open":
            self.paths.append(str(arguments[0]))


def test_frequent_requests_read_no_model(own: TestServer) -> None:
    """Frequent requests must not read a model, because parsing a vocabulary takes long."""
    calls = [("GET", "/api/ps", None), ("GET", "/api/tags", None), ("GET", "/v1/models", None),
             ("POST", "/api/show", {"model": "pair"})]  # fmt: skip
    assert say(own, "pair", options={"num_predict": 1}).status_code == 200

    def reply() -> list[Any]:
        answers = [requests.request(m, own.url + path, json=body, timeout=60) for m, path, body in calls]
        assert all(answer.status_code == 200 for answer in answers)
        return [answer.json() for answer in answers]

    first = reply()
    opened = Opened()
    opened.is_on = True
    again = reply()
    opened.is_on = False
    assert opened.paths, "the audit hook recorded no opened file"
    weights = {TARGET.name, DRAFT.name, *(p.name for p in Stores.open().own.root.rglob("blobs/*")
                                          if p.stat().st_size > 100_000)}  # fmt: skip
    assert not [path for path in opened.paths if Path(path).name in weights]
    assert first[1:] == again[1:]
