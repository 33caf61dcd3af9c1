# SPDX-License-Identifier: MIT
"""Tests `serve --models FILE`, which serves several models by name, some of them pinned in memory, and tests
loading and unloading.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from eaglecpp.cli import main
from eaglecpp.server.config import PresetError, read_presets
from eaglecpp.server.run import bind
from helpers.http_server import DRAFT, FAST, QUESTION, TARGET, TestServer, store, until

LISTED = f"""
[drafted]
path = "{TARGET}"
draft = "{DRAFT}"
context = 384
pinned = true

[plain]
path = "target.gguf"

[stored]
context = 256
draft = "text"
"""


@pytest.fixture(autouse=True)
def own_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EAGLECPP_MODELS", str(tmp_path / "models"))
    (tmp_path / "target.gguf").symlink_to(TARGET)
    store("stored")


def listed(tmp_path: Path, text: str = LISTED) -> Path:
    file = tmp_path / "models.toml"
    file.write_text(text)
    return file


def serving(tmp_path: Path, text: str = LISTED, **config: Any) -> TestServer:
    presets = read_presets(listed(tmp_path, text))
    files = {name: Path(one.path) for name, one in presets.items() if one.path is not None}
    options = {"presets": presets, "draft": None, "engine": FAST | {"n_ctx": 512}, "keep_alive_s": 300.0}
    return TestServer(files=files, **(options | config))


@pytest.fixture
def server(tmp_path: Path) -> Iterator[TestServer]:
    with serving(tmp_path, n_models=2) as running:
        yield running


def loaded(server: TestServer) -> dict[str, Any]:
    return {one["name"]: one for one in server.get("/api/ps").json()["models"]}


def say(server: TestServer, model: str, **rest: Any) -> dict[str, Any]:
    body = {
        "model": model,
        "prompt": QUESTION,
        "stream": False,
        "options": {"num_predict": 4, "temperature": 0},
    }
    return server.call("/api/generate", body | rest)


def test_each_model_has_the_settings_of_the_file(server: TestServer) -> None:
    assert list(loaded(server)) == ["drafted"], "at the start, only pinned models may be loaded"
    answers = {name: say(server, name) for name in ("drafted", "plain", "stored", "plain:latest")}
    assert len({one["response"] for one in answers.values()}) == 1
    assert say(server, "drafted", strategy="chain:3")["timings"]["draft_n"] > 0
    refused = server.post("/api/generate", {"model": "plain", "prompt": "x", "strategy": "chain:3"})
    assert refused.status_code == 400 and "needs a drafter" in refused.json()["error"]
    now = loaded(server)["drafted"]
    assert (now["context_length"], now["pinned"]) == (384, True) and now["draft"].endswith(DRAFT.name)
    say(server, "stored")
    assert loaded(server)["stored:latest"]["context_length"] == 256
    listed = {one["name"]: (one["draft"], "file" in one) for one in server.get("/api/tags").json()["models"]}
    wanted = {"drafted": (DRAFT.stem, True), "plain": (None, True), "stored:latest": ("text", False)}
    assert wanted.items() <= listed.items()
    assert server.get("/v1/models/drafted").json()["draft"] == DRAFT.stem
    assert server.post("/api/generate", {"model": "other", "prompt": "x"}).status_code == 404


def test_a_pinned_model_stays_loaded_for_any_request(server: TestServer) -> None:
    say(server, "plain")
    say(server, "stored")
    until(lambda: set(loaded(server)) == {"drafted", "stored:latest"})
    assert say(server, "drafted", keep_alive=0)["response"]
    for path, body in (("/models/unload", {}), ("/api/generate", {"keep_alive": 0})):
        refused = server.post(path, {"model": "drafted"} | body)
        assert refused.status_code == 400 and "pinned" in refused.text
    assert "drafted" in loaded(server) and server.metric("eaglecpp_model_loads_total") == 3


def test_a_model_without_room_beside_pinned_ones_is_refused(tmp_path: Path) -> None:
    with serving(tmp_path, n_models=1) as own:
        refused = own.post("/api/generate", {"model": "plain", "prompt": "x"})
        assert refused.status_code == 503 and "pinned models: 1 of --max-models 1" in refused.json()["error"]
        assert say(own, "drafted")["response"]


def test_models_are_loaded_and_unloaded_by_requests(server: TestServer) -> None:
    def status() -> str:
        return str(server.get("/v1/models/plain").json()["status"]["value"])

    assert status() == "unloaded"
    assert server.call("/models/load", {"model": "plain"}) == {"success": True}
    assert status() == "loaded" and loaded(server)["plain"]["pinned"] is False
    assert server.call("/models/unload", {"model": "plain"}) == {"success": True}
    assert status() == "unloaded"
    again = server.post("/models/unload", {"model": "plain"})
    assert again.status_code == 400 and "not loaded" in again.json()["error"]["message"]
    assert server.post("/models/load", {"model": "other"}).status_code == 404
    assert server.post("/models/load", {}).status_code == 400


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "expected at least one model"), ("[a", "Expected ']'"), ("a = 1", "[a]: Expected a table"),
        ("[a]\npath = 1", "Expected str, got int - at $.path"),
        ("[a]\npath = 'none.gguf'", "path: expected a file"), ("[a]\nctx = 1", "unknown field ctx"),
        ("[a]\ncontext = -2", "$.context"), ("[none]\ncontext = 1", "[none]: model 'none' is not on this"),
        ("[stored]\ndraft = 'none.gguf'", "[stored]: drafter 'none.gguf'"),
        ("['']\npath = 'target.gguf'", "[]: expected a printable name"),
        ("[stored]\n[\"stored:latest\"]", "listed twice"),
        ("[a]\npath = 'target.gguf'\nadapters = ['x']", "adapters: expected a file"),
        ("['/etc/passwd']", "expected the name of a stored model"),
        (f"[a]\npath = '{'x' * 5000}'", "[a]: "),
    ],
)  # fmt: skip
def test_an_invalid_file_is_refused(tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(PresetError) as error:
        read_presets(listed(tmp_path, text))
    reply = str(error.value)
    assert "models.toml" in reply
    assert said in reply, reply


@pytest.mark.parametrize(
    ("options", "code", "said"),
    [(["stored"], 2, "remove MODEL"), (["--draft", str(DRAFT)], 2, "--models"),
     (["--max-models", "1"], 2, "pins 2 models"), ([], 1, "in use")],
)  # fmt: skip
def test_the_command_line_reads_it(
    tmp_path: Path, options: list[str], code: int, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    text = LISTED + f"[more]\npath = '{TARGET}'\npinned = true\n"
    with bind("127.0.0.1", 0) as taken:
        port = str(taken.getsockname()[1])
        assert main(["serve", "--models", str(listed(tmp_path, text)), "--port", port, *options]) == code
    assert said in capsys.readouterr().err


@pytest.mark.parametrize("kind", ["DFlash", "DSpark", "DFlash2"])
def test_a_block_drafter_has_one_name_everywhere(kind: str, capsys: pytest.CaptureFixture[str]) -> None:
    file = Path(__file__).parents[2] / "fixtures" / f"demo-{kind.lower()}.gguf"
    store("blocks", f"DRAFT {file}")
    with TestServer(files={}, draft=None, preload="blocks") as own:
        assert loaded(own)["blocks:latest"]["drafter"] == kind
    said = {"list": f" {kind}\n", "show blocks": f"({kind})\n", f"inspect {file}": f"kind {kind},"}
    for command, words in said.items():
        assert main(command.split()) == 0 and words in capsys.readouterr().out
