# SPDX-License-Identifier: MIT
"""llama-server's own endpoints, and a server that was started on one file."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from eaglecpp import Engine
from helpers.http_server import FAST, TestServer
from helpers.infill import write_infill_pair

MODEL = "coder"
PREFIX, SUFFIX = "def main():\n    ", "\n    return 0\n"
LINES = {"grammar": r'root ::= "  a\n" "  b\n" "c\n" "d"', "n_predict": 40, "ignore_eos": False}
"""Whatever the model would like to say."""
SHORT = {"temperature": 0, "n_predict": 8, "seed": 1, "ignore_eos": True}


@pytest.fixture(scope="module")
def coder(store_root: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[TestServer]:
    """A server of one file, whose vocabulary has tokens for infilling."""
    target, draft = write_infill_pair(tmp_path_factory.mktemp("coder"))
    with TestServer(files={MODEL: target}, draft=str(draft), preload=MODEL, model=MODEL) as running:
        yield running


def whole(server: TestServer, path: str, body: dict[str, Any]) -> Any:
    answer = server.post(path, SHORT | body)
    assert answer.status_code == 200, answer.text
    return answer.json()


def refused(server: TestServer, path: str, body: Any, status: int = 400) -> dict[str, Any]:
    answer = server.post(path, body)
    assert answer.status_code == status, answer.text
    error = answer.json()["error"]
    assert error["code"] == status
    return dict(error)


def tokens_of(server: TestServer, text: str, **options: Any) -> list[int]:
    return list(server.post("/tokenize", {"content": text, **options}).json()["tokens"])


# A server of one file


@pytest.mark.parametrize("name", ["gpt-3.5-turbo", "", "/models/x.gguf", "a b", "hf.co/a/b:Q4_0", None])
def test_a_server_of_one_file_answers_to_any_name_with_its_own(coder: TestServer, name: str | None) -> None:
    named = {} if name is None else {"model": name}
    turns = [{"role": "user", "content": "x"}]
    for path, body in (
        ("/v1/chat/completions", {"messages": turns, "max_tokens": 2}),
        ("/v1/completions", {"prompt": "x", "max_tokens": 2}),
        ("/v1/responses", {"input": "x", "max_output_tokens": 2}),
        ("/v1/messages", {"messages": turns, "max_tokens": 2}),
        ("/api/chat", {"messages": turns, "stream": False, "options": {"num_predict": 2}}),
        ("/api/generate", {"prompt": "x", "stream": False, "options": {"num_predict": 2}}),
        ("/completion", {"prompt": "x", "n_predict": 2}),
    ):
        answer = coder.post(path, {**body, **named})
        assert answer.status_code == 200 and answer.json()["model"] == MODEL, (path, answer.text)
    chunks = list(coder.events("/v1/chat/completions", {"messages": turns, **named}))
    assert all(chunk["model"] == MODEL for chunk in chunks[:-1])
    assert coder.metric("eaglecpp_model_loads_total") == 1


def test_a_server_of_many_models_still_tells_names_apart(server: TestServer) -> None:
    body = {"prompt": "x", "max_tokens": 1}
    assert server.post("/v1/completions", {**body, "model": "gpt-3.5-turbo"}).status_code == 404
    nameless = server.post("/v1/completions", body)
    assert nameless.status_code == 400 and nameless.json()["error"]["param"] == "model"
    assert "model is required" in refused(server, "/completion", {"prompt": "x"})["message"]
    assert refused(server, "/completion", {"prompt": "x", "model": "none"}, 404)["type"] == "not_found_error"


# Completions


def test_a_completion_has_the_fields_that_llama_server_gives(coder: TestServer) -> None:
    told = whole(coder, "/completion", {"prompt": "def main():", "return_tokens": True})
    assert set(told) >= {
        "index", "content", "tokens", "id_slot", "stop", "model", "tokens_predicted", "tokens_evaluated",
        "generation_settings", "prompt", "has_new_line", "truncated", "stop_type", "stopping_word",
        "tokens_cached", "timings",
    }  # fmt: skip
    assert told["stop"] is True and told["stop_type"] == "limit" and told["truncated"] is False
    assert len(told["tokens"]) == told["tokens_predicted"] == told["timings"]["predicted_n"] == 8
    assert told["tokens_evaluated"] == told["timings"]["prompt_n"] + told["timings"]["cache_n"]
    assert told["prompt"].endswith("def main():") and told["id_slot"] in (0, 1)
    assert told["generation_settings"]["n_predict"] == 8 and told["generation_settings"]["seed"] == 1
    assert told["generation_settings"]["top_p"] == pytest.approx(0.95)  # llama.cpp's, not Ollama's
    assert whole(coder, "/completion", {"prompt": "def main():"})["tokens"] == []


def test_a_stream_is_the_same_in_parts(coder: TestServer) -> None:
    body = {"prompt": "def main():", **SHORT, "timings_per_token": True}
    *parts, last = coder.events("/completion", body)
    assert "".join(part["content"] for part in parts) == whole(coder, "/completion", body)["content"]
    assert all(part["stop"] is False and part["timings"]["prompt_n"] >= 0 for part in parts)
    assert sum(len(part["tokens"]) for part in parts) == 8 == parts[-1]["tokens_predicted"]
    assert (last["stop"], last["content"], last["tokens"]) == (True, "", [])
    assert last["generation_settings"]["stream"] is True and last["stop_type"] == "limit"


def test_a_prompt_may_be_text_tokens_or_both(coder: TestServer) -> None:
    text = whole(coder, "/completion", {"prompt": "def main():"})
    head, rest = tokens_of(coder, "def main", add_special=True), tokens_of(coder, "():")
    as_object = {"prompt_string": "def main():"}
    for prompt in (head + rest, [*head, "():"], ["def main", *rest], [[*head, "():"]], as_object):
        told = whole(coder, "/completion", {"prompt": prompt})
        assert (told["content"], told["prompt"]) == (text["content"], text["prompt"]), prompt
    for prompt in ([], {}, 7, [["a"], 7.5], None, [True]):
        assert "prompt must be" in refused(coder, "/completion", {"prompt": prompt})["message"]
    assert "token id 99999" in refused(coder, "/completion", {"prompt": [99999]})["message"]
    assert refused(coder, "/completion", {"prompt": "x " * 600})["type"] == "exceed_context_size_error"


def test_several_prompts_are_answered_side_by_side(coder: TestServer) -> None:
    prompts = ["def main():", "import os", "class A:"]
    alone = [whole(coder, "/completion", {"prompt": prompt})["content"] for prompt in prompts]
    told = whole(coder, "/completion", {"prompt": prompts})
    assert [(one["index"], one["content"]) for one in told] == list(enumerate(alone))
    texts = ["", "", ""]
    for part in coder.events("/completion", {"prompt": prompts, **SHORT}):
        texts[part["index"]] += part["content"]
    assert texts == alone
    twice = whole(coder, "/completion", {"prompt": "def main():", "n_cmpl": 2, "temperature": 5, "top_k": 0})
    assert [one["generation_settings"]["seed"] for one in twice] == [1, 2]
    assert twice[0]["content"] != twice[1]["content"]
    assert "n_cmpl" in refused(coder, "/completion", {"prompt": "x", "n_cmpl": 99})["message"]
    assert "token id" in refused(coder, "/completion", {"prompt": ["a", [99999]]})["message"]


def test_how_an_answer_ended(coder: TestServer) -> None:
    told = whole(coder, "/completion", {"prompt": "x", **LINES, "stop": ["b"]})
    assert (told["content"], told["stop_type"], told["stopping_word"]) == ("  a\n  ", "word", "b")
    told = whole(coder, "/completion", {"prompt": "x", **LINES})
    assert (told["stop_type"], told["has_new_line"], told["stopping_word"]) == ("eos", True, "")
    told = whole(coder, "/completion", {"prompt": "x", "n_predict": -1, "ignore_eos": True})
    assert told["truncated"] is True and told["stop_type"] == "limit"
    assert told["tokens_evaluated"] + told["tokens_predicted"] == 512


@pytest.mark.parametrize("draft", [True, False])
def test_an_answer_ends_where_a_line_begins_further_left(coder: TestServer, draft: bool) -> None:
    told = whole(coder, "/completion", {"prompt": "x", **LINES, "n_indent": 2, "draft": draft})
    assert (told["content"], told["stop_type"]) == ("  a\n  b\n", "limit")
    assert whole(coder, "/completion", {"prompt": "x", **LINES, "n_indent": 0})["content"].endswith("c\nd")


def test_an_answer_that_takes_long_ends_with_its_line(coder: TestServer) -> None:
    """The time is over at once here; the first line may have been the first token."""
    told = whole(coder, "/completion", {"prompt": "x", **LINES, "t_max_predict_ms": -1})
    assert told["stop_type"] == "eos"
    answer = whole(coder, "/completion", {"prompt": "x", **LINES, "t_max_predict_ms": 1e-6})
    assert answer["stop_type"] == "limit" and answer["content"].endswith("\n")


def test_samplers_that_are_not_named_do_nothing(coder: TestServer) -> None:
    told = whole(
        coder, "/completion", {"prompt": "x", "samplers": ["top_k", "top_p", "infill"], "min_p": 0.3}
    )
    settings = told["generation_settings"]
    assert (settings["min_p"], settings["temperature"], settings["infill"]) == (0.0, 1.0, True)
    assert settings["top_k"] == 40 and settings["top_p"] == pytest.approx(0.95)
    assert settings["samplers"][-2:] == ["infill", "temperature"]
    letters = whole(coder, "/completion", {"prompt": "x", "samplers": "ki"})["generation_settings"]
    assert (letters["top_k"], letters["top_p"], letters["infill"]) == (40, 1.0, True)
    assert "samplers must be" in refused(coder, "/completion", {"prompt": "x", "samplers": 7})["message"]


def test_biases_by_token_and_by_text(coder: TestServer) -> None:
    said = whole(coder, "/completion", {"prompt": "def main():", "return_tokens": True})["tokens"][0]
    (text,) = [coder.post("/detokenize", {"tokens": [said]}).json()["content"]]
    for bias in ([[said, False]], {str(said): False}, [[text, False]], {text: -100}):
        body = {"prompt": "def main():", "return_tokens": True, "logit_bias": bias}
        assert whole(coder, "/completion", body)["tokens"][0] != said, bias
    for bias in (7, [[1]], [[1, "x"]], [[1, True]], [[None, 1]]):
        assert "logit_bias" in refused(coder, "/completion", {"prompt": "x", "logit_bias": bias})["message"]


def test_probabilities_have_token_ids(coder: TestServer) -> None:
    told = whole(
        coder, "/completion", {"prompt": "def main():", "n_probs": 2, "return_tokens": True, "n_predict": 4}
    )
    listed = told["completion_probabilities"]
    assert [one["id"] for one in listed] == told["tokens"]
    for one in listed:
        assert len(one["top_logprobs"]) == 2 and one["top_logprobs"][0]["id"] == one["id"]
        assert one["logprob"] == one["top_logprobs"][0]["logprob"] and isinstance(one["bytes"], list)
    body = {"prompt": "x", "n_probs": 1, "post_sampling_probs": True}
    assert "post_sampling_probs" in refused(coder, "/completion", body)["message"]


def test_a_response_has_the_fields_that_were_asked_for(coder: TestServer) -> None:
    fields = ["content", "timings/predicted_n", "generation_settings/n_predict", "none", "content/none"]
    told = whole(coder, "/completion", {"prompt": "x", "response_fields": fields})
    assert set(told) == set(fields[:3]) and told["timings/predicted_n"] == 8


def test_a_prompt_is_cached_unless_the_request_says_no(coder: TestServer) -> None:
    body = {"prompt": "Once there was a model that read the same words again. " * 4}
    first = whole(coder, "/completion", body)
    again = whole(coder, "/completion", body)["timings"]
    assert again["cache_n"] == first["tokens_evaluated"] - 1 and again["prompt_n"] == 1
    fresh = whole(coder, "/completion", {**body, "cache_prompt": False, "id_slot": 1})
    assert fresh["timings"]["cache_n"] == 0 and fresh["content"] == first["content"]


def test_a_json_schema_is_obeyed(coder: TestServer) -> None:
    schema = {"type": "object", "properties": {"a": {"const": 1}}, "required": ["a"]}
    told = whole(coder, "/completion", {"prompt": "x", "json_schema": schema, "n_predict": 60})
    assert told["content"].replace(" ", "").replace("\n", "").startswith('{"a":1')


# Infill


def test_infill_asks_with_the_tokens_of_the_file(coder: TestServer) -> None:
    """The form in which llama.vim and llama.vscode ask."""
    body = {
        "input_prefix": "def main():\n",
        "input_suffix": SUFFIX,
        "prompt": "    ",
        "input_extra": [{"filename": "a.py", "text": "import os\n", "time": 1}],
        "n_predict": 16, "n_indent": 0, "stop": [], "top_k": 40, "top_p": 0.99, "stream": False,
        "samplers": ["top_k", "top_p", "infill"], "cache_prompt": True, "t_max_prompt_ms": 500,
        "t_max_predict_ms": 100000, "id_slot": 0,
        "response_fields": ["content", "prompt", "timings/prompt_n", "truncated", "tokens_cached", "model"],
    }  # fmt: skip
    told = whole(coder, "/infill", body)
    assert set(told) == set(body["response_fields"]) and told["model"] == MODEL
    assert told["prompt"] == (
        "<|repo_name|>myproject\n<|file_sep|>a.py\nimport os\n<|file_sep|>filename\n"
        f"<|fim_prefix|>def main():\n    <|fim_suffix|>{SUFFIX}<|fim_middle|>"
    )
    assert list(coder.events("/infill", {**body, "response_fields": []}))[-1]["stop"] is True


def test_infill_leaves_out_what_is_far_from_the_gap(coder: TestServer) -> None:
    text = "".join(f"line {i}\n" for i in range(400))
    body = {"input_prefix": text, "input_suffix": text, "input_extra": [{"text": "far away"}]}
    told = whole(coder, "/infill", body)
    prefix, _, suffix = told["prompt"].partition("<|fim_suffix|>")
    assert told["tokens_evaluated"] + 8 <= 512 and "far away" not in prefix
    assert prefix.endswith("line 399\n") and suffix.startswith("line 0\n")
    assert len(prefix) > 2 * len(suffix)


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ({"input_prefix": "x"}, "input_suffix"),
        ({"input_prefix": "x", "input_suffix": 1}, "input_suffix must be a string"),
        ({"input_prefix": "", "input_suffix": "", "input_extra": [{}]}, "input_extra[0]"),
        ({"input_prefix": "", "input_suffix": "", "input_extra": {}}, "input_extra must be a list"),
        ({"input_prefix": "", "input_suffix": "", "input_extra": [{"text": "a", "filename": 1}]}, "filename"),
        ({"input_prefix": "", "input_suffix": "", "prompt": ["a"]}, "prompt must be a string"),
    ],
)
def test_bad_requests_for_infill(coder: TestServer, body: dict[str, Any], said: str) -> None:
    assert said in refused(coder, "/infill", body)["message"]


def test_the_other_apis_infill_too(coder: TestServer, server: TestServer) -> None:
    body = {"input_prefix": PREFIX, "input_suffix": SUFFIX}
    with Engine.open(coder.get("/props").json()["model_path"], **FAST) as engine:
        asked = engine.infill_prompt(PREFIX, SUFFIX)
    said = whole(coder, "/completion", {"prompt": asked, "ignore_eos": False})["content"]
    of_openai = {"prompt": PREFIX, "suffix": SUFFIX, "max_tokens": 8, "temperature": 0}
    assert coder.post("/v1/completions", of_openai).json()["choices"][0]["text"] == said
    options = {"num_predict": 8, "temperature": 0}
    of_ollama = {"prompt": PREFIX, "suffix": SUFFIX, "stream": False, "options": options}
    told = coder.post("/api/generate", of_ollama).json()
    assert (told["response"], told["prompt_eval_count"]) == (said, len(asked))
    told = coder.post("/api/generate", of_ollama | {"template": "{{ .Suffix }}|{{ .Prompt }}"}).json()
    assert told["prompt_eval_count"] == len(tokens_of(coder, f"{SUFFIX}|{PREFIX}", add_special=True))
    assert "suffix" in coder.post("/api/generate", of_ollama | {"raw": True}).json()["error"]
    for path, given in (("/v1/completions", of_openai), ("/api/generate", of_ollama)):
        answer = server.post(path, {**given, "model": "demo"})
        assert answer.status_code == 400 and "no prefix and no suffix and no middle token" in answer.text
    assert "fim_pre_token_id" in refused(server, "/infill", {**body, "model": "demo"}, 501)["message"]


# Tokens, templates, properties, slots


def test_texts_to_tokens_and_back(coder: TestServer) -> None:
    text = "def f(): <|fim_prefix|> é"
    special, plain = tokens_of(coder, text), tokens_of(coder, text, parse_special=False)
    assert len(special) < len(plain)
    for tokens in (special, plain):
        assert coder.post("/detokenize", {"tokens": tokens}).json() == {"content": text}
    told = coder.post("/tokenize", {"content": "aé", "with_pieces": True}).json()["tokens"]
    assert (
        b"".join(
            one["piece"].encode() if isinstance(one["piece"], str) else bytes(one["piece"]) for one in told
        )
        == "aé".encode()
    )
    assert coder.post("/tokenize", {"content": ["def", special[0]]}).json()["tokens"][-1] == special[0]
    for nothing in ({}, {"content": ""}, {"content": []}):
        assert coder.post("/tokenize", nothing).json() == {"tokens": []}
    assert coder.post("/detokenize", {}).json() == {"content": ""}
    assert "token id" in refused(coder, "/detokenize", {"tokens": [-1]})["message"]
    assert "content must be" in refused(coder, "/tokenize", {"content": 7})["message"]


def test_the_template_alone(coder: TestServer) -> None:
    turns = [{"role": "user", "content": "What is len?"}]
    text = coder.post("/apply-template", {"messages": turns}).json()["prompt"]
    assert "What is len?" in text
    chat = coder.post("/v1/chat/completions", {"messages": turns, "max_tokens": 1}).json()
    assert chat["usage"]["prompt_tokens"] == len(tokens_of(coder, text, add_special=True))
    assert "messages" in refused(coder, "/apply-template", {})["message"]


def test_properties(coder: TestServer, server: TestServer) -> None:
    told = coder.get("/props").json()
    assert told["total_slots"] == 2 and told["model_alias"] == MODEL and told["model_path"].endswith(".gguf")
    defaults = told["default_generation_settings"]
    assert defaults["n_ctx"] == 512 and defaults["params"]["temperature"] == pytest.approx(0.8)
    assert told["chat_template"] and isinstance(told["bos_token"], str)
    assert server.get("/props?model=demo").json()["model_alias"] == "demo"
    assert server.get("/props").status_code == 400
    for path in ("/props", "/slots/0?action=erase"):
        assert refused(coder, path, {}, 501)["type"] == "not_supported_error"


def test_slots_say_what_runs_there(coder: TestServer) -> None:
    events = coder.events(
        "/completion", {"prompt": "x", "n_predict": 400, "ignore_eos": True, "draft": False}
    )
    number = next(events)["id_slot"]
    slots = coder.get("/slots").json()
    assert [slot["id"] for slot in slots] == [0, 1] and all(slot["n_ctx"] == 512 for slot in slots)
    busy = slots[number]
    if busy["is_processing"]:  # it may have ended meanwhile
        (state,) = busy["next_token"]
        assert busy["params"]["n_predict"] == 400 == state["n_remain"] + state["n_decoded"]
    list(events)
    assert not any(slot["is_processing"] for slot in coder.get("/slots?fail_on_no_slot=1").json())


def test_health_needs_no_key(store_root: Any) -> None:
    with TestServer(keys=("secret",)) as locked:
        for path in ("/health", "/v1/health"):
            assert locked.get(path).json()["status"] == "ok"
        assert locked.get("/props").json()["error"]["code"] == 401


def test_paths_without_a_version(coder: TestServer) -> None:
    assert coder.get("/models").json()["data"][0]["id"] == MODEL
    turns = [{"role": "user", "content": "x"}]
    told = coder.post("/chat/completions", {"messages": turns, "max_tokens": 2}).json()
    assert told["object"] == "chat.completion"


def test_the_page_of_llama_server_may_ask_openais_endpoint(coder: TestServer) -> None:
    """With its own fields for sampling."""
    body = {"messages": [{"role": "user", "content": "What is len? " * 3}], "max_tokens": 4, "temperature": 0}
    unknown = {
        "return_progress": True,
        "reasoning_format": "auto",
        "timings_per_token": True,
        "dynatemp_range": 0,
    }
    first = coder.post("/v1/chat/completions", body | unknown | {"samplers": ["top_k", "temperature"]}).json()
    assert coder.post("/v1/chat/completions", body).json()["choices"] == first["choices"]
    fresh = coder.post("/v1/chat/completions", body | {"cache_prompt": False}).json()
    assert fresh["usage"]["prompt_tokens_details"]["cached_tokens"] == 0
    refusal = coder.post("/v1/chat/completions", body | {"xtc_probability": 7})
    assert refusal.status_code == 400 and "xtc_probability" in refusal.text
