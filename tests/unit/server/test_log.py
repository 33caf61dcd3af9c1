# SPDX-License-Identifier: MIT
"""Tests that the log has one line for each request, with the fields that an operator needs."""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Iterator

import pytest
import requests

from helpers.http_server import MODEL, QUESTION, TestServer, until

CHAT = {
    "model": MODEL,
    "messages": [{"role": "user", "content": QUESTION}],
    "max_tokens": 20,
    "temperature": 0,
}


@pytest.fixture(autouse=True)
def logs(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    with caplog.at_level(logging.INFO, "eaglecpp.server"):
        yield


def line_of(caplog: pytest.LogCaptureFixture, answer: requests.Response) -> str:
    """Returns the log line of a request."""

    def found() -> list[str]:
        lines = [one.getMessage() for one in caplog.records]
        return [one for one in lines if answer.headers["X-Request-Id"] in one]

    until(lambda: bool(found()))
    (line,) = found()
    assert "\n" not in line
    return line


@pytest.mark.parametrize("stream", [True, False])
def test_a_line_describes_a_request(
    server: TestServer, caplog: pytest.LogCaptureFixture, stream: bool
) -> None:
    answer = server.post("/v1/chat/completions", CHAT | {"stream": stream})
    line = line_of(caplog, answer)
    reply = answer.text if stream else json.dumps(answer.json())
    timings = json.loads(re.findall(r'"timings": ?({.*?"notices.*?})', reply)[0])
    n_prompt = timings["prompt_n"] + timings["reused_n"]
    assert re.fullmatch(
        rf"POST /v1/chat/completions 200 [\d.]+ ms \w+ {MODEL} "
        rf"prompt {n_prompt} \({timings['reused_n']} cached\) answer 20, [\d.]+ tokens/s "
        rf"drafts {timings['draft_n_accepted']}/{timings['draft_n']}",
        line,
    ), line


def test_answers_of_one_request_are_one_line(server: TestServer, caplog: pytest.LogCaptureFixture) -> None:
    assert "answer 60," in line_of(caplog, server.post("/v1/chat/completions", CHAT | {"n": 3}))
    embedded = server.post("/v1/embeddings", {"model": MODEL, "input": "a text"})
    n_prompt = embedded.json()["usage"]["prompt_tokens"]
    assert line_of(caplog, embedded).endswith(f"{MODEL} prompt {n_prompt} (0 cached)")


def test_a_refusal_has_one_line_with_any_path(server: TestServer, caplog: pytest.LogCaptureFixture) -> None:
    assert server.get("/static/page.js").status_code == 200
    answer = server.get("/x%0a2026-11-28 INFO POST /made/up 200")
    assert answer.status_code == 404 and " 404 " in line_of(caplog, answer)
    assert "/static/" not in caplog.text, "requests for the page's files must not be logged"
    assert 'path="/static/{name:path}"' in server.get("/metrics").text
