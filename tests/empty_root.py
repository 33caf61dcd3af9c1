# SPDX-License-Identifier: MIT
"""Runs the README's two lines and the steps of the Containerfile in an empty Debian.

    python tests/empty_root.py [readme] [container]

Each of the two parts gets a new root from debootstrap, with only the packages that the README or the
Containerfile names. Needs Linux, root, debootstrap and a Debian mirror; changes no file outside the roots.
Each part compiles llama.cpp, which takes 15 minutes of processor time.
"""

from __future__ import annotations

import os
import platform
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
SUITE = "trixie"
"""Debian's release in the Containerfile."""
DEBIAN = {"x86_64": "amd64", "aarch64": "arm64"}
"""Debian's names of architectures."""
COMPILER = "python3-dev python3-venv git g++"
"""What the README says that its lines need."""
CERTIFICATES = "/etc/ssl/certs/ca-certificates.crt"
PAIR = "examples/demo_model/pair"


def checkout(folder: Path) -> None:
    """Copies the committed files into a new folder."""
    subprocess.run(["git", "clone", "-q", "--depth", "1", f"file://{ROOT}", str(folder)], check=True)


def debootstrap(folder: Path, suite: str, architecture: str, packages: str) -> None:
    """Installs a small Debian in a new folder. Another architecture than this machine's needs an emulator."""
    partial = folder.with_name(f"{folder.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    # Ubuntu has python3-venv in universe. debootstrap ignores components that a distribution lacks.
    options = ("--variant=minbase", f"--include={packages}", "--components=main,universe")
    options += (f"--arch={DEBIAN[architecture]}",)
    subprocess.run(["debootstrap", *options, suite, partial], check=True, stdout=subprocess.DEVNULL)
    partial.rename(folder)


class Root:
    """A Debian system in a folder, with the environment variables and the user for its commands."""

    def __init__(self, folder: Path, suite: str = SUITE, architecture: str = platform.machine()) -> None:
        self.folder, self.user, self.architecture = folder, "root", architecture
        self.variables = {"PATH": "/usr/bin:/usr/sbin", "LANG": "C.UTF-8", "PYTHONUNBUFFERED": "1"}
        if not folder.is_dir():
            debootstrap(folder, suite, architecture, "ca-certificates")
        # These files hold the network settings of this machine: host names, certificates, and pip's index.
        for name in ("/etc/resolv.conf", CERTIFICATES):
            shutil.copy(name, folder / name.lstrip("/"))
        own = {key: text for key, text in os.environ.items() if text == CERTIFICATES}
        self.variables |= own | {key: os.environ[key] for key in os.environ if key.lower().endswith("_proxy")}

    def run(self, line: str) -> str:
        """Runs a shell line in the root, with its own /proc and /dev. Prints each line of the output with the
        seconds since the start, and returns the output.
        """
        print("+", line, flush=True)
        mounts = "mount -t proc proc proc && mount --rbind /dev dev && "
        # The line gets its own session. A process in the session of process 1 never counts as orphaned.
        inside = f'setsid --wait chroot --userspec={self.user} . sh -c "$1"'
        command = ["unshare", "--mount", "--pid", "--fork", "sh", "-c", mounts + inside, "sh", line]
        variables = {"HOME": "/data" if self.user != "root" else "/root", **self.variables}
        start, output = time.monotonic(), ""
        with subprocess.Popen(
            command, cwd=self.folder, env=variables, stdout=subprocess.PIPE, text=True
        ) as process:
            assert process.stdout is not None
            for text in process.stdout:
                output += text
                print(f"{time.monotonic() - start:6.1f} s  {text[:100].rstrip()}", flush=True)
        print(f"{time.monotonic() - start:6.1f} s  end", flush=True)
        if process.returncode != 0:
            sys.exit(f"exit status {process.returncode}: {line}")
        return output


def readme(folder: Path) -> None:
    root = Root(folder)
    root.run(f"apt-get update -q && apt-get install -y -q --no-install-recommends {COMPILER} > /dev/null")
    checkout(folder / "src")
    lines = re.findall(r"^python3 -m venv.*", (ROOT / "README.md").read_text(encoding="utf-8"), re.M)
    assert len(lines) == 2, lines
    output = root.run(f"cd /src && {lines[0]}")
    assert output.rpartition("Successfully installed")[2].partition("\n")[2].strip(), "no answer"
    root.run("cd /src && du -sm .venv build . /root")
    root.run("cd /src && .venv/bin/eaglecpp run smollm2 Hello -n 1 && times")
    root.run(f"cd /src && export PIP_QUIET=1 && {lines[1]}")


def container(folder: Path) -> None:
    """Follows the Containerfile line by line. Then asks for an answer in the last stage, as that stage's
    user.
    """
    text = (ROOT / "examples" / "serve" / "Containerfile").read_text(encoding="utf-8").replace("\\\n", " ")
    stages: dict[str, Root] = {}
    checkout(folder / "context")
    for line in re.findall(r"^[A-Z]+ .*", text, re.M):
        kind, _, rest = line.partition(" ")
        if kind == "FROM":
            assert rest.split()[0].endswith(f"debian:{SUITE}-slim"), rest
            root = stages[rest.split()[-1]] = Root(folder / f"stage{len(stages)}")
        elif kind == "RUN":
            root.run(rest)
        elif kind == "COPY":
            paths, source = rest.split(), folder / "context"
            if paths[0].startswith("--from="):
                source = stages[paths.pop(0).removeprefix("--from=")].folder
            target = root.folder / paths[-1].lstrip("/")
            (target if paths[-1].endswith("/") else target.parent).mkdir(parents=True, exist_ok=True)
            for path in paths[:-1]:
                copied = f"{source}/{path}"
                if Path(copied).is_dir():
                    copied += "/."  # Docker copies the contents of a folder, and not the folder itself.
                subprocess.run(["cp", "-a", copied, target], check=True)
        elif kind == "USER":
            root.user = rest
        elif kind == "ENV":
            root.variables |= dict(pair.split("=", 1) for pair in shlex.split(rest))
        elif kind == "ENTRYPOINT":
            program = re.findall(r'"([^"]*)"', rest)[0]
        else:
            assert kind in {"ARG", "VOLUME", "EXPOSE"}, line
    shutil.copytree(folder / "context" / PAIR, root.folder / "pair")
    pair = ("/pair/demo-target.gguf", "/pair/demo-draft.gguf")
    assert root.run(f"{program} generate -m {pair[0]} --draft {pair[1]} -p What -n 8").strip(), "no answer"


def main() -> None:
    parts = {"readme": readme, "container": container}
    for name in sys.argv[1:] or parts:
        with tempfile.TemporaryDirectory(prefix="empty-root-") as folder:
            parts[name](Path(folder) if name == "container" else Path(folder) / "root")
        print(f"{name}: ok", flush=True)


if __name__ == "__main__":
    main()
