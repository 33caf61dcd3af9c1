# SPDX-License-Identifier: MIT
"""Tests `eaglecpp run` with a server on this machine, whose loaded model then answers."""

from __future__ import annotations

import contextlib
import gc
import json
import os
import shutil
import signal
import socket
import ssl
import subprocess
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

from eaglecpp.chat.conversation import Conversation
from eaglecpp.conversations.served import (
    NoServerError,
    ServerAnswers,
    ServerRefusedError,
    address_of,
    ask,
    elsewhere,
    request,
)
from eaglecpp.errors import EagleError, InvalidValueError
from helpers.command import COMMAND, Cli, Start
from helpers.models import Models
from helpers.terminal import CTRL_C, ENTER, Terminal

Server = subprocess.Popen[bytes]
ASK = ("run", "tiny", "hello there", "-n", "24", "--strategy", "chain:3")
# This answer takes many seconds, because it only ends at the end of the context.
ENDLESS = ("run", "tiny", "hello", "--ignore-eos", "--temp", "0", "--no-draft", "--max-repeats", "0")


@pytest.fixture
def server(cli: Cli, start: Start, models: Models, home: Path, tmp_path: Path) -> Iterator[Server]:
    """Starts a server of the user's models. One model is stored as `tiny`, with a drafter."""
    (tmp_path / "Modelfile").write_text(
        f"FROM {models.target}\nDRAFT {models.draft}\nPARAMETER num_ctx 65536\nSYSTEM be brief\n"
    )
    assert cli("create", "tiny").returncode == 0
    with start("serve", "--port", "0", "-t", "1") as process:
        assert process.stderr is not None
        assert b"eaglecpp serves" in process.stderr.readline()
        yield process
        process.kill()


def address(home: Path) -> str:
    return str(json.loads((home / "server.json").read_text())["address"])


@pytest.mark.parametrize("options", [("--temp", "0"), ("--seed", "7"), ("--seed", "7", "--system", "ab cd")])
def test_a_server_gives_the_same_text(cli: Cli, server: Server, home: Path, options: tuple[str, ...]) -> None:
    served = cli(*ASK, "--verbose", *options)
    alone = cli(*ASK, "--verbose", "--no-server", *options)
    assert served.returncode == alone.returncode == 0, served.stderr
    assert served.stdout == alone.stdout
    assert address(home) in served.stderr.splitlines()[0]
    assert address(home) not in alone.stderr
    for name in ("eval count:           24 token(s)", "strategy:             chain:3"):
        assert name in served.stderr and name in alone.stderr


def test_the_model_stays_as_long_as_keepalive_says(cli: Cli, server: Server, home: Path) -> None:
    def loaded() -> list[str]:
        return [one["name"] for one in json.loads(cli("ps", "--json").stdout)["models"]]

    assert cli(*ASK).returncode == 0
    assert loaded() == ["tiny:latest"]
    assert cli(*ASK, "--keepalive", "0").returncode == 0
    assert loaded() == []
    assert cli(*ASK, "--keepalive", "-1").returncode == 0
    assert "Forever" in cli("ps").stdout
    assert cli("stop", "tiny").returncode == 0
    assert loaded() == []


def test_ps_falls_back_to_the_variables_server(cli: Cli, server: Server, home: Path, tmp_path: Path) -> None:
    env = {**os.environ, "EAGLECPP_HOME": str(tmp_path / "other"), "EAGLECPP_HOST": address(home)}
    assert cli("ps", env=env).stderr == ""
    unused = {**env, "EAGLECPP_HOST": "127.0.0.1:1"}
    assert cli("ps", env=unused).stderr == "no server is running at http://127.0.0.1:1\n"


def test_a_model_without_thinking_is_asked_without(cli: Cli, server: Server) -> None:
    """Tests a model that cannot think. The server refuses requests to think, like Ollama's, so `run` sends a
    request without thinking. The answer equals the answer of `run` without a server.
    """
    served = cli(*ASK, "--temp", "0", "--think")
    assert served.stdout == cli(*ASK, "--temp", "0", "--think", "--no-server").stdout
    assert "is opened in this process" not in served.stderr
    assert "answered without thinking" in served.stderr


@pytest.mark.parametrize("option", [("-t", "1"), ("--ctx-size", "256"), ("--json",), ("--draft", "text")])
def test_opening_options_open_it_here(cli: Cli, server: Server, home: Path, option: tuple[str, ...]) -> None:
    done = cli("run", "tiny", "hello", "-n", "4", "--keepalive", "5m", *option)
    assert done.returncode == 0
    assert "no server (eaglecpp serve) answers" in done.stderr
    assert json.loads(cli("ps", "--json").stdout)["models"] == []


def test_a_prompt_that_the_server_refuses_is_answered_here(
    cli: Cli, start: Start, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.kill()
    server.wait()
    with start("serve", "--port", "0", "-t", "1", "--api-key", "secret") as keyed:
        assert keyed.stderr is not None and b"eaglecpp serves" in keyed.stderr.readline()
        alone = cli(*ASK, "--temp", "0", "--no-server")
        refused = cli(*ASK, "--temp", "0")
        assert (refused.returncode, refused.stdout) == (0, alone.stdout)
        assert "is opened in this process" in refused.stderr
        monkeypatch.setenv("EAGLECPP_API_KEY", "secret")
        let_in = cli(*ASK, "--temp", "0")
        assert (let_in.returncode, let_in.stdout) == (0, alone.stdout)
        assert "is opened in this process" not in let_in.stderr
        keyed.kill()


@contextlib.contextmanager
def other_program(
    host: str, port: int = 0, path: str = "", said: str = "", tls: tuple[Path, Path] | None = None
) -> Iterator[tuple[int, list[str | None]]]:
    """Runs an HTTP server other than eaglecpp. Yields the server's port, and the list of keys that the server
    received. said: the server's answer to requests for `path`.
    """
    keys: list[str | None] = []

    class Other(BaseHTTPRequestHandler):
        def answer(self) -> None:
            keys.append(self.headers["Authorization"])
            self.send_response(200 if self.path.startswith("/api/") else 404)
            self.end_headers()
            self.wfile.write((said if self.path == f"/api/{path}" else '{"eaglecpp": "1"}').encode())

        do_GET = do_POST = answer

    with HTTPServer((host, port), Other) as other:
        if tls is not None:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(*tls)
            other.socket = context.wrap_socket(other.socket, server_side=True)
        threading.Thread(target=other.serve_forever, daemon=True).start()
        yield other.server_port, keys
        other.shutdown()


def test_a_program_on_a_killed_servers_port_gets_no_key(cli: Cli, server: Server, home: Path) -> None:
    port = int(address(home).rpartition(":")[2])
    server.kill()
    server.wait()
    assert (home / "server.json").exists()
    with other_program("127.0.0.1", port) as (_, keys):
        assert (cli(*ASK).returncode, keys) == (0, [])


def test_a_key_is_sent_to_the_server_that_it_belongs_to(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EAGLECPP_API_KEY", "secret")
    with other_program("127.0.0.2") as (port, keys):
        for name in ("OLLAMA_HOST", "EAGLECPP_HOST"):
            monkeypatch.setenv(name, f"127.0.0.2:{port}")
            said = [cli("ps").stderr, cli("stop", "tiny").stderr, cli(*ASK).stderr]
            assert [text.count("EAGLECPP_API_KEY is not sent") for text in said] == [name[0] == "O"] * 3
    assert keys == [None] * (len(keys) // 2) + ["Bearer secret"] * (len(keys) // 2)


@pytest.mark.parametrize("is_killed", [False, True])
def test_ctrl_c_ends_an_answer_and_frees_the_slot_and_a_lost_server_is_an_error(
    is_killed: bool, cli: Cli, start: Start, server: Server
) -> None:
    with start(*ENDLESS) as process:
        assert process.stdout is not None and process.stdout.read(8)
        if is_killed:
            server.kill()
        else:
            process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=120)
    assert process.returncode == (1 if is_killed else 130)
    assert ("before the end of the answer" in err.decode()) is is_killed
    assert is_killed or cli(*ASK).returncode == 0


def chat(tmp_path: Path, lines: list[str], *options: str) -> str:
    """Types these lines into a chat, and returns the text on the terminal."""
    with Terminal([COMMAND, "run", "tiny", "-n", "24", *options], tmp_path) as terminal:
        for line in [*lines, "/bye"]:
            terminal.wait_for_prompt()
            terminal.type(line + ENTER)
        assert terminal.wait_for_end() == 0
        return " ".join(terminal.text.split())


def saved_messages(home: Path) -> list[dict[str, str]]:
    newest = max((home / "chats").glob("*.json"), key=lambda path: path.stat().st_mtime_ns)
    messages: list[dict[str, str]] = json.loads(newest.read_text())["messages"]
    return messages


def test_a_chat_is_answered_by_the_server(cli: Cli, server: Server, home: Path, tmp_path: Path) -> None:
    lines = ["hello there", "and what more", "/set system ab cd", "/regen"]
    shown = chat(tmp_path, lines, "--temp", "0", "--keepalive", "-1")
    assert f"answered by {address(home)}" in shown and "answers in this process" not in shown
    assert "Forever" in cli("ps").stdout
    served = saved_messages(home)
    assert [one["role"] for one in served] == ["user", "assistant"] * 2
    shown = chat(tmp_path, lines, "--temp", "0", "--no-server")
    assert "answered by" not in shown
    assert saved_messages(home) == served


def test_commands_that_need_the_model_open_it_here(server: Server, home: Path, tmp_path: Path) -> None:
    lines = ["/set parameter temperature 0", "/strategy off", "/show info", "and more"]
    lines += ["/show template", "/show license", "so what", "/set parameter num_ctx 256"]
    shown = chat(tmp_path, ["hello there", *lines, "and then"])
    assert "drafting off" in shown and "(the command's default)" in shown
    before, _, after = shown.partition("from now on tiny:latest answers in this process")
    assert "num_ctx 256" in before and "tokens/s" in after
    assert len(saved_messages(home)) == 8


def test_a_chat_that_switched_to_the_servers_model_continues_here_with_its_first_messages(
    server: Server, home: Path, tmp_path: Path
) -> None:
    with Terminal([COMMAND, "run", "tiny", "-n", "8", "--temp", "0"], tmp_path) as terminal:
        terminal.wait_for_prompt()
        terminal.say("hello there", "tokens/s")
        terminal.type(f"/save tiny{ENTER}")
        terminal.wait("Continue? (y/N)")
        terminal.say("y", "Created new model 'tiny'")
        assert terminal.leave() == 0
    shown = chat(tmp_path, ["and more", "/show modelfile"], "--temp", "0", "--continue")
    assert "from now on tiny:latest answers in this process" in shown
    assert shown.rpartition("FROM ")[2].count("hello there") == 1
    assert len(saved_messages(home)) == 4


def test_ctrl_c_keeps_the_servers_partial_answer(server: Server, home: Path, tmp_path: Path) -> None:
    with Terminal([COMMAND, *ENDLESS[:2], *ENDLESS[3:]], tmp_path) as terminal:
        terminal.wait_for_prompt()
        terminal.type("hello there" + ENTER)
        terminal.wait_until(lambda: len(terminal.text) > 400, "an answer")
        terminal.type(CTRL_C)
        terminal.wait_for_prompt()
        assert "in this process" not in terminal.text and "[ 0 tokens" not in terminal.text
        server.kill()
        server.wait()
        terminal.say("/set parameter num_predict 8", "'num_predict' to '8'")
        terminal.say("and more", "[ 8 tokens")
        assert "is opened in this process" in " ".join(terminal.text.split())
        assert terminal.leave() == 0
    question, answer, *others = saved_messages(home)
    assert question["content"] == "hello there" and len(answer["content"]) > 100 and len(others) == 2


def test_a_named_server_answers_with_a_model_that_is_not_here(
    cli: Cli, server: Server, home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    there = address(home).removeprefix("http://")
    alone = cli(*ASK, "--temp", "0", "--no-server").stdout
    monkeypatch.setenv("EAGLECPP_HOME", str(tmp_path / "elsewhere"))
    monkeypatch.setenv("EAGLECPP_MODELS", str(tmp_path / "elsewhere" / "models"))
    served = cli(*ASK, "--temp", "0", "--host", there)
    assert (served.returncode, served.stdout) == (0, alone), served.stderr
    for options, said in (
        (("-c", "256"), "decides how to open the model"),
        (("--json",), "need --no-server"),
        (("--host", "127.0.0.1:9"), "http://127.0.0.1:9 does not answer"),
    ):
        refused = cli("run", "tiny", "x", "--host", there, *options)
        assert refused.returncode in (1, 2) and said in refused.stderr
    assert "has the files and decides" in chat(tmp_path, ["/save other"], "--host", there)
    missing = cli("run", "nothing", "x", "--host", there)
    assert missing.returncode == 1 and "not found" in missing.stderr


@pytest.mark.parametrize(
    ("path", "body", "said"),
    [
        ("version", "[" * 99999, "expected an answer of"),
        ("version", '{"version": "0.12"}', "use --no-server to open the model here"),
        ("chat", "[" * 99999, "expected an answer of"),
        ("chat", "[]", "expected an answer of"),
        ("chat", '{"drafts": {"pieces": [5]}}', "expected an answer of"),
        ("chat", '{"done": true, "timings": {"prompt_n": "x"}}', "expected an answer of"),
        ("chat", f'{{"done": true, "load_duration": {"9" * 400}}}', "expected an answer of"),
        ("chat", '{"done": tr', "before the end of the answer"),
    ],
)
def test_invalid_answers_of_a_server_are_one_error(path: str, body: str, said: str) -> None:
    with other_program("127.0.0.1", 0, path, body) as (port, _):
        answers = ServerAnswers(f"http://127.0.0.1:{port}", "tiny")
        with pytest.raises(EagleError, match=said):
            answers.found()
            list(answers(Conversation("", (), ()), {}))


def test_a_refused_connection_is_closed_and_a_lost_host_is_noticed(recwarn: pytest.WarningsRecorder) -> None:
    with other_program("127.0.0.1") as (port, _):
        with pytest.raises(ServerRefusedError, match="status 404"):
            request(f"http://127.0.0.1:{port}", "POST", "/nothing")
        with contextlib.closing(request(f"http://127.0.0.1:{port}", "GET", "/api/ps")) as answer:
            connection: socket.socket = answer.extensions["network_stream"].get_extra_info("socket")
            assert connection.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
            if hasattr(socket, "TCP_USER_TIMEOUT"):
                assert connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) == 120_000
        gc.collect()
    assert [one for one in recwarn if one.category is ResourceWarning] == []


def test_a_remote_server_is_reached_through_the_environments_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    with other_program("127.0.0.1") as (proxy, seen), other_program("127.0.0.1") as (port, keys):
        monkeypatch.setenv("http_proxy", f"http://127.0.0.1:{proxy}")
        with pytest.raises(ServerRefusedError, match="status 404"):  # the proxy answers with this status
            request("http://box.invalid:11434", "GET", "/api/version")
        request(f"http://127.0.0.1:{port}", "GET", "/api/version", key="schl\u00fcssel").close()
        monkeypatch.setenv("no_proxy", "box.invalid")
        with pytest.raises(NoServerError):
            request("http://box.invalid:11434", "GET", "/api/version")
    assert (len(seen), len(keys)) == (1, 1)


def test_a_certificate_is_checked_and_can_be_trusted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    key, certificate = tmp_path / "key", tmp_path / "certificate"
    if shutil.which("openssl") is None:
        pytest.skip("needs openssl")
    made = "req -x509 -newkey rsa:2048 -nodes -subj /CN=localhost -addext subjectAltName=DNS:localhost"
    command = ["openssl", *made.split(), "-keyout", str(key), "-out", str(certificate)]
    subprocess.run(command, check=True, capture_output=True)
    with other_program("127.0.0.1", tls=(certificate, key)) as (port, _):
        address = f"https://localhost:{port}"
        with pytest.raises(
            ServerRefusedError, match=r"certificate of .* not trusted: self.signed.*SSL_CERT_FILE"
        ):
            request(address, "GET", "/api/version")
        monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
        assert ask(address, "GET", "/api/version") == {"eaglecpp": "1"}
        monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "none"))
        with pytest.raises(ServerRefusedError, match="cannot use the proxy or SSL_CERT_FILE"):
            request(address, "GET", "/api/version")
        monkeypatch.delenv("SSL_CERT_FILE")
    with other_program("127.0.0.1") as (port, _), pytest.raises(ServerRefusedError, match="does not use TLS"):
        request(f"https://localhost:{port}", "GET", "/api/version")


@pytest.mark.parametrize(
    ("text", "url"),
    [
        ("gpu-box", "http://gpu-box:11434"),
        ("10.0.0.2:80", "http://10.0.0.2:80"),
        ("https://box/ollama/", "https://box:443/ollama"),
        ("http://box", "http://box:80"),
        ("0.0.0.0:1234", "http://127.0.0.1:1234"),
        ("::1", "http://[::1]:11434"),
        ('"[fe80::2]:99"', "http://[fe80::2]:99"),
    ],
)
def test_a_server_is_named_as_in_ollama_host(text: str, url: str) -> None:
    assert address_of(text) == url
    assert elsewhere(text) == (None if "127.0.0.1" in url or "::1" in url else url)


@pytest.mark.parametrize("text", ["ftp://box", "box:99999", "box:x"])
def test_an_invalid_server_name_is_refused(text: str) -> None:
    with pytest.raises(InvalidValueError, match=text):
        address_of(text)
