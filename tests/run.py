# SPDX-License-Identifier: MIT
"""Runs every check of the repository, cheapest to fail first, and stops at the first failure.

`python tests/run.py [step ...]` with the Python of an environment that has `eaglecpp[test]` installed; the
steps are listed below. It needs a C++ compiler; with clang++ and its runtime the GGUF reader is fuzzed by
libFuzzer, with any other compiler by the harness's own mutator. The Python readers are fuzzed by atheris, of
which there are wheels for Linux on x86-64.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
BUILD = ROOT / "build" / "tests"
BIN = Path(sysconfig.get_path("scripts"))
FUZZ_SECONDS = 30


def run(*command: str | Path, cwd: Path = ROOT) -> None:
    print("+", *command, flush=True)
    environment = {**os.environ, "PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}"}
    done = subprocess.run([str(c) for c in command], cwd=cwd, env=environment, check=False)
    if done.returncode != 0:
        sys.exit(done.returncode)


def python_tool(name: str, *arguments: str | Path) -> None:
    run(sys.executable, "-m", name, *arguments)


def lint() -> None:
    python_tool("ruff", "check", ".")
    python_tool("ruff", "format", "--check", ".")
    sources = sorted(
        p for d in ("native", "tests") for p in (ROOT / d).rglob("*") if p.suffix in {".h", ".cpp", ".inc"}
    )
    run(BIN / "clang-format", "--dry-run", "--Werror", *sources)
    run(BIN / "lint-imports")


def types() -> None:
    python_tool("mypy")


def cmake(name: str, *options: str, targets: tuple[str, ...] = ("all",)) -> Path:
    """Configures `build/tests/<name>` and builds the targets; returns the folder."""
    folder = BUILD / name
    run(
        "cmake", "-G", "Ninja", "-S", ROOT, "-B", folder,
        f"-DPython_EXECUTABLE={sys.executable}", "-DEAGLECPP_PYTHON=OFF", *options,
    )  # fmt: skip
    run("cmake", "--build", folder, "--target", *targets)
    return folder


def cpp() -> None:
    sanitizers = "-fsanitize=address,undefined -fno-sanitize-recover=undefined -fno-omit-frame-pointer"
    folder = cmake(
        "asan",
        "-DEAGLECPP_TESTS=ON",
        "-DEAGLECPP_WERROR=ON",
        "-DCMAKE_BUILD_TYPE=RelWithDebInfo",
        f"-DCMAKE_CXX_FLAGS={sanitizers if os.name == 'posix' else ''}",
    )
    # minutes of simulation under sanitizers, seconds without: those run on a release build
    run("ctest", "--test-dir", folder, "--output-on-failure", "-E", "planner_scenarios")
    folder = cmake("release", "-DEAGLECPP_TESTS=ON", "-DEAGLECPP_ALGO_ONLY=ON", "-DCMAKE_BUILD_TYPE=Release")
    run("ctest", "--test-dir", folder, "--output-on-failure")


def has_libfuzzer() -> bool:
    clang = shutil.which("clang++")
    if clang is None:
        return False
    probe = 'extern "C" int LLVMFuzzerTestOneInput(const char *, unsigned long) { return 0; }'
    done = subprocess.run(
        [clang, "-fsanitize=fuzzer,address", "-x", "c++", "-", "-o", os.devnull],
        input=probe.encode(), capture_output=True, check=False,
    )  # fmt: skip
    return done.returncode == 0


def fuzz() -> None:
    options = ["-DEAGLECPP_FUZZ=ON", "-DCMAKE_BUILD_TYPE=RelWithDebInfo"]
    if has_libfuzzer():
        options.append("-DCMAKE_CXX_COMPILER=clang++")
    folder = cmake("fuzz", *options, targets=("make_corpus", "fuzz_draft_file"))
    corpus = folder / "corpus"
    programs = folder / "tests" / "native" / "gguf"
    run(programs / "make_corpus", corpus)
    with python_targets():
        run(
            programs / "fuzz_draft_file",
            f"-max_total_time={FUZZ_SECONDS}",
            "-rss_limit_mb=2048",
            corpus,
            cwd=folder,
        )


@contextmanager
def python_targets() -> Iterator[None]:
    """Runs the atheris targets of tests/fuzz beside the block, each for its own 20 seconds; shows what one of
    them printed only when it found something.
    """
    if importlib.util.find_spec("atheris") is None:
        print("atheris is not installed: the Python readers are not fuzzed", flush=True)
        yield
        return
    targets = sorted((ROOT / "tests" / "fuzz").glob("fuzz_*.py"))
    with tempfile.TemporaryDirectory() as name:
        logs = [Path(name, target.stem) for target in targets]
        jobs = []
        for target, log in zip(targets, logs, strict=True):
            print("+", sys.executable, target, "&", flush=True)
            with log.open("wb") as out:
                jobs.append(
                    subprocess.Popen([sys.executable, target], cwd=name, stdout=out, stderr=subprocess.STDOUT)
                )
        try:
            yield
        finally:
            failed = [log for job, log in zip(jobs, logs, strict=True) if job.wait() != 0]
        for log in failed:
            print(log.read_text(encoding="utf-8", errors="replace"), flush=True)
        if failed:
            sys.exit(f"fuzzing found something: {', '.join(log.name for log in failed)}")


def python() -> None:
    # `pytest`, not `python -m pytest`: the latter puts the checkout before the installed package
    run(BIN / "pytest", "-q", "--durations=10")


STEPS = {"lint": lint, "types": types, "cpp": cpp, "fuzz": fuzz, "python": python}


def main() -> None:
    wanted = sys.argv[1:] or list(STEPS)
    unknown = [name for name in wanted if name not in STEPS]
    if unknown:
        sys.exit(f"unknown step {unknown[0]!r}; expected some of {', '.join(STEPS)}")
    for name in wanted:
        start = time.monotonic()
        STEPS[name]()
        print(f"== {name}: ok, {time.monotonic() - start:.0f} s", flush=True)


if __name__ == "__main__":
    main()
