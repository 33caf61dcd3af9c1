# SPDX-License-Identifier: MIT
"""Tests Ollama's API: the structures that its clients read, and mistakes of other servers that broke these
clients.
"""

from __future__ import annotations

import json
from datetime import datetime
from typing import Any

import pytest

from eaglecpp.server.config import keep_alive
from helpers.http_server import EXPECTED, FAST, MODEL, QUESTION, TestServer, until


def ask(text: str = QUESTION, **rest: Any) -> dict[str, Any]:
    options = {"temperature": 0, "num_predict": 40} | rest.pop("options", {})
    return {"model": MODEL, "messages": [{"role": "user", "content": text}], "options": options} | rest


def whole(server: TestServer, body: dict[str, Any], path: str = "/api/chat") -> dict[str, Any]:
    return dict(server.call(path, {**body, "stream": False}))


def error(server: TestServer, path: str, body: Any, status: int = 400) -> str:
    answer = server.call(path, body, status)
    assert set(answer) == {"error"}
    return str(answer["error"])


def test_the_root_answers_clients_and_shows_browsers_the_page(server: TestServer) -> None:
    assert server.get("/").text == "Ollama is running"
    page = server.get("/", headers={"Accept": "text/html,*/*"})
    assert "<title>eaglecpp</title>" in page.text
    assert "default-src 'none'" in page.headers["content-security-policy"]


@pytest.mark.parametrize("key", ["model", "name"])
def test_show_has_what_editors_need(server: TestServer, key: str) -> None:
    reply = server.post("/api/show", {key: MODEL}).json()
    info = reply["model_info"]
    assert info[f"{info['general.architecture']}.context_length"] > 0
    assert "completion" in reply["capabilities"]
    assert all(
        isinstance(reply[name], str) for name in ("parameters", "template", "modelfile", "license", "system")
    )


def test_lists_show_capabilities_and_size_of_a_model(server: TestServer, thinker: str) -> None:
    info = server.post("/api/show", {"model": MODEL}).json()
    context = info["model_info"][f"{info['model_info']['general.architecture']}.context_length"]
    tags = {one["name"]: one for one in server.get("/api/tags").json()["models"]}
    data = {one["id"]: one for one in server.get("/v1/models").json()["data"]}
    for name in (MODEL, f"{thinker}:latest"):
        shown = server.post("/api/show", {"model": name}).json()
        for one in (tags[name], data[name], server.get(f"/v1/models/{name}").json()):
            assert one["capabilities"] == shown["capabilities"] and "completion" in one["capabilities"]
            assert one["context_length"] == context > 0
            assert one["details"]["parameter_size"] == info["details"]["parameter_size"] != ""
    assert "thinking" in tags[f"{thinker}:latest"]["capabilities"]
    assert "thinking" not in tags[MODEL]["capabilities"]
    assert data[MODEL]["size"] == tags[MODEL]["size"] > 0


def test_a_request_turns_drafting_off_in_any_spelling(server: TestServer) -> None:
    for word in (False, "off", "none"):
        timings = whole(server, ask(draft=word, options={"num_predict": 4}))["timings"]
        assert (timings["plan"]["strategy"], timings["draft_n"]) == ("off", 0)
    assert "draft: expected true, false, off or none, found 'x'" in error(server, "/api/chat", ask(draft="x"))
    (loaded,) = server.get("/api/ps").json()["models"]
    assert loaded["drafter"] == "eagle31", "expected the drafter in the format of `list`"


def test_an_answer_streams_line_by_line(server: TestServer) -> None:
    lines = list(server.lines("/api/chat", ask()))
    assert all(isinstance(line["message"]["content"], str) for line in lines)
    assert all(line["message"]["role"] == "assistant" for line in lines)
    assert [line["done"] for line in lines] == [False] * (len(lines) - 1) + [True]
    assert EXPECTED in "".join(line["message"]["content"] for line in lines)
    last = lines[-1]
    assert last["done_reason"] in ("stop", "length")
    assert last["eval_count"] == last["timings"]["predicted_n"] > 0
    assert all(type(last[key]) is int for key in ("total_duration", "load_duration", "prompt_eval_count",
                                                  "prompt_eval_duration", "eval_duration"))  # fmt: skip


def test_drafting_can_be_chosen_for_each_request_and_changes_no_text(server: TestServer) -> None:
    plain = whole(server, ask(draft=False))
    of_one = {"strategy": "chain:3", "options": {"draft_window": 1}}
    chain, narrow = whole(server, ask(strategy="chain:3")), whole(server, ask(**of_one))
    assert plain["timings"]["draft_n"] == 0 and plain["timings"]["plan"]["strategy"] == "off"
    assert chain["timings"]["draft_n_accepted"] > narrow["timings"]["draft_n_accepted"]
    assert chain["timings"]["plan"]["strategy"] == "chain:3"
    assert plain["message"] == chain["message"] == narrow["message"]
    assert "at least 0; got -1" in error(server, "/api/chat", ask(options={"draft_window": -1}))
    exact = whole(server, ask(strategy="chain:3", exact="on"))
    assert exact["timings"]["exact"] is True and exact["message"] == plain["message"]


def test_the_page_gets_the_drafted_parts_of_a_text(server: TestServer) -> None:
    lines = list(server.lines("/api/chat", ask(strategy="chain:3", show_drafts=True)))
    pieces = [piece for line in lines[:-1] for piece in line["drafts"]["pieces"]]
    assert "".join(text for text, _, _ in pieces) == "".join(line["message"]["content"] for line in lines)
    assert {accepted for _, accepted, _ in pieces} == {True, False}
    assert lines[-2]["drafts"]["predicted_n"] == lines[-1]["timings"]["predicted_n"]


def test_json_and_schemas_are_obeyed(server: TestServer) -> None:
    schema = {"type": "object", "properties": {"n": {"enum": [17]}}, "required": ["n"]}
    reply = whole(server, ask(format=schema))
    assert json.loads(reply["message"]["content"]) == {"n": 17}
    reply = whole(server, ask(format="json", options={"num_predict": 200}))
    assert reply["message"]["content"].lstrip().startswith(("{", "["))


def test_a_continued_prompt_is_found_in_the_cache(server: TestServer) -> None:
    first = whole(server, ask("Explain math.sqrt."))
    turns = [
        {"role": "user", "content": "Explain math.sqrt."},
        first["message"],
        {"role": "user", "content": "And len?"},
    ]
    second = whole(server, {**ask(), "messages": turns})
    assert second["timings"]["reused_n"] > first["prompt_eval_count"]
    assert second["prompt_eval_count"] == second["timings"]["reused_n"] + second["timings"]["prompt_n"]


def test_generate_takes_prompts_with_and_without_a_template(server: TestServer) -> None:
    body = {"model": MODEL, "prompt": QUESTION, "options": {"temperature": 0, "num_predict": 30}}
    reply = whole(server, body, "/api/generate")
    assert EXPECTED in reply["response"]
    assert whole(server, {**body, "raw": True}, "/api/generate")["response"] != reply["response"]
    other = {**body, "template": "{{ .Prompt }} means: ", "system": "unused"}
    assert whole(server, other, "/api/generate")["prompt_eval_count"] != reply["prompt_eval_count"]


def test_a_raw_prompt_is_cut_like_in_ollama_and_the_answer_says_so(server: TestServer) -> None:
    options = {"temperature": 0, "num_predict": 4}
    body = {"model": MODEL, "prompt": "len counts. " * 400, "raw": True, "options": options}
    reply = whole(server, body, "/api/generate")
    assert reply["prompt_eval_count"] < 512 and "were left out" in reply["timings"]["notices"][0]
    assert (reply["done_reason"], reply["eval_count"]) == ("length", 4)
    assert "context size of 512" in error(server, "/api/generate", {**body, "truncate": False})
    everything = {**body, "options": options | {"num_keep": -1}}
    assert "context size of 512" in error(server, "/api/generate", everything)


def test_old_messages_are_dropped_and_the_answer_says_so(server: TestServer) -> None:
    turns = []
    for i in range(30):
        turns += [
            {"role": "user", "content": f"Number {i}: what is len?"},
            {"role": "assistant", "content": "It counts."},
        ]
    turns.append({"role": "user", "content": QUESTION})
    reply = whole(server, {**ask(), "messages": turns})
    assert reply["timings"]["messages_left_out"] > 0 and reply["prompt_eval_count"] < 512
    refused = error(server, "/api/chat", {**ask(), "messages": turns, "truncate": False})
    assert "context size of 512" in refused


@pytest.mark.parametrize(("n_first", "n_ctx"), [(128, 256), (320, 320)])
def test_a_model_keeps_the_context_of_its_first_request(store_root: object, n_first: int, n_ctx: int) -> None:
    with TestServer(engine=FAST | {"n_ctx": 256}) as own:
        for asked in (n_first, 128, 512, 8192):
            whole(own, ask(options={"num_ctx": asked, "num_predict": 2}))
        assert own.get("/api/ps").json()["models"][0]["context_length"] == n_ctx
        assert own.metric("eaglecpp_model_loads_total") == 1


def test_unknown_models_and_paths_are_404(server: TestServer) -> None:
    assert "'nobody' not found" in error(server, "/api/chat", ask(model="nobody"), 404)
    for path in ("/etc/passwd", "../demo-target.gguf", "./x", "~/x", "C:\\x.gguf"):
        assert "not found" in error(server, "/api/chat", ask(model=path), 404)
        assert "invalid model name" in error(server, "/api/pull", {"model": path})
        assert "invalid model name" in error(server, "/api/pull", {"model": "hf.co/a/b", "draft": path})


def test_an_empty_request_loads_and_unloads(store_root: object) -> None:
    with TestServer() as own:
        assert own.get("/api/ps").json()["models"] == []
        reply = whole(own, {"model": MODEL, "messages": [], "keep_alive": "10m"})
        assert (reply["done"], reply["done_reason"]) == (True, "load")
        (loaded,) = own.get("/api/ps").json()["models"]
        left = datetime.fromisoformat(loaded["expires_at"]) - datetime.now().astimezone()
        assert 500 < left.total_seconds() <= 600
        reply = whole(own, {"model": MODEL, "prompt": "", "keep_alive": 0}, "/api/generate")
        assert reply["done_reason"] == "unload"
        assert own.get("/api/ps").json()["models"] == []
        whole(own, ask(keep_alive=0.1))
        until(lambda: own.get("/api/ps").json()["models"] == [])


@pytest.mark.parametrize(
    ("said", "seconds"), [(None, None), (-1, -1.0), ("+3", 3.0), ("1m30s", 90.0), ("-1.5h", -5400.0)]
)
def test_how_long_a_model_stays(said: object, seconds: float | None) -> None:
    assert keep_alive(said) == seconds


def test_a_template_with_thinking_allows_it(server: TestServer, thinker: str) -> None:
    assert whole(server, ask(model=thinker, think=True))["done"]
