# SPDX-License-Identifier: MIT
"""Runs llama.cpp's own `llama-server` for comparison and asks it for completions.

Each configuration gets its own process on a free loopback port, with one slot. Prompts and answers are token
ids, so that tokenizers cannot differ. If the server dies or answers with an error, `ServerError` is raised
with the end of its log.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import gguf

from eaglecpp.lowlevel import system_info

REST_SECONDS = 0.25
"""Pause after an answer, in seconds. ggml's threads still spin after an answer (80 ms by the default of
llama.cpp's `--poll`), on the cores that the next contestant needs.
"""
START_SECONDS = 300
ANSWER_SECONDS = 1800


class ServerError(RuntimeError):
    """llama-server cannot be started, died or refused a request."""


def draft_kind(draft: Path) -> str:
    """Returns llama.cpp's `--spec-type` for a drafter, or "" for a format that llama.cpp does not read
    (EAGLE-1, EAGLE 3.1, `dflash_ex`). A file of any other architecture counts as a small model that drafts.
    """
    reader = gguf.GGUFReader(draft)
    names = {tensor.name for tensor in reader.tensors}
    field = reader.get_field("general.architecture")
    architecture = str(field.contents()) if field else ""
    if any(name.endswith(".nextn.eh_proj.weight") for name in names):
        return "draft-mtp"  # the prediction heads may be in the target's file or in another file
    if architecture == "dflash":
        return "draft-dspark" if "markov_w1.weight" in names else "draft-dflash"
    known = {"eagle": "", "eagle31": "", "dflash_ex": "", "eagle3": "draft-eagle3"}
    return known.get(architecture, "draft-simple")


def block_size(draft: Path) -> int:
    """Returns the number of positions in a block that llama.cpp drafts. Returns llama.cpp's default if the
    file has no block size.
    """
    field = gguf.GGUFReader(draft).get_field("dflash.block_size")
    return int(field.contents()) if field else 16


@dataclass(frozen=True)
class Answer:
    """Generated tokens and the server's own `timings`."""

    tokens: list[int]
    timings: dict[str, Any]


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextlib.contextmanager
def our_server(target: Path, *arguments: object) -> Iterator[tuple[int, int]]:
    """Runs `eaglecpp serve` of one file, through a link named "target". Yields the port and the process id.
    Raises SystemExit with the server's log if the server does not start or ends with an error.
    """
    port = free_port()
    with tempfile.TemporaryDirectory() as folder:
        link, log = Path(folder, "target.gguf"), Path(folder, "log")
        link.symlink_to(target.resolve())
        command = [sys.executable, "-P", "-m", "eaglecpp", "serve", str(link), "--port", str(port)]
        with log.open("w") as out:
            process = subprocess.Popen(
                [*command, *map(str, arguments)],
                stdout=out,
                stderr=out,
                env={**os.environ, "EAGLECPP_MODELS": folder},
            )
        try:
            while True:
                with contextlib.suppress(OSError):
                    urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=600).close()
                    break
                if process.poll() is not None:
                    raise SystemExit(f"eaglecpp serve ended:\n{log.read_text()}")
                time.sleep(0.1)
            yield port, process.pid
        finally:
            process.send_signal(signal.SIGINT)
            code = process.wait(60)
        wrong = [
            line for line in log.read_text().splitlines() if "internal error" in line or "Traceback" in line
        ]
        if code != 0 or wrong:
            raise SystemExit(f"eaglecpp serve ended with {code}; errors in its log: {wrong[:5]}")


class LlamaServer:
    """A running llama-server; a context manager."""

    def __init__(
        self,
        program: Path,
        target: Path,
        *,
        draft: Path | None = None,
        kind: str = "draft-eagle3",
        n_max: int = 0,
        n_ctx: int = 1024,
        n_threads: int = 2,
        extra: Sequence[str] = (),
    ) -> None:
        """draft, kind: drafter, and llama.cpp's method of drafting; n_max: maximum drafted tokens, 0 =
        target-only decoding.
        """
        self.port = free_port()
        self.log = Path(tempfile.mkstemp(prefix="llama-server-", suffix=".log")[1])
        command = [str(program), "-m", str(target), "--host", "127.0.0.1", "--port", str(self.port)]
        command += ["-np", "1", "-c", str(n_ctx), "-t", str(n_threads), "-fit", "off"]
        command += ["--no-webui", "--no-context-shift"]
        command += ["-cram", "0"]  # the prompt cache is off, because every prompt must be computed
        amx = system_info()["amx"]
        if amx["claimed"] and not amx["works"]:
            command.append("--no-repack")
        if draft is not None and n_max > 0:
            command += ["-md", str(draft), "--spec-type", kind, "--spec-draft-n-max", str(n_max)]
        with self.log.open("w") as out:
            self.process = subprocess.Popen([*command, *extra], stdout=out, stderr=subprocess.STDOUT)
        try:
            self._wait_until_ready()
        except BaseException:
            self.close()
            raise

    def _wait_until_ready(self) -> None:
        deadline = time.monotonic() + START_SECONDS
        while time.monotonic() < deadline:
            if self.process.poll() is not None:
                raise ServerError(
                    f"llama-server ended with {self.process.returncode} while loading\n{self.tail()}"
                )
            with contextlib.suppress(OSError, ValueError):
                if self._ask("/health", None, timeout=2)["status"] == "ok":
                    return
            time.sleep(0.2)
        raise ServerError(f"llama-server was not ready after {START_SECONDS} s\n{self.tail()}")

    def _ask(self, path: str, body: dict[str, Any] | None, timeout: float) -> Any:
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(
            f"http://127.0.0.1:{self.port}{path}", data, {"Content-Type": "application/json"}
        )
        with urllib.request.urlopen(request, timeout=timeout) as reply:
            return json.load(reply)

    def complete(self, prompt: Sequence[int], n_tokens: int, **options: Any) -> Answer:
        """Returns a completion. options: fields of `/completion`; by default, decoding is greedy."""
        body: dict[str, Any] = {
            "prompt": list(prompt),
            "n_predict": n_tokens,
            "temperature": 0.0,
            "cache_prompt": False,
            "return_tokens": True,
            "ignore_eos": True,
            **options,
        }
        try:
            reply = self._ask("/completion", body, timeout=ANSWER_SECONDS)
        except urllib.error.HTTPError as error:
            raise ServerError(f"llama-server: {error}: {error.read().decode(errors='replace')}") from None
        except OSError as error:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(timeout=5)
            raise ServerError(
                f"llama-server: {error}; exit status {self.process.poll()}\n{self.tail()}"
            ) from None
        return Answer(reply["tokens"], reply["timings"])

    def complete_and_rest(self, prompt: Sequence[int], n_tokens: int, **options: Any) -> Answer:
        """Returns a completion as `complete` does, but only after the server's threads have stopped
        spinning.
        """
        answer = self.complete(prompt, n_tokens, **options)
        time.sleep(REST_SECONDS)
        return answer

    def tail(self, n_lines: int = 20) -> str:
        """Returns the end of the server's log."""
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-n_lines:])

    def close(self) -> None:
        self.process.terminate()
        try:
            self.process.wait(timeout=20)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()
        self.log.unlink(missing_ok=True)
