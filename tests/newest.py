# SPDX-License-Identifier: MIT
"""Builds and tests a copy of this checkout against another release of llama-cpp-python, and reports which
parts fail.

    python tests/newest.py [VERSION]

Without VERSION, the program takes the newest release that pip finds. It clones the last commit into a
temporary folder, moves the pin in this clone, and runs every part to its end, even after a failure. The last
lines give the result of each part. The exit status is 1 if any part failed. The program does not change this
checkout, and needs the tools of tests/run.py. CONTRIBUTING.md describes how to move the pin.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = "llama-cpp-python"
# The files that name the pinned version, with the number of times.
PINS = {"pyproject.toml": 2, "native/cmake/llama.cmake": 1}
# The files that name the commit of the release's ggml, with the number of times. Only the built library
# reports this commit.
COMMITS = {"eaglecpp/_extension.py": 1, "native/ggml_hook/hook.cpp": 1, "tests/unit/test_extension.py": 4}
LIBRARIES = "import importlib.util as u, os; print(os.path.dirname(u.find_spec('llama_cpp').origin) + '/lib')"
COMMIT = (
    "import ctypes, glob, llama_cpp, os; lib = os.path.dirname(llama_cpp.__file__) + '/lib/*ggml-base*'; "
    "f = ctypes.CDLL(sorted(glob.glob(lib))[0]).ggml_commit; f.restype = ctypes.c_char_p; print(f().decode())"
)


def replace(path: Path, old: str, new: str, n_expected: int) -> None:
    """Replaces a text in a file. Raises ValueError if the file does not contain `old` exactly `n_expected`
    times.
    """
    text = path.read_text(encoding="utf-8")
    if text.count(old) != n_expected:
        raise ValueError(f"{path}: expected {old} {n_expected} times, found {text.count(old)}")
    path.write_text(text.replace(old, new), encoding="utf-8")


def found(pattern: str, path: Path) -> str:
    match = re.search(pattern, path.read_text(encoding="utf-8"), re.M)
    if match is None:
        raise ValueError(f"{path}: expected {pattern}")
    return match[1]


def fetch_sources(version: str | None, folder: Path) -> tuple[str, Path]:
    """Downloads a release. Returns its version and its unpacked sources."""
    wanted = PACKAGE if version is None else f"{PACKAGE}=={version}"
    pip = (sys.executable, "-m", "pip", "download", "-q", "--no-deps", "--no-binary", PACKAGE, "-d")
    subprocess.run([*pip, str(folder), wanted], check=True)
    (archive,) = folder.glob("*.tar.gz")
    shutil.unpack_archive(archive, folder, filter="data")
    name = archive.name.removesuffix(".tar.gz")
    return name.rpartition("-")[2], folder / name / "vendor" / "llama.cpp"


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("version", nargs="?", help="default: the newest release")
    wanted = parser.parse_args().version
    with tempfile.TemporaryDirectory() as name:
        version, sources = fetch_sources(wanted, Path(name))
        checkout = Path(name, "checkout")
        subprocess.run(["git", "clone", "-q", str(ROOT), str(checkout)], check=True)
        old = found(rf'"{PACKAGE}==([^"]+)"', checkout / "pyproject.toml")
        for file, n_expected in PINS.items():
            replace(checkout / file, old, version, n_expected)
        scripts = checkout / ".venv" / ("Scripts" if os.name == "nt" else "bin")
        python = str(scripts / "python")

        def run(*command: str | Path) -> bool:
            print("+", *command, flush=True)
            return subprocess.run(command, cwd=checkout, check=False).returncode == 0

        def output_of(program: str) -> str:
            process = subprocess.run(
                [python, "-c", program], cwd="/", capture_output=True, text=True, check=True
            )
            return process.stdout.strip()

        if not (
            run(sys.executable, "-m", "venv", ".venv")
            and run(scripts / "pip", "install", "-q", f"{PACKAGE}=={version}")
        ):
            sys.exit(f"{PACKAGE} {version} cannot be installed")
        commit = found(r'^_LLAMA_COMMIT = "(\w+)"$', checkout / next(iter(COMMITS)))
        for file, n_expected in COMMITS.items():
            replace(checkout / file, commit, output_of(COMMIT).removesuffix("-dirty"), n_expected)
        os.environ["EAGLECPP_LLAMA_SOURCE"] = str(sources)
        options = ("-DEAGLECPP_PYTHON=OFF", "-DEAGLECPP_TESTS=ON", f"-DPython_EXECUTABLE={python}")
        options += (f"-DEAGLECPP_LLAMA_SOURCE={sources}",)
        configure = ("cmake", "-G", "Ninja", "-S", ".", "-B", "build/abi", *options)
        llama = ("--source", sources, "--libraries", output_of(LIBRARIES))
        parts: dict[str, tuple[tuple[str | Path, ...], ...]] = {
            "build": ((scripts / "pip", "install", "-q", ".[full]"),),
            "abi": (configure, ("cmake", "--build", "build/abi", "--target", "test_abi")),
            "couplings": ((scripts / "pytest", "-q", "tests/unit/test_couplings.py"),),
            "cpp": ((python, "tests/run.py", "cpp"),),
            "python": ((python, "tests/run.py", "python"),),
            "architectures": ((python, "tests/architectures/run.py", *llama),),
        }
        ok = {part: all(run(*command) for command in commands) for part, commands in parts.items()}
    print(
        f"{PACKAGE} {version} (pinned: {old})",
        *(f"{part:<14}{'ok' if fine else 'BROKEN'}" for part, fine in ok.items()),
        sep="\n",
    )
    sys.exit(0 if all(ok.values()) else 1)


if __name__ == "__main__":
    main()
