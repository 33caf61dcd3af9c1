# SPDX-License-Identifier: MIT
"""Tests embeddings over HTTP: the form of each API, the errors of each API, and fair turns between
requests.
"""

from __future__ import annotations

import base64
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from eaglecpp import Engine
from helpers.http_server import TARGET, TestServer
from helpers.tiny_bert import make_bert

TEXTS = ["the quick fox", "a", "the lazy dog, and again"]


@pytest.fixture(scope="module")
def bert(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_bert(tmp_path_factory.mktemp("bert") / "bert.gguf")


@pytest.fixture(scope="module")
def running(bert: Path, store_root: Path) -> Iterator[TestServer]:
    with TestServer({"bert": bert, "demo": TARGET}, draft=None, n_queue=4) as server:
        yield server


@pytest.fixture(scope="module")
def vectors(bert: Path) -> Any:
    with Engine.open(bert, n_threads=1) as engine:
        return np.array([one.vector for one in engine.embed(TEXTS)])


def test_ollamas_answer(running: TestServer, vectors: Any) -> None:
    answer = running.call("/api/embed", {"model": "bert", "input": TEXTS})
    assert np.array(answer["embeddings"]) == pytest.approx(vectors, abs=1e-5)
    assert answer["model"] == "bert" and answer["prompt_eval_count"] > len(TEXTS)
    assert answer["total_duration"] > 0 and answer["load_duration"] > 0
    one = running.call("/api/embed", {"model": "bert", "input": TEXTS[0], "dimensions": 8})
    assert one["embeddings"][0] == pytest.approx(vectors[0][:8] / np.linalg.norm(vectors[0][:8]), abs=1e-5)
    old = running.call("/api/embeddings", {"model": "bert", "prompt": TEXTS[0]})
    assert old["embedding"] == pytest.approx(vectors[0], abs=1e-5)
    for empty in ({}, {"input": ""}, {"input": []}):
        assert running.call("/api/embed", {"model": "bert", **empty})["embeddings"] == []
    assert running.call("/api/embeddings", {"model": "bert", "prompt": ""}) == {"embedding": []}


def test_ollamas_truncation_and_errors(running: TestServer) -> None:
    body = {"model": "bert", "input": "the fox " * 200}
    assert running.call("/api/embed", body)["prompt_eval_count"] == 128
    assert running.call("/api/embed", body | {"options": {"num_ctx": 32}})["prompt_eval_count"] == 32
    assert "but the context holds 128" in running.call("/api/embed", body | {"truncate": False}, 400)["error"]
    assert "not found" in running.call("/api/embed", {"model": "nobody", "input": "x"}, 404)["error"]
    assert "required" in running.call("/api/embed", {"input": "x"}, 400)["error"]


def test_openais_answer(running: TestServer, bert: Path, vectors: Any) -> None:
    answer = running.call("/v1/embeddings", {"model": "bert", "input": TEXTS})
    assert [one["index"] for one in answer["data"]] == [0, 1, 2] and answer["object"] == "list"
    assert np.array([one["embedding"] for one in answer["data"]]) == pytest.approx(vectors, abs=1e-5)
    assert answer["usage"]["prompt_tokens"] == answer["usage"]["total_tokens"] > len(TEXTS)
    coded = running.call("/v1/embeddings", {"model": "bert", "input": TEXTS[0], "encoding_format": "base64"})
    data = base64.b64decode(coded["data"][0]["embedding"])
    assert np.frombuffer(data, "<f4") == pytest.approx(vectors[0], abs=1e-5)
    with Engine.open(bert) as engine:
        tokens = [engine.native.tokenize(text.encode(), True, True) for text in TEXTS]
    for input, n in ((tokens, 3), (tokens[0], 1)):
        found = running.call("/v1/embeddings", {"model": "bert", "input": input})["data"]
        assert np.array([one["embedding"] for one in found]) == pytest.approx(vectors[:n], abs=1e-5)


def test_a_text_that_does_not_fit_has_openais_code(running: TestServer) -> None:
    error = running.call("/v1/embeddings", {"model": "bert", "input": "the fox " * 200}, 400)["error"]
    assert [*error.values()][1:] == ["invalid_request_error", "input", "context_length_exceeded"]


def test_an_embedding_model_refuses_to_generate(running: TestServer) -> None:
    error = running.call("/v1/completions", {"model": "bert", "prompt": "x"}, 400)["error"]
    assert "bert.gguf is an embedding model" in error["message"]
    assert running.call("/api/show", {"model": "bert"})["capabilities"] == ["embedding"]
    loaded = {one["name"]: one for one in running.get("/api/ps").json()["models"]}
    assert loaded["bert"]["context_length"] == 128 and not loaded["bert"]["drafts"]
    assert running.get("/health").json()["status"] == "ok" and running.metric("eaglecpp_model_bytes") > 0
