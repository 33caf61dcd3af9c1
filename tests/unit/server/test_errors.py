# SPDX-License-Identifier: MIT
"""Tests which errors are blamed on the client, and which on the server: hostile bodies at every endpoint,
internal errors, errors of files and of other servers.
"""

from __future__ import annotations

import copy
import ctypes
import functools
import gzip
import json
import logging
import operator
import os
import shutil
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, get_args

import msgspec
import pytest
import requests
from starlette.routing import Route

from eaglecpp import errors, limits
from eaglecpp.convert import errors as convert_errors
from eaglecpp.results import FinishReason
from eaglecpp.server import anthropic, bodies, llama_server, ollama, openai, responses
from eaglecpp.server.answer import Answer
from eaglecpp.server.errors import as_api_error
from eaglecpp.server.http import dump
from eaglecpp.store import Stores
from eaglecpp.store.errors import DigestError, DownloadError, OfflineError
from helpers.bodies import BODIES, TOOL, TURNS, USUAL
from helpers.http_server import DRAFT, MODEL, TARGET, TestServer, until
from helpers.hub_server import HubServer


def places(value: Any, at: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Yields the path of every value inside a JSON value, as keys and indices."""
    entries = (
        value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    )
    for key, entry in entries:
        yield (*at, key)
        yield from places(entry, (*at, key))


def changed(body: dict[str, Any], place: tuple[Any, ...], value: Any) -> bytes:
    made = copy.deepcopy(body)
    inner: Any = made
    for key in place[:-1]:
        inner = inner[key]
    inner[place[-1]] = value
    return json.dumps(made).encode()


def message_of(answer: requests.Response, path: str) -> str:
    """Returns the text of an error, which has the form of the API to which `path` belongs."""
    answer.content.decode("utf-8")
    body = answer.json()
    if not path.startswith("/v1/"):
        assert set(body) == {"error"}, body
        return str(body["error"])
    if path.startswith("/v1/messages"):
        assert set(body) == {"type", "error"} and set(body["error"]) == {"type", "message"}, body
    else:
        assert set(body) == {"error"} and set(body["error"]) == {"message", "type", "param", "code"}, body
        return "{message} (param {param})".format(**body["error"])
    return str(body["error"]["message"])


PROMPTED = ("/completion", "/v1/completions")
PICTURE = {"type": "image_url", "image_url": {"url": "x"}}
RESULT = {"type": "function_call_output", "call_id": "c1", "output": "sun"}
LOOSE = {"name": "f", "schema": {"type": "object", "not": {"required": ["a"]}}, "strict": True}
STRICT = {"name": "f", "parameters": LOOSE["schema"], "strict": True}
REFUSED: list[tuple[str, Any, str]] = [
    ("/api/chat", b"{", "not JSON"),
    ("/api/chat", b"", "missing request body"),
    ("/api/chat", b"[1]", "expected the body as a JSON object"),
    ("/api/chat", {"model": ""}, "model is required"),
    ("/api/chat", {"messages": ["x"]}, "messages[0]: expected an object"),
    *(("/api/chat", {"messages": [message]}, said) for message, said in (
        ({"content": "x"}, "expected a role"),
        ({"role": "user", "content": 7}, "content must be text"),
        ({"role": "user", "content": [{"type": "image_url"}]}, "expected data:image"),
        ({"role": "assistant", "tool_calls": [{}]}, "expected an object with function.name"),
        ({"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": "{"}}]}, "not JSON"),
        ({"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": [1]}}]},
         "an object of arguments"),
    )),
    ("/api/chat", {"think": "very"}, "think: "),
    ("/api/chat", {"think": True}, "does not support thinking"),
    ("/api/chat", {"keep_alive": "soon"}, "keep_alive: "),
    ("/api/chat", {"tools": [{"type": "function"}]}, "tools[0]"),
    ("/api/chat", {"exact": "very"}, "exact: expected one of"),
    ("/api/chat", {"strategy": "chain:99"}, "99 nodes"),
    ("/api/chat", {"strategy": "quick"}, "expected auto"),
    *(("/api/chat", {"options": options}, next(iter(options))) for options in (
        {"temperature": "hot"}, {"seed": [1]}, {"stop": 5}, {"dry_sequence_breakers": 5}, {"min_keep": 1.5},
    )),
    ("/api/chat", {"format": "yaml"}, "invalid format"),
    ("/api/chat", {"format": {"type": "object", "properties": 7}}, "schema"),
    ("/api/generate", {"raw": True, "system": "x"}, "raw mode"),
    ("/api/generate", {"context": [1]}, "context is not supported"),
    ("/api/generate", {"suffix": "x"}, "suffix"),
    ("/v1/chat/completions", {"n": 129}, "n: "),
    ("/v1/completions", {"n": 2, "best_of": 3}, "best_of: "),
    ("/v1/chat/completions", {"temperature": 3}, "temperature: expected float <= 2.0, found 3"),
    ("/v1/chat/completions", {"tool_choice": "required"}, "tool_choice: "),
    ("/v1/chat/completions", {"tools": [TOOL], "tool_choice": {"type": "allowed_tools"}}, "tool_choice: "),
    ("/v1/chat/completions", {"response_format": {"type": "xml"}}, "response_format: "),
    ("/v1/chat/completions", {"grammar": "root ::= ("}, "grammar"),
    *(("/v1/chat/completions", {"grammar": 'root ::= "a"', **form}, "give one of grammar") for form in (
        {"response_format": {"type": "json_object"}},
        {"response_format": {"type": "json_object"}, "tools": [TOOL]},
        {"tool_choice": "required", "tools": [TOOL]},
    )),
    *((path, body | {"max_tokens": 1}, '["not"]') for path, body in (
        ("/v1/chat/completions", {"tools": [{"type": "function", "function": STRICT}]}),
        ("/v1/chat/completions", {"tools": [{"function": STRICT}], "tool_choice": "required"}),
        ("/v1/chat/completions", {"response_format": {"type": "json_schema", "json_schema": LOOSE}}),
        ("/api/chat", {"tools": [{"type": "function", "function": STRICT}]}),
        ("/v1/messages", {"tools": [{"name": "f", "input_schema": STRICT["parameters"], "strict": True}]}),
    )),
    ("/v1/responses", {"tools": [{"type": "function", **STRICT}]}, '["not"]'),
    ("/v1/responses", {"text": {"format": {"type": "json_schema", **LOOSE}}}, '["not"]'),
    *((path, {"messages": [{"role": "user", "content": "x " * 2000}]}, said) for path, said in (
        ("/v1/chat/completions", "exceeds the available context size"),  # clients search for these words
        ("/v1/messages", "prompt is too long"),
    )),
    ("/v1/completions", {"prompt": "x " * 2000}, "(param prompt)"),
    ("/v1/responses", {"input": "x " * 2000}, "(param input)"),
    *(("/v1/responses", {name: "x"}, f"{name}: ") for name in ("conversation", "prompt", "truncation")),
    ("/v1/chat/completions", {"messages": [{"role": "user", "content": [PICTURE]}]}, "messages[0]: "),
    ("/v1/completions", {"prompt": [1], "suffix": "b"}, "suffix: "),
    ("/v1/messages", {"max_tokens": None}, "missing required field max_tokens"),
    ("/v1/messages", {"max_tokens": 0}, "max_tokens"),
    ("/v1/messages", {"tools": [{"type": "web_search_20250305", "name": "x"}]}, "web_search_20250305"),
    ("/v1/messages", {"output_config": {"format": {"type": "xml"}}}, "output_config.format"),
    ("/v1/messages", {"system": [{"type": "image", "source": {}}]}, "system"),
    # this server does not keep answers for later requests
    ("/v1/responses", {"background": True}, "background"),
    ("/v1/responses", {"previous_response_id": "x"}, "previous_response_id: 'x' not found: this server"),
    ("/v1/responses", {"reasoning": {"x": "y" * (1 << 20)}}, "reasoning"),
    ("/v1/responses", {"parallel_tool_calls": [0] * (1 << 19)}, "parallel_tool_calls"),
    *(("/v1/chat/completions", wrong, said) for wrong, said in (
        ({"stop": ["x"] * 300_000}, f"stop: expected at most {limits.STOP_STRINGS} texts, found 300000"),
        ({"stop": ["x" * 20_000]}, f"at most {limits.STOP_CHARS} characters in all, found 20000"),
        ({"logit_bias": dict.fromkeys(map(str, range(20_000)), 1)}, f"at most {limits.LOGIT_BIASES} entries"),
        ({"options": {"dry_sequence_breakers": ["x"] * 2000}}, f"at most {limits.DRY_BREAKERS} texts, found"),
        ({"options": {"dry_sequence_breakers": ["x" * 1000]}}, f"at most {limits.DRY_CHARS}"),
    )),
    ("/v1/embeddings", {"input": ["a"] * 300_000}, f"for all is {limits.EMBEDDING_VALUES} values"),
    ("/api/chat", {"messages": [{"role": "user", "content": "x", "images": ["aa aa"]}]}, "base64"),
    ("/detokenize", {"tokens": [-1]}, "token id"),
    ("/apply-template", {"messages": None}, "messages"),
    *(("/v1/messages", {"messages": [{"role": "user", "content": content}]}, said) for content, said in (
        ([{"type": "document", "source": {"type": "url", "url": "http://a/b.pdf"}}], "text or image blocks"),
        ([{"type": "image", "source": {"type": "url", "url": "http://a/b.png"}}], "URLs are not fetched"),
        ([{"type": "text", "text": 5}], "messages[0]"),
    )),
    *(("/v1/responses", {"input": [TURNS[1], item]}, said) for item, said in (
        ({"type": "item_reference", "id": "x"}, "item_reference"),
        (RESULT | {"output": [{"type": "input_file", "file_id": "x"}]}, "input_file"),
        ({"type": "function_call", "call_id": "c1", "name": "f", "arguments": "{"}, "input[1]"),
    )),
    *(("/api/embed", {"input": "x"} | wrong, "") for wrong in (
        {"input": 7}, {"input": [7]}, {"dimensions": 9999}, {"truncate": "no"},
    )),
    *(("/v1/embeddings", wrong, "") for wrong in (
        *({"input": given} for given in ("", [], None, ["x", 7], [[]], [10**9], [True])),
        {"encoding_format": "hex"}, {"dimensions": 0},
    )),
    *((path, {"prompt": prompt}, "prompt: ") for path in PROMPTED for prompt in (
        [], {}, 7, [["a"], 7.5], [1, "a"], None, [True], ["a", [1, "b"]],
    )),
    *((path, {"logit_bias": bias}, "logit_bias: ") for path in PROMPTED for bias in (
        7, [[1]], [[1, "x"]], [["text", 1]], [[None, 1]], {"x": 1},
    )),
]  # fmt: skip


def usual(path: str) -> dict[str, Any]:
    return USUAL if path != "/v1/responses" else {"model": MODEL, "input": "x"}


@pytest.mark.parametrize(("path", "wrong", "said"), REFUSED, ids=range(len(REFUSED)))
def test_errors_are_in_the_form_of_the_api(server: TestServer, path: str, wrong: Any, said: str) -> None:
    answer = server.post(path, wrong if isinstance(wrong, bytes) else usual(path) | wrong)
    assert answer.status_code == 400 and said in message_of(answer, path), answer.text


@pytest.mark.parametrize(
    "data",
    [b"[" * 100_000, b'{"a":' * 100_000, b"\xff", b'{"model": "\xed\xa0\x80"}', b'{"model": NaN}',
     b'{"model": 1e999}', b"1" * 9999,
     b'{"model": ' + b"[" * 500 + b"]" * 500 + b"}", '{"model": "\U0001f600"}'.encode("utf-16"),
     b'{"model": "a", "model": 7}'],
    ids=range(10),
)  # fmt: skip
@pytest.mark.parametrize("path", sorted({path for method, path, _ in BODIES if method == "POST"}))
def test_malformed_json_is_refused_in_the_form_of_the_api(server: TestServer, path: str, data: bytes) -> None:
    answer = server.post(path, data)
    assert 400 <= answer.status_code < 500, answer.text
    assert message_of(answer, path)


@pytest.mark.parametrize("path", ["/v1/models/%ED%A0%80", "/v1/models/..%2Fx", "/v1/models/a%00b",
                                  "/v1/models/" + "x" * 5000, "/static/%00",
                                  "/static/..%2Ferrors.py", "/%ED%A0%80"])  # fmt: skip
def test_no_path_causes_an_internal_error(server: TestServer, path: str) -> None:
    answer = server.get(path)
    assert 400 <= answer.status_code < 500 and message_of(answer, path)


def test_half_a_character_is_read_like_in_ollama(server: TestServer) -> None:
    """Tests a lone surrogate, which a client sends if it cuts a text within an emoji. The surrogate becomes
    U+FFFD, as in Go's decoder.
    """
    for body in (b'{"model": "\\ud83d", "prompt": "x"}', b'{"model": "\xed\xa0\xbd", "prompt": "x"}'):
        answer = server.post("/api/generate", body)
        assert (answer.status_code, "\ufffd" in answer.json()["error"]) == (404, True), answer.text
    whole = server.post("/api/generate", b'{"model": "\\ud83d\\ude00", "prompt": "x"}')
    assert "\U0001f600" in whole.json()["error"]


OWN_FAULT = "'NoneType' object is not subscriptable"


@pytest.mark.parametrize("kind", [TypeError, ValueError, KeyError])
@pytest.mark.parametrize(("method", "path", "body"), [
    ("GET", "/v1/models/made", None), ("DELETE", "/api/delete", {"model": "made"}),
    ("POST", "/v1/chat/completions", {"model": "made", "messages": TURNS}),
    ("POST", "/v1/messages", {"model": "made", "messages": TURNS[1:2], "max_tokens": 1}),
])  # fmt: skip
def test_an_internal_error_is_a_500_that_only_the_log_explains(
    server: TestServer,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    kind: type[Exception],
    method: str,
    path: str,
    body: Any,
) -> None:
    def broken(*arguments: Any) -> Any:
        raise kind(OWN_FAULT)

    monkeypatch.setattr(Stores, "open", broken)
    with caplog.at_level(logging.ERROR, "eaglecpp.server"):
        answer = requests.request(method, server.url + path, json=body, timeout=60)
    assert answer.status_code == 500, answer.text
    assert OWN_FAULT not in answer.text and kind.__name__ not in answer.text
    assert "log" in message_of(answer, path)
    (record,) = [one for one in caplog.records if one.exc_info]
    assert record.exc_info and record.exc_info[1] is not None and OWN_FAULT in str(record.exc_info[1])
    assert path in record.getMessage()


@pytest.mark.parametrize("stream", [True, False])
def test_an_internal_error_during_an_answer_ends_it_and_is_logged(
    server: TestServer, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, stream: bool
) -> None:
    def broken(*arguments: Any) -> Any:
        raise TypeError(OWN_FAULT)

    monkeypatch.setattr("eaglecpp.chat.reader.AnswerReader._events", broken)
    with caplog.at_level(logging.ERROR, "eaglecpp.server"):
        answer = server.post("/api/generate", {"model": MODEL, "prompt": "x", "stream": stream})
    assert answer.status_code == (200 if stream else 500) and OWN_FAULT not in answer.text
    assert "log" in json.loads(answer.text.splitlines()[-1])["error"]
    assert [one for one in caplog.records if one.exc_info]
    failed, last = list(server.events("/v1/responses", {"model": MODEL, "input": "x"}))[-2:]
    assert (failed["type"], failed["response"]["status"]) == ("response.failed", "failed")
    assert failed["response"]["error"]["message"] == last["error"]["message"], "expected the error in both"


@pytest.mark.parametrize("path", [*PROMPTED, "/api/generate", "/api/chat", "/v1/chat/completions",
                                  "/v1/messages", "/v1/responses"])  # fmt: skip
def test_an_unknown_ending_is_not_a_success(
    server: TestServer, monkeypatch: pytest.MonkeyPatch, path: str
) -> None:
    monkeypatch.setattr(Answer, "reason", property(lambda answer: "paused"))
    assert server.post(path, usual(path) | {"stream": False}).status_code == 500
    last = server.post(path, usual(path) | {"stream": True}).text.strip().splitlines()[-1]
    assert "internal error" in last, last


def test_every_api_knows_every_ending_of_a_complete_answer() -> None:
    """Tests that every API knows every ending of a complete answer. All other endings are errors, which a
    single function raises for all APIs.
    """
    for api in (anthropic, llama_server, ollama, openai, responses):
        assert set(api.ENDINGS) == {*get_args(FinishReason), "tool_calls"} - {"cancelled"}, api.__name__


def test_a_client_that_leaves_while_it_sends_is_not_an_internal_error(
    server: TestServer, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO, "eaglecpp.server"):
        data = b'POST /api/chat HTTP/1.1\r\nHost: localhost\r\nContent-Length: 99\r\n\r\n{"mo'
        server.connect(data).close()
        until(lambda: "/api/chat" in caplog.text)
    (reply,) = [one.getMessage() for one in caplog.records if "/api/chat" in one.getMessage()]
    assert reply.startswith("POST /api/chat 499"), reply


def test_a_broken_model_file_is_not_the_clients_error(store_root: Path, tmp_path: Path) -> None:
    broken = tmp_path / "broken.gguf"
    broken.write_bytes(TARGET.read_bytes()[:2000])
    with TestServer(files={"broken": broken}, draft=None) as own:
        for path, body in (
            ("/api/generate", {"model": "broken", "prompt": "x"}),
            ("/api/show", {"model": "broken"}),
            ("/v1/chat/completions", {"model": "broken", "messages": TURNS[:2]}),
        ):
            answer = own.post(path, body)
            assert answer.status_code == 500 and "broken.gguf" in message_of(answer, path), answer.text


@pytest.mark.parametrize("value", ["\ud800", {"\udfff": float("inf")}, ["a\ud83d", "\ude00b"], float("nan")])
def test_output_is_json_in_utf_8(value: Any) -> None:
    json.loads(dump(value).decode("utf-8"), parse_constant=lambda text: pytest.fail(text))


@pytest.mark.parametrize("char", ["\x85", "\u2028", "\u2029", "\x0b", "\x0c", "\x1c", "\x1e"])
def test_a_written_line_is_one_line_for_every_reader(char: str) -> None:
    """Tests that every reader reads a written line as one line. httpx, with which many clients read streams,
    splits lines like `str.splitlines`.
    """
    line = dump({f"a{char}b": f"c{char}d"}).decode()
    assert len(line.splitlines()) == 1
    assert json.loads(line) == {f"a{char}b": f"c{char}d"}


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (errors.UnsupportedError("x"), 400), (errors.EngineBusyError("x"), 503), (OfflineError("x"), 503),
        (errors.OutOfMemoryError("x"), 503), (DownloadError("x"), 502), (DigestError("x"), 500),
        (convert_errors.TensorError("x"), 500), (errors.EngineBrokenError("x"), 500),
    ],
    ids=lambda value: type(value).__name__,
)  # fmt: skip
def test_every_error_of_ours_has_its_status(error: Exception, status: int) -> None:
    reply = as_api_error(error)
    assert reply.status == status and "x" in reply.message


def test_a_compressed_body_is_refused(server: TestServer) -> None:
    answer = server.post("/api/show", gzip.compress(b"{}"), headers={"Content-Encoding": "GZIP"})
    assert answer.status_code == 415 and "Content-Encoding" in answer.text


_IN_OPEN, _IN_ATTRIB = 0x20, 0x04  # IN_ATTRIB also reports a new hard link to the file
SECRET = "what only the operator may read"


@pytest.fixture
def private(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Creates a folder next to the working directory with a drafter and a text that only the operator may
    read. Yields this folder and a Hub.
    """
    folder = tmp_path / "private"
    folder.mkdir()
    shutil.copyfile(DRAFT, folder / "secret.gguf")
    (folder / "notes").write_text(SECRET)
    (tmp_path / "cwd" / "sub").mkdir(parents=True)
    (tmp_path / "cwd" / "notes").write_text(SECRET)
    monkeypatch.chdir(tmp_path / "cwd")
    with HubServer() as hub:
        monkeypatch.setenv("MODEL_ENDPOINT", hub.url)
        hub.add("user/one-GGUF", {"one-Q8_0.gguf": TARGET.read_bytes()})
        yield folder


def openings(files: list[Path]) -> Iterator[bytes]:
    """Watches files. Each item is the kernel's report of opened and changed files since the previous item, or
    b"" if there were none.
    """
    libc = ctypes.CDLL(None)
    handle = libc.inotify_init1(os.O_NONBLOCK)
    try:
        for file in files:
            assert libc.inotify_add_watch(handle, os.fsencode(file), _IN_OPEN | _IN_ATTRIB) > 0
        while True:
            found = b""
            with suppress(BlockingIOError):
                found = os.read(handle, 4096)
            yield found
    finally:
        os.close(handle)


def body_types(server: TestServer, patch: pytest.MonkeyPatch) -> Iterator[tuple[Route, str, type]]:
    """Yields the path and method of every route that reads a body, and the type of the body."""
    converted, read = bodies._converted, list[type]()

    def record(given: Any, kind: type) -> Any:
        read.append(kind)
        return converted(given, kind)

    patch.setattr(bodies, "_converted", record)
    for route in server.server.config.app.app.routes:  # type: ignore[union-attr]
        for method in route.methods - {"GET", "HEAD"}:
            read.clear()
            requests.request(method, url(server, route), data=b'{"model": "nobody"}', timeout=60)
            assert len(read) == 1, f"{method} {route.path} does not use the common reader of bodies"
            yield route, method, read[0]


def url(server: TestServer, route: Route, value: str = "0") -> str:
    path = route.path.partition("{")
    return server.url + (path[0] + value if path[1] else path[0]) + "?action=save"


def forms(kind: type, sample: dict[str, Any], value: str) -> Iterator[tuple[tuple[Any, ...], Any]]:
    """Yields copies of a body. In each copy `value` replaces one text, or stands in one field that takes a
    text or a list of texts.
    """
    for place in places(sample):
        if isinstance(functools.reduce(operator.getitem, place, sample), str):
            yield place, value
    for field in msgspec.structs.fields(kind):
        for form in (value, [value], {"path": value}):
            with suppress(msgspec.ValidationError):
                msgspec.convert(form, field.type, strict=False)
                yield (field.name,), form


@pytest.mark.skipif(sys.platform != "linux", reason="inotify of Linux")
def test_a_path_in_any_text_of_any_body_opens_nothing(
    server: TestServer, private: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    values = [str(private / "secret.gguf"), "sub/../../private/secret.gguf", "../private", "notes",
              f"file://{private}/notes"]  # fmt: skip
    touched = openings([private, *private.iterdir(), Path("notes")])
    assert next(touched) == b""
    session, samples = requests.Session(), {path: {**body} for _, path, body in BODIES}
    pulled = "hf.co/user/one-GGUF:Q8_0"
    samples["/api/pull"] = {"model": pulled, "draft": "none", "stream": False}
    server.call("/api/pull", samples["/api/pull"])
    samples["/api/create"]["from"] = samples["/api/copy"]["source"] = pulled
    wrong, n_sent = [], 0
    for route, method, kind in [*body_types(server, monkeypatch)]:
        sample, is_large = samples.get(route.path, USUAL), len(msgspec.structs.fields(kind)) > 20
        for i, value in enumerate(values):
            for n, (place, form) in enumerate(forms(kind, sample, value)):
                if is_large and n % len(values) != i:  # a large body is tried with only one path per field
                    continue
                data = changed(sample, place, form)
                answer = session.request(method, url(server, route), data=data, timeout=120)
                n_sent += 1
                if (found := next(touched)) or SECRET in answer.text:
                    wrong.append((method, route.path, place, form, answer.status_code, found))
    assert not wrong, "\n".join(map(str, wrong[:20]))
    assert n_sent > 1000
    for name in (pulled, "made", "copied"):
        server.delete(name)


@pytest.mark.skipif(sys.platform != "linux", reason="inotify of Linux")
@pytest.mark.parametrize(("path", "turn"), [
    ("/api/chat", {"content": "x", "images": ["PATH"]}),
    ("/v1/chat/completions", {"content": [{"type": "image_url", "image_url": {"url": "PATH"}}]}),
    *(("/v1/messages", {"content": [{"type": "image", "source": {"type": kind, name: "PATH"}}]})
      for kind, name in (("url", "url"), ("file", "file_id"), ("base64", "data"))),
    ("/v1/responses", {"content": [{"type": "input_image", "image_url": "PATH", "file_id": "PATH"}]}),
])  # fmt: skip
def test_an_image_is_never_read_from_a_path(
    server: TestServer, private: Path, path: str, turn: dict[str, Any]
) -> None:
    touched = openings([private, *private.iterdir(), Path("notes")])
    for value in (str(private / "notes"), "../private/notes", "notes", f"file://{private}/notes"):
        turns = json.dumps([{"role": "user", **turn}]).replace("PATH", value)
        body = {**USUAL, "messages": json.loads(turns), "input": json.loads(turns)}
        answer = server.post(path, body)
        assert answer.status_code == 400 and next(touched) == b"" and SECRET not in answer.text, answer.text


@pytest.mark.skipif(sys.platform != "linux", reason="inotify of Linux")
def test_a_path_in_an_address_opens_nothing(server: TestServer, private: Path) -> None:
    touched = openings([private, *private.iterdir(), Path("notes")])
    for route in server.server.config.app.app.routes:  # type: ignore[union-attr]
        for value in (str(private / "secret.gguf"), "../private/notes", "notes"):
            for method in route.methods - {"HEAD"}:
                answer = requests.request(method, url(server, route, value.replace("/", "%2F")),
                                          params={"model": value}, data=b"{}", timeout=60)  # fmt: skip
                assert next(touched) == b"" and SECRET not in answer.text, (method, route.path, value)
