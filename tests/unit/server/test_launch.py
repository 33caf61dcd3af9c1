# SPDX-License-Identifier: MIT
"""Tests `eaglecpp launch` with small programs that have the names of agents. Such a program sends a request
to the given server and exits.

tests/clients runs the real agents.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tomllib
import urllib.error
import urllib.request
from pathlib import Path

import pytest

from eaglecpp.cli import main
from eaglecpp.cli.launch import AGENTS
from helpers.command import COMMAND
from helpers.http_server import TARGET, TestServer, store

BODY = {"max_tokens": 4, "messages": [{"role": "user", "content": "What is len?"}]}
# Programs that stand in for the agents. Each program sends the agent's first request, with the settings that
# the agent receives.
CLAUDE = """
url, model = os.environ["ANTHROPIC_BASE_URL"] + "/v1/messages", os.environ["ANTHROPIC_MODEL"]
"""
CODEX = """
config = tomllib.load(open(os.environ["CODEX_HOME"] + "/config.toml", "rb"))
url = config["model_providers"][config["model_provider"]]["base_url"] + "/chat/completions"
model = config["model"]
"""
OPENCODE = """
config = json.loads(os.environ["OPENCODE_CONFIG_CONTENT"])
provider, model = config["model"].split("/", 1)
url = config["provider"][provider]["options"]["baseURL"] + "/chat/completions"
"""
ASKS = """
body = json.dumps(json.loads(sys.argv[1]) | {"model": model}).encode()
head = {"Content-Type": "application/json"}
head["Authorization"] = "Bearer " + os.environ.get("EAGLECPP_API_KEY", "x")
with urllib.request.urlopen(urllib.request.Request(url, body, head)) as answer:
    print(json.load(answer)["usage"])
sys.exit(3)
"""


@pytest.fixture
def agent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> str:
    name, reads = request.param
    program = tmp_path / "bin" / name
    program.parent.mkdir()
    program.write_text(f"#!{sys.executable}\nimport json, os, sys, tomllib, urllib.request\n{reads}{ASKS}")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(program.parent), prepend=os.pathsep)
    return str(name)


pytestmark = pytest.mark.skipif(os.name != "posix", reason="the agents are scripts")
EACH = pytest.mark.parametrize(
    "agent", [("claude", CLAUDE), ("codex", CODEX), ("opencode", OPENCODE)], indirect=True
)


@EACH
def test_an_agent_gets_its_own_server(agent: str, store_root: Path) -> None:
    words = [COMMAND, "launch", agent, str(TARGET), "-c", "1024", "--", json.dumps(BODY)]
    done = subprocess.run(words, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 3 and "tokens" in done.stdout, done.stderr


@EACH
def test_an_agent_gets_the_running_server(
    agent: str, server: TestServer, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("eaglecpp.cli.launch.find_server", lambda: server.url)
    store("stored")
    try:
        server.post("/api/chat", {**BODY, "model": "stored", "stream": False})
        assert main(["launch", agent, "stored", "--", json.dumps(BODY)]) == 3
    finally:
        server.delete("stored")
    output = capfd.readouterr()
    assert "tokens" in output.out and "is loaded with a context of 512 tokens" in output.err


@pytest.mark.parametrize("agent", [("codex", CODEX)], indirect=True)
@pytest.mark.parametrize("keys", ["", "one two", "two"])
def test_an_agent_gets_one_key_of_its_server(
    agent: str,
    keys: str,
    store_root: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    """Tests that an agent receives a single key of its server. A former version sent two keys in
    EAGLECPP_API_KEY as one key.
    """
    monkeypatch.setenv("EAGLECPP_API_KEY", keys)
    with TestServer(keys=("one", "two")) as server:
        monkeypatch.setattr("eaglecpp.cli.launch.find_server", lambda: server.url)
        store("stored")
        code = main(["launch", agent, "stored", "--", json.dumps(BODY)])
    output = capfd.readouterr()
    assert code == 3 if keys else "set EAGLECPP_API_KEY to one of the server's keys" in output.err, output


# This program reacts to a signal only after another request to the server.
WAITS = (
    CODEX
    + """
import signal, time
def end(*_):
    time.sleep(1)
    print("health", urllib.request.urlopen(url.removesuffix("/v1/chat/completions") + "/health").status)
    sys.exit(7)
signal.signal(signal.SIGINT, end)
print(url, flush=True)
time.sleep(60)
"""
)


@pytest.mark.parametrize("agent", [("codex", WAITS)], indirect=True)
@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM", "SIGHUP"])
def test_a_signal_goes_to_the_agent_and_leaves_no_server(
    agent: str, name: str, store_root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EAGLECPP_HOST", "203.0.113.1")  # this setting is only meant for `eaglecpp serve`
    words = [COMMAND, "launch", agent, str(TARGET), "-c", "1024"]
    done = subprocess.Popen(words, stdout=subprocess.PIPE, text=True, start_new_session=True)
    assert done.stdout is not None
    url = done.stdout.readline().strip()
    if name == "SIGINT":
        os.killpg(done.pid, signal.SIGINT)  # a terminal sends the signal to the whole process group
        assert done.communicate(timeout=60)[0] == "health 200\n" and done.returncode == 7
    else:
        done.send_signal(getattr(signal, name))
        done.communicate(timeout=60)
        assert done.returncode == 130
    with pytest.raises(urllib.error.URLError, match="refused"):
        urllib.request.urlopen(url)


def test_a_name_is_quoted_for_toml() -> None:
    name = 'm\U0001f999"\\'
    config = AGENTS["codex"].setup("http://127.0.0.1:1", "key", name, 1024).files["config.toml"]
    assert tomllib.loads(config)["model"] == name


def test_a_dry_run_prints_the_settings_and_starts_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["launch", "codex", "m", "-c", "2048", "--print", "--", "exec", "fix it"]) == 0
    config, _, lines = capsys.readouterr().out.partition("\nexport ")
    assert tomllib.loads(config)["model_context_window"] == 2048
    assert lines.endswith("codex exec 'fix it'\n")


def test_an_agent_that_is_not_installed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert main(["launch", "claude", str(TARGET)]) == 1
    assert "claude is not installed; to install it: npm install -g" in capsys.readouterr().err
