# SPDX-License-Identifier: MIT
"""Tests llama-server's own endpoints, and a server that is started with a single file."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from eaglecpp import Engine
from eaglecpp.engine.infill import Infill
from helpers.http_server import FAST, TestServer, until
from helpers.infill import write_infill_pair

MODEL = "coder"
PREFIX, SUFFIX = "def main():\n    ", "\n    return 0\n"
LINES = {"grammar": r'root ::= "  a\n" "  b\n" "c\n" "d"', "n_predict": 40, "ignore_eos": False}
"""Forces a text, whatever the model would generate."""
SHORT = {"temperature": 0, "n_predict": 8, "seed": 1, "ignore_eos": True}


@pytest.fixture(scope="module")
def coder(store_root: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[TestServer]:
    """Starts a server of one file whose vocabulary has tokens for infilling."""
    target, draft = write_infill_pair(tmp_path_factory.mktemp("coder"))
    with TestServer(files={MODEL: target}, draft=str(draft), preload=MODEL, model=MODEL) as running:
        yield running


def whole(server: TestServer, path: str, body: dict[str, Any]) -> Any:
    return server.call(path, SHORT | body)


def refused(server: TestServer, path: str, body: Any, status: int = 400) -> dict[str, Any]:
    error = server.call(path, body, status)["error"]
    assert error["code"] == status
    return dict(error)


def tokens_of(server: TestServer, text: str, **options: Any) -> list[int]:
    return list(server.post("/tokenize", {"content": text, **options}).json()["tokens"])


# A server of a single file


@pytest.mark.parametrize("name", ["gpt-3.5-turbo", "", "/models/x.gguf", "a b", "hf.co/a/b:Q4_0", None])
def test_a_server_of_one_file_accepts_any_name(coder: TestServer, name: str | None) -> None:
    named = {} if name is None else {"model": name}
    turns = [{"role": "user", "content": "x"}]
    for path, body in (
        ("/v1/chat/completions", {"messages": turns, "max_tokens": 2}),
        ("/chat/completions", {"messages": turns, "max_tokens": 2}),
        ("/v1/completions", {"prompt": "x", "max_tokens": 2}),
        ("/responses", {"input": "x", "max_output_tokens": 2}),
        ("/embeddings", {"input": "x"}),
        ("/v1/responses", {"input": "x", "max_output_tokens": 2}),
        ("/v1/messages", {"messages": turns, "max_tokens": 2}),
        ("/api/chat", {"messages": turns, "stream": False, "options": {"num_predict": 2}}),
        ("/api/generate", {"prompt": "x", "stream": False, "options": {"num_predict": 2}}),
        ("/completion", {"prompt": "x", "n_predict": 2}),
    ):
        answer = coder.post(path, {**body, **named})
        assert answer.status_code == 200 and answer.json()["model"] == MODEL, (path, answer.text)
    assert coder.metric("eaglecpp_model_loads_total") == 1


def test_a_server_of_many_models_still_distinguishes_names(server: TestServer) -> None:
    body = {"prompt": "x", "max_tokens": 1}
    assert server.post("/v1/completions", {**body, "model": "gpt-3.5-turbo"}).status_code == 404
    nameless = server.post("/v1/completions", body)
    assert nameless.status_code == 400 and nameless.json()["error"]["param"] == "model"
    assert "model is required" in refused(server, "/completion", {"prompt": "x"})["message"]
    assert refused(server, "/completion", {"prompt": "x", "model": "none"}, 404)["type"] == "not_found_error"


# The endpoint /completion


def test_a_completion_has_the_fields_that_editors_read(coder: TestServer) -> None:
    body = {"prompt": "def main():", **SHORT, "n_predict": 8, "t_max_predict_ms": 1, "id_slot": 0}
    reply = whole(coder, "/completion", body)
    assert reply["stop"] is True and reply["stop_type"] == "limit" and reply["truncated"] is False
    assert len(reply["tokens"]) == reply["tokens_predicted"] == reply["timings"]["predicted_n"] == 8
    assert reply["tokens_evaluated"] == reply["timings"]["prompt_n"] + reply["timings"]["cache_n"]
    assert reply["prompt"].endswith("def main():") and reply["id_slot"] in (0, 1)
    *parts, last = coder.events("/completion", body)
    assert "".join(part["content"] for part in parts) == reply["content"]
    assert sum(len(part["tokens"]) for part in parts) == 8 == parts[-1]["tokens_predicted"]
    assert not any(part["stop"] for part in parts)
    assert (last["stop"], last["content"], last["tokens"]) == (True, "", [])
    # Editors warm the prompt cache with a request for 0 tokens.
    asked = {"prompt": "def main():", "n_predict": 0, "samplers": []}
    assert whole(coder, "/completion", asked)["tokens_cached"] == reply["tokens_evaluated"]


def test_a_prompt_is_text_or_tokens_or_several_of_them(coder: TestServer) -> None:
    text = whole(coder, "/completion", {"prompt": "def main():"})
    tokens = tokens_of(coder, "def main():", add_special=True)
    assert whole(coder, "/completion", {"prompt": tokens})["content"] == text["content"]
    prompts: list[Any] = ["def main():", tokens, "class A:"]
    alone = [whole(coder, "/completion", {"prompt": prompt})["content"] for prompt in prompts]
    reply = whole(coder, "/completion", {"prompt": prompts})
    assert [(one["index"], one["content"]) for one in reply] == list(enumerate(alone))
    texts = ["", "", ""]
    for part in coder.events("/completion", {"prompt": prompts, **SHORT}):
        texts[part["index"]] += part["content"]
    assert texts == alone
    for prompt in ([99999], ["a", [99999]]):
        assert "token id 99999" in refused(coder, "/completion", {"prompt": prompt})["message"]
    assert refused(coder, "/completion", {"prompt": "x " * 600})["type"] == "exceed_context_size_error"


def test_n_keep_cuts_a_prompt_in_blocks_so_that_its_beginning_stays_cached(coder: TestServer) -> None:
    n_ctx = coder.get("/props").json()["default_generation_settings"]["n_ctx"]
    prompt = [1 + i % 200 for i in range(2 * n_ctx)]
    reply = whole(coder, "/completion", {"prompt": prompt, "n_keep": 5})
    n_kept, (notice,) = reply["tokens_evaluated"], reply["timings"]["notices"]
    n_cut, n_begin = 2 * n_ctx - n_kept, int(notice.rsplit(" ", 4)[1])
    # the part of the prompt that is kept includes the BOS token
    assert n_ctx // 4 < n_kept < n_ctx and n_begin in (5, 6)
    assert f"the context holds {n_ctx}: {n_cut} tokens after" in notice
    cut = [*prompt[:n_begin], *prompt[n_cut + n_begin :]]
    assert whole(coder, "/completion", {"prompt": cut})["content"] == reply["content"]
    longer = whole(coder, "/completion", {"prompt": [*prompt, 7, 8, 9], "n_keep": 5})
    assert longer["timings"]["cache_n"] >= n_kept - 1
    assert "context size of" in refused(coder, "/completion", {"prompt": prompt, "n_keep": -1})["message"]


def test_an_answer_that_fills_the_context_says_so(coder: TestServer) -> None:
    n_ctx = coder.get("/props").json()["default_generation_settings"]["n_ctx"]
    prompt = [1 + i % 200 for i in range(n_ctx - 5)]
    reply = whole(coder, "/completion", {"prompt": prompt, "n_predict": -1})
    assert (reply["truncated"], reply["stop_type"], reply["timings"]["context_full"]) == (True, "limit", True)
    reply = whole(coder, "/completion", {"prompt": prompt, "n_predict": 2})
    assert (reply["truncated"], reply["timings"]["context_full"]) == (False, False)


def test_how_an_answer_ended(coder: TestServer) -> None:
    reply = whole(coder, "/completion", {"prompt": "x", **LINES, "stop": ["b"]})
    assert (reply["content"], reply["stop_type"], reply["stopping_word"]) == ("  a\n  ", "word", "b")
    reply = whole(coder, "/completion", {"prompt": "x", **LINES})
    assert (reply["stop_type"], reply["stopping_word"]) == ("eos", "")


def test_unnamed_samplers_are_off(coder: TestServer) -> None:
    """Tests the list of samplers that llama.vim sends. The list has no temperature, so the temperature is
    1.
    """
    body = {"prompt": "x", "temperature": 0, "top_k": 1, "n_predict": 24}
    greedy = whole(coder, "/completion", body)["content"]
    assert whole(coder, "/completion", {**body, "samplers": ["top_k"]})["content"] == greedy
    texts = {
        whole(coder, "/completion", {**body, "samplers": ["min_p"], "min_p": 0, "seed": seed})["content"]
        for seed in range(5)
    }
    assert len(texts) > 1


def test_biases_of_tokens(coder: TestServer) -> None:
    reply = whole(coder, "/completion", {"prompt": "def main():"})["tokens"][0]
    for bias in ([[reply, False]], {str(reply): -100}):
        assert (
            whole(coder, "/completion", {"prompt": "def main():", "logit_bias": bias})["tokens"][0] != reply
        )


def test_a_json_schema_is_obeyed(coder: TestServer) -> None:
    schema = {"type": "object", "properties": {"a": {"const": 1}}, "required": ["a"]}
    reply = whole(coder, "/completion", {"prompt": "x", "json_schema": schema, "n_predict": 60})
    assert reply["content"].replace(" ", "").replace("\n", "").startswith('{"a":1')


# The endpoint /infill


def test_infill_uses_the_files_tokens(coder: TestServer) -> None:
    """Tests that infilling uses the file's tokens, with a request in the form of llama.vim and
    llama.vscode.
    """
    body = {
        "input_prefix": "def main():\n",
        "input_suffix": SUFFIX,
        "prompt": "    ",
        "input_extra": [{"filename": "a.py", "text": "import os\n", "time": 1}],
        "n_predict": 16, "n_indent": 0, "stop": [], "top_k": 40, "top_p": 0.99, "stream": False,
        "samplers": ["top_k", "top_p", "infill"], "cache_prompt": True, "t_max_prompt_ms": 500,
        "t_max_predict_ms": 100000, "id_slot": 0, "response_fields": ["content"],
    }  # fmt: skip
    reply = whole(coder, "/infill", body)
    assert reply["content"] is not None and reply["model"] == MODEL and reply["timings"]["prompt_n"] > 0
    assert reply["prompt"] == (
        "<|repo_name|>myproject\n<|file_sep|>a.py\nimport os\n<|file_sep|>filename\n"
        f"<|fim_prefix|>def main():\n    <|fim_suffix|>{SUFFIX}<|fim_middle|>"
    )
    assert list(coder.events("/infill", body))[-1]["stop"] is True


def test_the_other_apis_infill_too(coder: TestServer, server: TestServer) -> None:
    body = {"input_prefix": PREFIX, "input_suffix": SUFFIX}
    with Engine.open(coder.get("/props").json()["model_path"], **FAST) as engine:
        asked = Infill(PREFIX, SUFFIX).tokens(engine.vocabulary)
    said = whole(coder, "/completion", {"prompt": asked, "ignore_eos": False})["content"]
    of_openai = {"prompt": PREFIX, "suffix": SUFFIX, "max_tokens": 8, "temperature": 0}
    assert coder.post("/v1/completions", of_openai).json()["choices"][0]["text"] == said
    options = {"num_predict": 8, "temperature": 0}
    of_ollama = {"prompt": PREFIX, "suffix": SUFFIX, "stream": False, "options": options}
    reply = coder.post("/api/generate", of_ollama).json()
    assert (reply["response"], reply["prompt_eval_count"]) == (said, len(asked))
    reply = coder.post("/api/generate", of_ollama | {"template": "{{ .Suffix }}|{{ .Prompt }}"}).json()
    assert "remove the template" in reply["error"]
    assert "fim_pre_token_id" in refused(server, "/infill", {**body, "model": "demo"})["message"]


# Endpoints for tokens, templates, properties and slots


def test_texts_to_tokens_and_back(coder: TestServer) -> None:
    text = "def f(): <|fim_prefix|> é"
    special, plain = tokens_of(coder, text), tokens_of(coder, text, parse_special=False)
    assert len(special) < len(plain)
    for tokens in (special, plain):
        assert coder.post("/detokenize", {"tokens": tokens}).json() == {"content": text}
    for nothing in ({}, {"content": ""}):
        assert coder.post("/tokenize", nothing).json() == {"tokens": []}
    assert coder.post("/detokenize", {}).json() == {"content": ""}
    pieces = coder.post("/tokenize", {"content": text, "with_pieces": True}).json()["tokens"]
    assert [one["id"] for one in pieces] == special
    parts = [
        one["piece"].encode() if isinstance(one["piece"], str) else bytes(one["piece"]) for one in pieces
    ]
    assert b"".join(parts).decode() == text


def test_endpoints_of_older_clients_are_known(coder: TestServer) -> None:
    assert coder.get("/v1/health").json()["status"] == "ok"
    body = {"prompt": "def main():", "n_predict": 4, "temperature": 0}
    first, second = (coder.call(path, body)["content"] for path in ("/completion", "/completions"))
    assert first == second
    (item,) = coder.call("/embedding", {"content": "one text"})
    (same,) = coder.call("/v1/embeddings", {"input": "one text"})["data"]
    assert item == {"index": 0, "embedding": [same["embedding"]]}
    assert len(coder.call("/embedding", {"content": ["a", [1, 2]]})) == 2


def test_slots_show_which_are_running(coder: TestServer, slow_rounds: None) -> None:
    idle = coder.get("/slots").json()
    assert [one["is_processing"] for one in idle] == [False, False]
    assert {**idle[0]} == {"id": 0, "n_ctx": 512, "speculative": True, "is_processing": False}
    body = {"prompt": "def", "n_predict": 200, "ignore_eos": True}
    with ThreadPoolExecutor() as pool:
        answers = [pool.submit(coder.post, "/completion", body) for _ in range(2)]
        until(lambda: coder.get("/slots?fail_on_no_slot=1").status_code == 503)
        assert sum(one["is_processing"] for one in coder.get("/slots").json()) == 2
        assert all(answer.result().status_code == 200 for answer in answers)


def test_properties_are_the_defaults_of_a_request(coder: TestServer, server: TestServer) -> None:
    reply = coder.get("/props").json()
    assert (
        reply["total_slots"] == 2 and reply["model_alias"] == MODEL and reply["model_path"].endswith(".gguf")
    )
    defaults = reply["default_generation_settings"]
    assert defaults["n_ctx"] == 512 and defaults["params"]["temperature"] == pytest.approx(0.8)
    body = {"prompt": "def main():", "seed": 5, "n_predict": 30}
    said = {key: defaults["params"][key] for key in ("temperature", "top_k", "top_p", "min_p")}
    texts = [coder.post("/completion", {**body, **rest}).json()["content"] for rest in ({}, said)]
    assert texts[0] == texts[1]
    assert reply["chat_template"]
    server.post("/models/unload", {"model": "demo"})
    n_loads, before = server.metric("eaglecpp_model_loads_total"), server.get("/props?model=demo").json()
    assert server.metric("eaglecpp_model_loads_total") == n_loads and before["model_alias"] == "demo"
    server.post("/models/load", {"model": "demo"})
    assert server.get("/props?model=demo").json() == before
    assert server.get("/props").status_code == 400


def test_openais_endpoint_accepts_sampling_fields(coder: TestServer) -> None:
    body = {"messages": [{"role": "user", "content": "What is len? " * 3}], "max_tokens": 4, "temperature": 0}
    unknown = {"return_progress": True, "reasoning_format": "auto", "dynatemp_range": "0", "top_k": 40.0}
    first = coder.post("/v1/chat/completions", body | unknown).json()
    assert coder.post("/v1/chat/completions", body).json()["choices"] == first["choices"]
    fresh = coder.post("/v1/chat/completions", body | {"cache_prompt": False}).json()
    assert fresh["usage"]["prompt_tokens_details"]["cached_tokens"] == 0
    refusal = coder.post("/v1/chat/completions", body | {"xtc_probability": 7})
    assert refusal.status_code == 400 and "xtc_probability" in refusal.text


def test_slots_are_saved_if_there_is_a_folder(
    coder: TestServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    why = refused(coder, "/slots/0?action=save", {"filename": "mine.bin"}, 501)["message"]
    assert "--prompt-cache DIR" in why
    monkeypatch.setenv("EAGLECPP_HOME", str(tmp_path / "home"))
    folder = tmp_path / "prompts"
    engine = {**coder.config.engine, "prompt_cache": str(folder)}
    files = {MODEL: coder.get("/props").json()["model_path"]}
    with TestServer(
        files={MODEL: Path(files[MODEL])}, draft=coder.config.draft, preload=MODEL, model=MODEL, engine=engine
    ) as own:
        first = whole(own, "/completion", {"prompt": "def main():" * 8, "id_slot": 0})
        slot = f"/slots/{first['id_slot']}"
        saved = own.call(f"{slot}?action=save", {"filename": "mine.bin"})
        n_saved = saved.pop("n_saved")
        assert saved["id_slot"] == first["id_slot"] and saved["filename"] == "mine.bin"
        assert saved["timings"]["save_ms"] > 0
        assert saved["n_written"] == (folder / "mine.bin.eagle-slot").stat().st_size
        assert own.call(f"{slot}?action=erase", {})["n_erased"] == n_saved
        assert "slot 0 is empty" in refused(own, f"{slot}?action=save", {"filename": "none.bin"})["message"]
        restored = own.call(f"{slot}?action=restore", {"filename": "mine.bin"})
        assert restored["n_restored"] == n_saved and restored["timings"]["restore_ms"] > 0
        again = whole(own, "/completion", {"prompt": "def main():" * 8})
        assert again["content"] == first["content"]
        assert again["timings"]["cache_n"] == first["tokens_evaluated"] - 1
        for name in ("../mine.bin", "/etc/passwd", "", "a/b"):
            for action in ("save", "restore"):
                assert refused(own, f"{slot}?action={action}", {"filename": name})["type"]
        refused(own, f"{slot}?action=restore", {"filename": "other.bin"})
        refused(own, "/slots/9?action=erase", {})
        refused(own, f"{slot}?action=delete", {})
        assert own.post("/slots/x?action=erase", {}).status_code == 404
        assert [path.name for path in folder.iterdir()] == ["mine.bin.eagle-slot"]
