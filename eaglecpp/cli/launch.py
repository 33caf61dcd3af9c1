# SPDX-License-Identifier: MIT
"""`eaglecpp launch`: runs a coding agent with a model of this machine, through a running or a new server.

The agent's own configuration stays unchanged: its settings go into environment variables of its process, or
into a temporary folder.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import click

from eaglecpp.cli.command import command, option
from eaglecpp.cli.options import first_key, model_argument
from eaglecpp.cli.terminal import note, write
from eaglecpp.conversations.served import ServerRefusedError, ask
from eaglecpp.server.announced import find_server

N_CTX = 32_768  # Context length in tokens. The system prompt of Claude Code takes 20,000 tokens.
_CLAUDE_RESERVES = 13_000
# Milliseconds for which Claude Code waits for the first token. Its default of 5 minutes is too short for a
# busy CPU.
_CLAUDE_WAITS_MS = "3600000"
_STARTS_S = 600.0  # Seconds within which a server must start. The server may have to download a model first.


@dataclass(frozen=True)
class Setup:
    """Settings of an agent. files: contents of configuration files by their path below the folder that
    `Agent.folder_variable` names.
    """

    environment: dict[str, str]
    files: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Agent:
    """A coding agent. install: command that installs the agent. setup: function that returns the agent's
    settings, given the server's address, the server's key, the model's name and the context length in tokens.
    folder_variable: environment variable that names the agent's configuration folder, or "".
    """

    program: str
    install: str
    setup: Callable[[str, str, str, int], Setup]
    folder_variable: str = ""


def _claude(address: str, key: str, model: str, n_ctx: int) -> Setup:
    """Returns the setup of Claude Code. Source: code.claude.com/docs/en/env-vars; ollama/ollama#14918 and
    #17918 for the last two variables.

    Claude Code summarises a conversation as soon as the context has no room for an answer and 13,000 more
    tokens. In a context of 32,768 tokens, Claude Code's first prompt already leaves less room, so Claude Code
    would summarise after each turn.
    """
    window = str(n_ctx + _CLAUDE_RESERVES)
    tiers = ("ANTHROPIC_MODEL", "ANTHROPIC_DEFAULT_OPUS_MODEL", "ANTHROPIC_DEFAULT_SONNET_MODEL",
             "ANTHROPIC_DEFAULT_HAIKU_MODEL", "CLAUDE_CODE_SUBAGENT_MODEL")  # fmt: skip
    return Setup(
        {
            "ANTHROPIC_BASE_URL": address,
            "ANTHROPIC_AUTH_TOKEN": key,
            "ANTHROPIC_API_KEY": "",  # Claude Code prefers a key in this variable, so the variable is emptied
            **dict.fromkeys(tiers, model),
            "CLAUDE_CODE_MAX_CONTEXT_TOKENS": window,
            "CLAUDE_CODE_AUTO_COMPACT_WINDOW": window,
            "CLAUDE_CODE_MAX_OUTPUT_TOKENS": str(n_ctx // 4),
            **dict.fromkeys(("API_TIMEOUT_MS", "CLAUDE_STREAM_IDLE_TIMEOUT_MS"), _CLAUDE_WAITS_MS),
            "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
            "CLAUDE_CODE_ATTRIBUTION_HEADER": "0",
            "CLAUDE_CODE_TOTAL_TOKENS_REMINDER": "off",
        }
    )


def _codex(address: str, key: str, model: str, n_ctx: int) -> Setup:
    """Returns the setup of Codex. Source: openai/codex: docs/config.md."""
    # JSON escapes such as "\ud83d\ude00" are surrogate pairs, which TOML does not allow.
    text = partial(json.dumps, ensure_ascii=False)
    config = f"""\
model = {text(model)}
model_provider = "eaglecpp"
model_context_window = {n_ctx}

[model_providers.eaglecpp]
name = "eaglecpp"
base_url = {text(address + "/v1")}
wire_api = "responses"
env_key = "EAGLECPP_API_KEY"
"""
    return Setup({"EAGLECPP_API_KEY": key}, files={"config.toml": config})


def _opencode(address: str, key: str, model: str, n_ctx: int) -> Setup:
    """Returns the setup of opencode. Source: opencode.ai/docs/providers and /docs/config."""
    provider = {
        "npm": "@ai-sdk/openai-compatible",
        "name": "eaglecpp",
        "options": {"baseURL": f"{address}/v1", "apiKey": key},
        "models": {model: {"name": model, "limit": {"context": n_ctx, "output": n_ctx // 4}}},
    }
    config = {
        "provider": {"eaglecpp": provider},
        "model": f"eaglecpp/{model}",
        "small_model": f"eaglecpp/{model}",
    }
    return Setup({"OPENCODE_CONFIG_CONTENT": json.dumps(config)})


AGENTS = {
    "claude": Agent("claude", "npm install -g @anthropic-ai/claude-code", _claude),
    "codex": Agent("codex", "npm install -g @openai/codex", _codex, "CODEX_HOME"),
    "opencode": Agent("opencode", "npm install -g opencode-ai", _opencode),
}


@command(
    ("eaglecpp launch claude qwen3-coder:30b", "Claude Code"),
    ("eaglecpp launch codex qwen3-coder:30b -- exec 'fix the failing test'", "with arguments of Codex"),
    ("eaglecpp launch opencode qwen3-coder:30b --print", "print the settings only"),
)
@click.argument("agent", type=click.Choice(tuple(AGENTS)))
@model_argument()
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
@option("-c", "--ctx-size", "n_ctx", type=click.IntRange(1024), default=N_CTX, show_default=True,
        help="Context length in tokens, for the model and the agent.")  # fmt: skip
@option("--print", "only_prints", is_flag=True, help="Print the agent's settings and command; start nothing.")
def launch(agent: str, model: str, arguments: tuple[str, ...], n_ctx: int, only_prints: bool) -> None:
    """Run a coding agent with MODEL: claude, codex or opencode. Arguments of the agent follow `--`.

    Uses the `eaglecpp serve` on this machine; if none runs, starts one until the agent ends.
    """
    chosen, key = AGENTS[agent], first_key() or "eaglecpp"
    if only_prints:
        address = find_server() or "http://127.0.0.1:11434"
        _show(chosen, chosen.setup(address, key, model, n_ctx), arguments)
        return
    program = shutil.which(chosen.program)
    if program is None:
        raise click.ClickException(f"{chosen.program} is not installed; to install it: {chosen.install}")
    with _ended_by_signals(), _served(model, n_ctx) as (address, name):
        setup = chosen.setup(address, key, name, _load(address, key, name, n_ctx))
        with _folder(chosen, setup) as environment:
            code = _run([program, *arguments], environment)
    click.get_current_context().exit(code)


@contextlib.contextmanager
def _ended_by_signals() -> Iterator[None]:
    """Makes SIGTERM and SIGHUP raise KeyboardInterrupt, inside the `with` block, so that a server started by
    this process ends as well.
    """
    ends = {signal.SIGTERM, getattr(signal, "SIGHUP", signal.SIGTERM)}
    before = {one: signal.signal(one, signal.default_int_handler) for one in ends}
    try:
        yield
    finally:
        for one, handler in before.items():
            signal.signal(one, handler)


def _run(words: list[str], environment: dict[str, str]) -> int:
    """Runs an agent and returns the agent's exit code. Ctrl+C does not end this process, only the agent's
    current answer.
    """
    # The signal gets a handler instead of SIG_IGN, because the agent's process would inherit SIG_IGN.
    before = signal.signal(signal.SIGINT, lambda *_: None)
    try:
        code = subprocess.run(words, env=environment, check=False).returncode
    finally:
        signal.signal(signal.SIGINT, before)
    return code if code >= 0 else 128 - code


def _show(agent: Agent, setup: Setup, arguments: tuple[str, ...]) -> None:
    """Prints an agent's setup as shell commands."""
    import shlex

    for name, text in setup.files.items():
        write(f"# ${agent.folder_variable}/{name}\n{text}\n")
    lines = [f"export {name}={shlex.quote(value)}" for name, value in setup.environment.items()]
    write("\n".join([*lines, shlex.join([agent.program, *arguments])]) + "\n")


@contextlib.contextmanager
def _folder(agent: Agent, setup: Setup) -> Iterator[dict[str, str]]:
    """Yields the agent's environment variables. If the agent needs a temporary configuration folder, the
    folder exists inside the `with` block.
    """
    environment = {**os.environ, **setup.environment}
    with tempfile.TemporaryDirectory(prefix="eaglecpp-") as folder:
        for name, text in setup.files.items():
            Path(folder, name).write_text(text, encoding="utf-8")
        yield environment | ({agent.folder_variable: folder} if agent.folder_variable else {})


@contextlib.contextmanager
def _served(model: str, n_ctx: int) -> Iterator[tuple[str, str]]:
    """Yields the address of a server, and the name by which the server knows the model. If this function has
    to start the server, the server ends with the `with` block.
    """
    from eaglecpp.cli.open_engine import look_up
    from eaglecpp.server.run import bind

    files = look_up(model)
    running = find_server()
    if running is not None and files.name is not None:
        yield running, str(files.name)
        return
    with contextlib.closing(bind("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    serve = [sys.executable, "-P", "-m", "eaglecpp", "serve", model, "-c", str(n_ctx)]
    serve += ["--host", "127.0.0.1", "--port", str(port)]
    with tempfile.TemporaryFile() as log:
        process = subprocess.Popen(
            serve, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
        )
        try:
            note(f"loading {model} ...")
            address = f"http://127.0.0.1:{port}"
            _wait_for(address, process, log)
            yield address, files.target.stem if files.name is None else str(files.name)
        finally:
            process.terminate()
            process.wait()


def _wait_for(address: str, process: subprocess.Popen[bytes], log: Any) -> None:
    """Waits until a server answers. Raises click.ClickException with the server's last log line if the server
    ends.
    """
    deadline = time.monotonic() + _STARTS_S
    while time.monotonic() < deadline:
        if process.poll() is not None:
            log.seek(0)
            lines = log.read().decode("utf-8", "replace").strip().splitlines() or ["its log is empty"]
            raise click.ClickException(f"eaglecpp serve ended: {lines[-1].removeprefix('error: ')}")
        with contextlib.suppress(ServerRefusedError):
            ask(address, "GET", "/health")
            return
        time.sleep(0.1)
    raise click.ClickException(f"eaglecpp serve did not answer within {_STARTS_S:.0f} s")


def _load(address: str, key: str, model: str, n_ctx: int) -> int:
    """Loads a model in a server. Returns the length of the model's context in this server in tokens, but at
    most `n_ctx`.
    """
    body = {"model": model, "options": {"num_ctx": n_ctx}}
    try:
        ask(address, "POST", "/api/generate", {**body, "stream": False}, key)
        loaded = ask(address, "GET", "/api/ps", None, key)["models"]
    except ServerRefusedError as error:
        raise click.ClickException(f"{address}: {error}") from None
    context = next((one["context_length"] for one in loaded if one["name"] == model), n_ctx)
    if context < n_ctx:
        note(f"{model} is loaded with a context of {context} tokens; agents need about {N_CTX}")
    return min(context, n_ctx)
