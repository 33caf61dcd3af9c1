# SPDX-License-Identifier: MIT
"""Tests images over HTTP. The same image in the forms of three APIs must give the same answer, and refusals
must state the reason.
"""

from __future__ import annotations

import base64
import json
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from eaglecpp.engine.projector_worker import send
from helpers.http_server import FAST, MODEL, TARGET, TestServer, store, until
from helpers.tiny_projector import make_image, make_projector

IMAGE = make_image(1)
CODED = base64.b64encode(IMAGE).decode()
URL = f"data:image/png;base64,{CODED}"
TEXT = "What does os.path.join do?"


@pytest.fixture(scope="module")
def projector(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_projector(tmp_path_factory.mktemp("projector") / "mmproj.gguf", 320, "janus_pro")


@pytest.fixture(scope="module")
def seeing(projector: Path) -> Iterator[TestServer]:
    other = projector.with_name("other.gguf")
    shutil.copy(TARGET, other)
    files = {MODEL: TARGET, "other": other}
    with TestServer(files, preload=MODEL, model=MODEL, engine=FAST | {"mmproj": str(projector)}) as server:
        yield server


def ollama(**rest: Any) -> dict[str, Any]:
    options = {"temperature": 0, "num_predict": 24, "ignore_eos": True}
    return {"model": MODEL, "stream": False, "options": options} | rest


def openai(content: Any) -> dict[str, Any]:
    messages = [{"role": "user", "content": content}]
    return {"model": MODEL, "messages": messages, "temperature": 0, "max_tokens": 24, "ignore_eos": True}


def test_three_apis_show_the_same_image(seeing: TestServer) -> None:
    chat = ollama(messages=[{"role": "user", "content": TEXT, "images": [CODED]}])
    assert "vision" in seeing.post("/api/show", {"model": MODEL}).json()["capabilities"]
    assert "vision" in seeing.get(f"/v1/models/{MODEL}").json()["capabilities"]
    assert seeing.get(f"/props?model={MODEL}").json()["modalities"]["vision"] is True
    expected = seeing.post("/api/chat", chat).json()
    text = expected["message"]["content"]
    assert expected["prompt_eval_count"] > 64
    assert seeing.post("/api/generate", ollama(prompt=TEXT, images=[CODED])).json()["response"] == text
    parts = [{"type": "image_url", "image_url": {"url": URL}}, {"type": "text", "text": TEXT}]
    reply = seeing.post("/v1/chat/completions", openai(parts)).json()
    assert reply["choices"][0]["message"]["content"] == text
    assert reply["usage"]["prompt_tokens_details"]["cached_tokens"] > 64
    source = {"type": "base64", "media_type": "image/png", "data": CODED}
    body = openai([{"type": "image", "source": source}, {"type": "text", "text": TEXT}])
    assert seeing.post("/v1/messages", body).json()["content"][0]["text"] == text
    asked = {"model": MODEL, "temperature": 0, "max_output_tokens": 24, "ignore_eos": True, "input": [
        {"role": "user", "content": [{"type": "input_image", "image_url": URL},
                                     {"type": "input_text", "text": TEXT}]}]}  # fmt: skip
    assert seeing.post("/v1/responses", asked).json()["output"][0]["content"][0]["text"] == text


def test_results_of_tools_have_images(seeing: TestServer) -> None:
    """Results of tools can have images in Anthropic's form and in Ollama's form."""
    call = {"id": "c1", "type": "function", "function": {"name": "look", "arguments": {}}}
    turns = [
        {"role": "user", "content": TEXT},
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "content": "seen", "images": [CODED], "tool_call_id": "c1"},
    ]
    reply = seeing.call("/api/chat", ollama(messages=turns))
    assert reply["prompt_eval_count"] > 64
    source = {"type": "base64", "media_type": "image/png", "data": CODED}
    content = [{"type": "image", "source": source}, {"type": "text", "text": "seen"}]
    blocks = [
        {"role": "user", "content": TEXT},
        {"role": "assistant", "content": [{"type": "tool_use", "id": "c1", "name": "look", "input": {}}]},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "c1", "content": content}]},
    ]
    same = seeing.call("/v1/messages", openai("") | {"messages": blocks})
    assert same["content"][0]["text"] == reply["message"]["content"]
    assert same["usage"]["cache_read_input_tokens"] == reply["prompt_eval_count"] - 1


def test_image_ids_of_other_clients_are_refused(seeing: TestServer) -> None:
    seeing.post("/api/generate", ollama(prompt=TEXT, images=[CODED]))
    rows = list(range(-2, -2 - 64, -1))
    for path, body in (
        ("/v1/completions", {"model": MODEL, "prompt": [1, *rows, 5], "max_tokens": 4}),
        ("/completion", {"model": MODEL, "prompt": [1, *rows, 5], "n_predict": 4}),
    ):
        reply = seeing.post(path, body)
        assert reply.status_code == 400 and "token id -2" in reply.text, path


def test_a_projector_belongs_to_the_named_model(seeing: TestServer) -> None:
    assert "vision" not in seeing.post("/api/show", {"model": "other"}).json()["capabilities"]
    messages = [{"role": "user", "content": TEXT}]
    assert seeing.post("/api/chat", ollama(model="other", messages=messages)).status_code == 200
    messages = [{"role": "user", "content": TEXT, "images": [CODED]}]
    reply = seeing.post("/api/chat", ollama(model="other", messages=messages))
    assert reply.status_code == 400 and "--mmproj" in reply.json()["error"]


def test_a_stored_model_includes_its_projector(
    projector: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The projector of a stored model is its second FROM, as in Ollama."""
    monkeypatch.setenv("EAGLECPP_MODELS", str(tmp_path / "models"))
    store("eyes", files=f"FROM {TARGET}\nFROM {projector}")
    with TestServer(engine=FAST) as own:
        assert "vision" in own.post("/api/show", {"model": "eyes"}).json()["capabilities"]
        body = ollama(messages=[{"role": "user", "content": TEXT, "images": [CODED]}]) | {"model": "eyes"}
        assert own.post("/api/chat", body).json()["prompt_eval_count"] > 64


def test_images_that_do_not_fit_are_the_clients_error(seeing: TestServer) -> None:
    messages = [{"role": "user", "content": TEXT, "images": [CODED] * 999}]
    reply = seeing.call("/v1/chat/completions", openai("") | {"messages": messages}, 400)
    assert reply["error"]["code"] == "context_length_exceeded" and "999 images" in reply["error"]["message"]


def test_no_image_is_encoded_for_a_lost_client(seeing: TestServer, monkeypatch: pytest.MonkeyPatch) -> None:
    encoded = list[object]()

    def slow(stream: Any, message: dict[str, Any]) -> None:
        if "text" not in message:
            encoded.append(message)
            time.sleep(1.0)
        send(stream, message)

    monkeypatch.setattr("eaglecpp.engine.projector.send", slow)
    images = [base64.b64encode(make_image(seed)).decode() for seed in range(20, 26)]
    body = json.dumps(ollama(messages=[{"role": "user", "content": TEXT, "images": images}])).encode()
    head = f"POST /api/chat HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n\r\n"
    with seeing.connect(head.encode() + body):
        until(lambda: len(encoded) == 1)
    seeing.call("/api/chat", ollama(messages=[{"role": "user", "content": TEXT, "images": [CODED]}]))
    assert len(encoded) < len(images)
