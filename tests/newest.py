# SPDX-License-Identifier: MIT
"""Builds and tests a copy of this checkout against another release of llama-cpp-python, and says what broke.

    python tests/newest.py [VERSION] [--only advisories,build,abi,cpp,python,architectures] [--out REPORT.md]

Without VERSION it takes the newest release that pip finds. The last commit is cloned into a temporary folder,
the pin is moved there, and every part runs to its end whatever the others did; `advisories` is no build but
asks which published faults SECURITY.md does not know. The report has one line per
part, the tests that failed, and the end of what a part printed. Exit status 1 when something broke. Nothing
in this checkout changes; CONTRIBUTING.md says what moving on takes. Needs what tests/run.py needs.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = "llama-cpp-python"
# file -> how often it names the pinned version
PINS = {"pyproject.toml": 2, "native/cmake/llama.cmake": 1}
# files that name the commit of its ggml, which only a built library tells
COMMITS = ("eaglecpp/_extension.py", "native/ggml_hook/hook.cpp", "tests/unit/test_extension.py")
COUPLINGS = "tests/unit/test_couplings.py"
PARTS = ("advisories", "build", "abi", "cpp", "python", "architectures")
N_LAST = 30
LIBRARIES = "import importlib.util as u, os; print(os.path.dirname(u.find_spec('llama_cpp').origin) + '/lib')"
COMMIT = (
    "import ctypes, glob, llama_cpp, os; lib = os.path.dirname(llama_cpp.__file__) + '/lib/*ggml-base*'; "
    "f = ctypes.CDLL(sorted(glob.glob(lib))[0]).ggml_commit; f.restype = ctypes.c_char_p; print(f().decode())"
)
_FAILED = re.compile(
    r"^(?:(?:FAILED|ERROR) \S+.*"  # pytest
    r"|\s*\d+ - \S+ \((?:Failed|Timeout|SEGFAULT|Subprocess aborted|Not Run)\).*)$",  # ctest
    re.M,
)


@dataclass(frozen=True)
class Outcome:
    """What one part gave. failed: names of tests; output: everything it printed."""

    part: str
    ok: bool
    seconds: float
    output: str

    @property
    def failed(self) -> list[str]:
        return [" ".join(line.split()) for line in _FAILED.findall(self.output)]


def pinned(root: Path) -> str:
    """The version that pyproject.toml names. Raises ValueError."""
    found = re.search(rf'"{PACKAGE}==([^"]+)"', (root / "pyproject.toml").read_text(encoding="utf-8"))
    if found is None:
        raise ValueError(f'{root / "pyproject.toml"}: expected "{PACKAGE}==VERSION"')
    return found[1]


def move_pin(root: Path, version: str) -> None:
    """Makes the checkout in `root` ask for this version. Raises ValueError when the pins are not where PINS
    says.
    """
    old = pinned(root)
    for name, n_expected in PINS.items():
        text = (root / name).read_text(encoding="utf-8")
        if text.count(f'"{old}"') + text.count(f"=={old}") != n_expected:
            raise ValueError(f"{root / name}: expected the version {old} {n_expected} times")
        text = text.replace(f'"{old}"', f'"{version}"').replace(f"=={old}", f"=={version}")
        (root / name).write_text(text, encoding="utf-8")


def move_commit(root: Path, commit: str) -> None:
    """Makes the checkout in `root` expect a library whose ggml_commit() is this. Raises ValueError when a
    file of COMMITS names another commit than the first one.
    """
    found = re.search(r'^_LLAMA_COMMIT = "(\w+)"$', (root / COMMITS[0]).read_text(encoding="utf-8"), re.M)
    old = found[1] if found else "_LLAMA_COMMIT"
    for name in COMMITS:
        text = (root / name).read_text(encoding="utf-8")
        if old not in text:
            raise ValueError(f"{root / name}: expected the commit {old}")
        (root / name).write_text(text.replace(old, commit.removesuffix("-dirty")), encoding="utf-8")


def fetch_sources(version: str | None, folder: Path) -> tuple[str, Path]:
    """The version and the unpacked sources of that release."""
    wanted = PACKAGE if version is None else f"{PACKAGE}=={version}"
    pip = (sys.executable, "-m", "pip", "download", "-q", "--no-deps", "--no-binary", ":all:", "-d")
    subprocess.run([*pip, str(folder), wanted], check=True)
    (archive,) = folder.glob("*.tar.gz")
    with tarfile.open(archive) as packed:
        packed.extractall(folder, filter="data")
    found = archive.name.removesuffix(".tar.gz").rpartition("-")[2]
    return found, archive.with_name(archive.name.removesuffix(".tar.gz")) / "vendor" / "llama.cpp"


def output_of(python: Path, program: str) -> str:
    done = subprocess.run([python, "-c", program], cwd="/", capture_output=True, text=True, check=True)
    return done.stdout.strip()


def run_part(part: str, commands: Sequence[Sequence[str | Path]], cwd: Path) -> Outcome:
    """Runs the commands one after the other until one fails; shows and keeps what they print."""
    begun, lines, ok = time.monotonic(), [], True
    for command in commands:
        print("+", *command, flush=True)
        words = [str(word) for word in command]
        with subprocess.Popen(
            words, cwd=cwd, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace"
        ) as process:
            assert process.stdout is not None
            for line in process.stdout:
                print(line, end="", flush=True)
                lines.append(line)
        if process.returncode != 0:
            lines.append(f"exit status {process.returncode}: {' '.join(words)}\n")
            ok = False
            break
    return Outcome(part, ok, time.monotonic() - begun, "".join(lines))


def report(old: str, new: str, outcomes: Sequence[Outcome]) -> str:
    """The report in Markdown."""
    lines = [f"# {PACKAGE} {new} (pinned: {old})", "", "| part | | seconds |", "| --- | --- | --- |"]
    lines += [f"| {o.part} | {'ok' if o.ok else 'BROKEN'} | {o.seconds:.0f} |" for o in outcomes]
    for outcome in outcomes:
        if outcome.ok:
            continue
        lines += ["", f"## {outcome.part}", ""]
        lines += [f"- `{name}`" for name in outcome.failed]
        last = outcome.output.splitlines()[-N_LAST:]
        lines += ["", "```", *last, "```"]
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("version", nargs="?", help="the newest release unless given")
    parser.add_argument("--only", default=",".join(PARTS), help="parts, by commas; build always runs")
    parser.add_argument("--out", type=Path, default=None, help="where the report goes, too")
    args = parser.parse_args()
    wanted = args.only.split(",")
    unknown = [part for part in wanted if part not in PARTS]
    if unknown:
        parser.error(f"unknown part {unknown[0]!r}; expected some of {', '.join(PARTS)}")

    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "sdist").mkdir()
        version, sources = fetch_sources(args.version, folder / "sdist")
        checkout = folder / "checkout"
        subprocess.run(["git", "clone", "-q", str(ROOT), str(checkout)], check=True)
        old = pinned(checkout)
        if version == old:
            print(f"the pin is {PACKAGE} {old} already: this shows what it gives")
        else:
            move_pin(checkout, version)
        scripts = checkout / ".venv" / ("Scripts" if os.name == "nt" else "bin")
        python = scripts / "python"
        options = (
            "-DEAGLECPP_PYTHON=OFF",
            "-DEAGLECPP_TESTS=ON",
            f"-DPython_EXECUTABLE={python}",
            f"-DEAGLECPP_LLAMA_SOURCE={sources}",
        )
        build = run_part(
            "build",
            [
                [sys.executable, "-m", "venv", ".venv"],
                [scripts / "pip", "install", "-q", f"{PACKAGE}=={version}"],
            ],
            checkout,
        )
        if build.ok:
            move_commit(checkout, output_of(python, COMMIT))
            rest = run_part("build", [[scripts / "pip", "install", "-q", ".[test]"]], checkout)
            build = replace(rest, seconds=build.seconds + rest.seconds)
        outcomes = [build]
        if "advisories" in wanted:
            outcomes.append(run_part("advisories", [[sys.executable, "tests/advisories.py"]], checkout))
        if build.ok:
            where = output_of(python, LIBRARIES)
            commands: dict[str, list[Sequence[str | Path]]] = {
                "abi": [
                    [scripts / "cmake", "-G", "Ninja", "-S", ".", "-B", "build/abi", *options],
                    [scripts / "cmake", "--build", "build/abi", "--target", "test_abi"],  # static assertions
                    ["env", f"EAGLECPP_LLAMA_SOURCE={sources}", scripts / "pytest", "-q", COUPLINGS],
                ],
                "cpp": [[python, "tests/run.py", "cpp"]],
                "python": [[python, "tests/run.py", "python"]],
                "architectures": [
                    [python, "tests/architectures/run.py", "--source", sources, "--libraries", where]
                ],
            }
            outcomes += [run_part(part, commands[part], checkout) for part in PARTS[2:] if part in wanted]
        text = report(old, version, outcomes)
    print(text)
    if args.out is not None:
        args.out.write_text(text, encoding="utf-8")
    sys.exit(0 if all(outcome.ok for outcome in outcomes) else 1)


if __name__ == "__main__":
    main()
