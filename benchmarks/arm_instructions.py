# SPDX-License-Identifier: MIT
"""Counts instructions per product on 64-bit ARM, ours and ggml's, on a machine without an ARM processor.

    python benchmarks/arm_instructions.py --llama-cpp PATH [--types q4_0,q8_0,...] [--json OUT]

PATH: the sources of the pinned llama.cpp. Debian's cross-compiler (g++-aarch64-linux-gnu) builds them and our
kernels, and `arm_instructions.cpp` runs one product many times under qemu-aarch64 (qemu-user). The qemu
plugin `count_instructions.c` counts the executed instructions. Every result is the difference between two
runs with different numbers of products, so the instructions for loading, packing and starting the program
cancel out. Rounding the activations counts as part of a product. ggml runs on one thread. As in llama.cpp,
ggml repacks weights if it has a kernel for repacked weights.

Numbers of instructions do not predict time, because processors differ in parallelism, and waits for memory
are not counted.
"""

from __future__ import annotations

import argparse
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

from common import arguments, facts, note, table, write_json

ROOT = Path(__file__).resolve().parents[1]
BUILD = ROOT / "build" / "arm"
CC, CXX, EMULATOR = "aarch64-linux-gnu-gcc", "aarch64-linux-gnu-g++", "qemu-aarch64"
N_IN, N_OUT = 512, 512
ROWS = (1, 2, 4, 8, 64)
REPEATS = {1: 32, 2: 16, 4: 8, 8: 4, 64: 1}
TYPES = ("q4_0", "q4_1", "q5_0", "q8_0", "iq4_nl", "q4_K", "q5_K", "q6_K")
KERNELS = {"neon": "armv8.2-a+dotprod+fp16", "neon_i8mm": "armv8.6-a+dotprod+fp16+i8mm"}
"""Values of -march for building ggml, by the name of our kernel table for the same processors."""


def main() -> None:
    args = parse()
    missing = [name for name in (CC, CXX, EMULATOR) if shutil.which(name) is None]
    if missing:
        sys.exit(
            f"{', '.join(missing)} not found. On Debian, run apt-get install g++-aarch64-linux-gnu qemu-user"
        )
    plugin = built_plugin()
    programs = {name: built(args.llama_cpp, name, arch) for name, arch in KERNELS.items()}
    found: dict[str, Any] = {}
    lines = []
    for name, program in programs.items():
        for kind in args.types:
            counts = {who: [count(plugin, program, who, kind, n) for n in ROWS] for who in (name, "ggml")}
            found[f"{name} {kind}"] = counts
            ratios = (
                f"{ours / theirs:.2f}" for ours, theirs in zip(counts[name], counts["ggml"], strict=True)
            )
            lines.append([name, kind, *(f"{n:.3f}" for n in counts[name]), *ratios])
            note(" ".join(lines[-1]))
    heads = ["kernels", "type", *(f"{n} rows" for n in ROWS), *(f"{n}, over ggml's" for n in ROWS)]
    print(table(heads, lines))
    write_json(args.json, facts({}, n_in=N_IN, n_out=N_OUT, rows=ROWS) | {"counts": found})


def count(plugin: Path, program: Path, who: str, kind: str, n_rows: int) -> float:
    """Returns the number of instructions per multiplication of a weight with an input."""
    repeats = REPEATS[n_rows]
    totals = []
    for n in (1, 1 + repeats):
        command = [EMULATOR, "-cpu", "max", "-plugin", plugin, "-d", "plugin", program]
        command += [who, kind, N_IN, N_OUT, n_rows, n]
        done = subprocess.run([str(part) for part in command], capture_output=True, text=True, check=False)
        counted = re.search(r"instructions (\d+)", done.stderr)
        if done.returncode != 0 or counted is None:
            sys.exit(f"{' '.join(map(str, command))}: {done.returncode}\n{done.stderr[-1000:]}")
        totals.append(int(counted[1]))
    return (totals[1] - totals[0]) / (repeats * n_rows * N_IN * N_OUT)


def built_plugin() -> Path:
    BUILD.mkdir(parents=True, exist_ok=True)
    plugin = BUILD / "count_instructions.so"
    source = Path(__file__).with_name("count_instructions.c")
    run("gcc", "-O2", "-shared", "-fPIC", source, "-o", plugin)
    return plugin


def built(llama_cpp: Path, name: str, arch: str) -> Path:
    """Builds `arm_instructions` with ggml for this architecture."""
    cross = [
        "-G", "Ninja", "-DCMAKE_BUILD_TYPE=Release", "-DCMAKE_SYSTEM_NAME=Linux",
        "-DCMAKE_SYSTEM_PROCESSOR=aarch64", f"-DCMAKE_C_COMPILER={CC}", f"-DCMAKE_CXX_COMPILER={CXX}",
    ]  # fmt: skip
    ours = BUILD / "ours"
    run(
        "cmake", "-S", ROOT, "-B", ours, *cross, f"-DPython_EXECUTABLE={sys.executable}",
        "-DEAGLECPP_PYTHON=OFF", "-DEAGLECPP_KERNELS_ONLY=ON",
    )  # fmt: skip
    run("cmake", "--build", ours, "--target", "eaglecpp_kernels")
    theirs, source = BUILD / f"ggml-{name}", BUILD / "ggml"
    shutil.copytree(llama_cpp / "ggml", source, dirs_exist_ok=True)
    # CMake needs this file only for an installation. The sdist lacks this file, so an empty one is created.
    (source / "ggml.pc.in").touch()
    run(
        "cmake", "-S", source, "-B", theirs, *cross, f"-DGGML_CPU_ARM_ARCH={arch}", "-DGGML_NATIVE=OFF",
        "-DGGML_OPENMP=OFF", "-DGGML_LLAMAFILE=ON", "-DBUILD_SHARED_LIBS=OFF", "-DGGML_BUILD_TESTS=OFF",
        "-DGGML_BUILD_EXAMPLES=OFF",
    )  # fmt: skip
    run("cmake", "--build", theirs, "--target", "ggml")
    program = BUILD / f"arm_instructions-{name}"
    libraries = [theirs / "src" / f"lib{part}.a" for part in ("ggml", "ggml-cpu", "ggml-base")]
    run(
        CXX, "-O2", "-std=c++17", "-static", "-DEAGLECPP_KERNELS_ARM", "-I", ROOT / "native",
        "-I", source / "include", Path(__file__).with_suffix(".cpp"),
        ours / "native" / "libeaglecpp_kernels.a", *libraries, "-lpthread", "-ldl", "-o", program,
    )  # fmt: skip
    return program


def run(*command: str | Path) -> None:
    done = subprocess.run([str(part) for part in command], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        sys.exit(f"{' '.join(map(str, command))}: {done.returncode}\n{(done.stdout + done.stderr)[-3000:]}")


def parse() -> argparse.Namespace:
    parser = arguments(__doc__)
    parser.add_argument("--llama-cpp", type=Path, required=True, help="sources of the pinned llama.cpp")
    parser.add_argument("--types", type=lambda text: text.split(","), default=list(TYPES))
    parser.add_argument("--json", type=Path)
    return parser.parse_args()


if __name__ == "__main__":
    main()
