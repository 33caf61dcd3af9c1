# SPDX-License-Identifier: MIT
"""Builds examples/serve/Containerfile without a container engine's daemon, and asks the container's server.

Needs Linux, root, debootstrap and buildah (Debian: apt install debootstrap buildah). The image that the file
begins with is on a registry, which this does not reach: a Debian with its own Python takes its place, under
the same name. The installed llama-cpp-python is given to the build as an index with one wheel, as its own
project's index would be, so that only eaglecpp is compiled.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
from packages import PAIR, ROOT, installed_wheel

BASE = "docker.io/library/python:3.12-slim"
PACKAGES = "python3,python3-dev,python3-venv,python-is-python3,ca-certificates"
MIRROR = "http://deb.debian.org/debian"
SEARCHED = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
ISOLATED = ("--isolation", "chroot", "--network", "host")
PORT = 11435


def run(*command: str | Path) -> str:
    print("+", *command, flush=True)
    words = [str(word) for word in command]
    return subprocess.run(words, check=True, stdout=subprocess.PIPE, text=True).stdout.strip()


def import_base(buildah: list[str], folder: Path) -> None:
    """A Debian with Python as the image that the Containerfile asks for."""
    run("debootstrap", "--variant=minbase", f"--include={PACKAGES}", "bookworm", folder, MIRROR)
    for file in ("etc/ssl/certs/ca-certificates.crt", "etc/pip.conf"):  # how this machine reaches servers
        if (Path("/") / file).exists():
            shutil.copy(Path("/") / file, folder / file)
    container = run(*buildah, "from", "scratch")
    run(*buildah, "add", "--quiet", container, folder, "/")
    run(*buildah, "config", "--env", f"PATH={SEARCHED}", container)
    run(*buildah, "commit", "--quiet", "--rm", container, BASE)


def make_index(folder: Path) -> None:
    """A package index with llama-cpp-python alone."""
    page = folder / "llama-cpp-python"
    page.mkdir(parents=True)
    wheel = installed_wheel("llama-cpp-python", page, kept={"include", "llama_cpp"})
    (page / "index.html").write_text(f'<a href="{wheel.name}">{wheel.name}</a>\n')


def ask(server: subprocess.Popen[bytes]) -> None:
    """Waits for the server, and has the demo model answer."""
    address = f"http://127.0.0.1:{PORT}"
    for _ in range(60):
        assert server.poll() is None, "the container's server ended"
        try:
            urllib.request.urlopen(f"{address}/health", timeout=1).close()
            break
        except OSError:
            time.sleep(1)
    question = {"model": "demo-target", "prompt": "What", "stream": False, "options": {"num_predict": 8}}
    headers = {"Authorization": "Bearer KEY"}
    request = urllib.request.Request(f"{address}/api/generate", json.dumps(question).encode(), headers)
    with urllib.request.urlopen(request, timeout=60) as answer:
        found = json.load(answer)
    assert found["done"] and found["timings"]["draft_n"] > 0, found


def main() -> None:
    with tempfile.TemporaryDirectory(prefix="eaglecpp-container-") as raw:
        folder = Path(raw)
        store = ("--root", str(folder / "root"), "--runroot", str(folder / "run"))
        buildah = ["buildah", "--storage-driver", "vfs", *store]
        import_base(buildah, folder / "base")
        make_index(folder / "index")
        index = (
            "--volume",
            f"{folder / 'index'}:/index:ro",
            "--build-arg",
            "PIP_EXTRA_INDEX_URL=file:///index",
        )
        file = ROOT / "examples" / "serve" / "Containerfile"
        run(*buildah, "bud", *ISOLATED, "--pull-never", *index, "-t", "eaglecpp", "-f", file, ROOT)
        container = run(*buildah, "from", "--pull-never", "eaglecpp")
        entry = json.loads(run(*buildah, "inspect", container))["OCIv1"]["config"]["Entrypoint"]
        model = ("/pair/demo-target.gguf", "--draft", "/pair/demo-draft.gguf")
        options = (*model, "--port", str(PORT), "--api-key", "KEY")
        start = [
            *buildah,
            "run",
            *ISOLATED,
            "--volume",
            f"{PAIR}:/pair:ro",
            container,
            "--",
            *entry,
            *options,
        ]
        print("+", *start, flush=True)
        with subprocess.Popen(start, start_new_session=True) as server:
            try:
                ask(server)
            finally:
                os.killpg(server.pid, 15)
    print("the container is built, and its server answers with drafts")


if __name__ == "__main__":
    main()
