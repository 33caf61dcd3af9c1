# SPDX-License-Identifier: MIT
"""The log of requests: one line each, with what an operator asks about."""

from __future__ import annotations

import json
import logging
import re
from pathlib import Path
from typing import Any

import pytest
import requests

from helpers.http_server import MODEL, QUESTION, TARGET, TestServer, until
from helpers.serve_process import QUICK, free_port, start_server

CHAT = {
    "model": MODEL,
    "messages": [{"role": "user", "content": QUESTION}],
    "max_tokens": 20,
    "temperature": 0,
}


def logged(caplog: pytest.LogCaptureFixture, id: str) -> Any:
    """The one line of a request."""

    def found() -> list[logging.LogRecord]:
        return [one for one in caplog.records if getattr(one, "request_id", "") == id]

    until(lambda: bool(found()))
    (record,) = found()
    return record


@pytest.mark.parametrize("stream", [True, False])
def test_a_line_says_what_a_request_had(
    server: TestServer, caplog: pytest.LogCaptureFixture, stream: bool
) -> None:
    with caplog.at_level(logging.INFO, "eaglecpp.server"):
        answer = server.post("/v1/chat/completions", CHAT | {"stream": stream})
        record = logged(caplog, answer.headers["X-Request-Id"])
    told = answer.text if stream else json.dumps(answer.json())
    timings = json.loads(re.findall(r'"timings": ?({.*?"notices.*?})', told)[0])
    assert (record.model, record.status, record.path) == (MODEL, 200, "/v1/chat/completions")
    for name in ("prompt_n", "reused_n", "predicted_n", "draft_n", "draft_n_accepted"):
        assert getattr(record, name) == timings[name], name
    assert record.predicted_n == 20 and record.predicted_per_second > 0
    line = record.getMessage()
    n_prompt = timings["prompt_n"] + timings["reused_n"]
    parts = (MODEL, f"prompt {n_prompt} ({timings['reused_n']} cached)", "answer 20,",
             f"drafts {timings['draft_n_accepted']}/{timings['draft_n']}", record.request_id)  # fmt: skip
    assert all(part in line for part in parts), line
    assert QUESTION not in line and "\n" not in line


def test_answers_of_one_request_are_one_line(server: TestServer, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "eaglecpp.server"):
        answer = server.post("/v1/chat/completions", CHAT | {"n": 3})
        assert logged(caplog, answer.headers["X-Request-Id"]).predicted_n == 60
        embedded = server.post("/v1/embeddings", {"model": MODEL, "input": "a text"})
        record = logged(caplog, embedded.headers["X-Request-Id"])
        assert (record.model, record.prompt_n) == (MODEL, embedded.json()["usage"]["prompt_tokens"])


def test_what_is_refused_has_a_line_and_no_path_makes_two(
    server: TestServer, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO, "eaglecpp.server"):
        answer = server.get("/x%0a2026-11-28 INFO POST /made/up 200")
        record = logged(caplog, answer.headers["X-Request-Id"])
    assert answer.status_code == record.status == 404 and "\n" not in record.getMessage()
    assert not hasattr(record, "model")


def test_lines_have_the_time(tmp_path: Path) -> None:
    for options, form in (((), r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d INFO GET /api/version 200 [\d.]+ ms "),
                          (("--log-json",), r'{"time": "[\d-]+T[\d:.]+Z", "level": "info", ')):  # fmt: skip
        path, port = tmp_path / f"log{len(options)}", free_port()
        with path.open("wb") as file:
            process = start_server(TARGET, port, *QUICK, *options, output=file)
            try:
                answer = requests.get(f"http://127.0.0.1:{port}/api/version", timeout=60)
                id = answer.headers["X-Request-Id"]
                until(lambda: id in path.read_text())  # noqa: B023
            finally:
                process.terminate()
                process.wait()
        (line,) = [one for one in path.read_text().splitlines() if id in one]
        assert re.match(form, line), line
