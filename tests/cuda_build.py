# SPDX-License-Identifier: MIT
"""Builds llama-cpp-python with CUDA by the recipe of docs/gpu.md, on a machine without a GPU, and runs
eaglecpp with it.

    python tests/cuda_build.py [--architecture 86]

The program needs nvcc. It reads `CMAKE_ARGS` from the page, and adds only the GPU's architecture, because
llama.cpp would query the missing GPU. If the toolkit lacks cuBLAS, NVIDIA's package on PyPI provides cuBLAS.
libcuda, which comes with the driver, is a stub. With this build `eaglecpp doctor` must say that there is no
GPU and why, and drafting on the CPU, with EAGLE and block drafters, must not change the text. The build is
kept in the folder of helpers/backends.py; the first build takes 45 minutes of processor time.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from packages import PAIR, ROOT, run

from helpers import backends


def paths(*folders: Path | None) -> str:
    return os.pathsep.join(str(f) for f in folders if f is not None)


def documented() -> str:
    """Returns the CMAKE_ARGS in the recipe of docs/gpu.md for NVIDIA cards."""
    page = (ROOT / "docs" / "gpu.md").read_text(encoding="utf-8")
    found = re.findall(r'^CMAKE_ARGS="([^"]*GGML_CUDA[^"]*)" pip install', page, re.M)
    assert len(found) == 1, found
    return str(found[0])


def compiler() -> Path:
    """Returns the real nvcc, even if the nvcc on the PATH is a script that calls it."""
    command = ["nvcc", "--dryrun", "-x", "cu", os.devnull]
    process = subprocess.run(command, capture_output=True, text=True, check=False).stderr
    found = re.search(r"^#\$ _HERE_=(.*)$", process, re.M)
    assert found is not None, process
    return Path(found[1]) / "nvcc"


def cublas(nvcc: Path, into: Path) -> Path | None:
    """Returns the folder of `include` and `lib` with cuBLAS, or None if the toolkit has cuBLAS."""
    if any(nvcc.parents[1].glob("lib*/libcublas.so")):
        return None
    process = subprocess.run([nvcc, "--version"], capture_output=True, text=True, check=True).stdout
    release = re.search(r"release (\d+)\.(\d+)", process)
    assert release is not None, process
    major, minor = release.groups()
    if not any(into.glob("nvidia/*/lib/libcublas.so")):
        name = "nvidia-cublas" if int(major) >= 13 else f"nvidia-cublas-cu{major}"
        options = ("--no-deps", "--only-binary", ":all:", "--upgrade", "--target", into)
        run(sys.executable, "-m", "pip", "install", "-q", *options, f"{name}=={major}.{minor}.*")
        for library in into.glob("nvidia/*/lib/lib*.so.*"):
            library.with_name(library.name.split(".so")[0] + ".so").symlink_to(library.name)
    return next(into.glob("nvidia/*/lib")).parent


def stub(into: Path) -> Path:
    """Builds a libcuda whose functions all return errors, and returns its folder."""
    into.mkdir(parents=True, exist_ok=True)
    soname = "libcuda.so.1"
    source = ROOT / "tests" / "native" / "gpu" / "cuda_stub.c"
    run("cc", "-shared", "-fPIC", f"-Wl,-soname,{soname}", "-o", into / soname, source)
    link = into / "libcuda.so"
    link.unlink(missing_ok=True)
    link.symlink_to(soname)
    return into


def wheel(architecture: str, out: Path, options: str = "") -> tuple[Path, list[Path]]:
    """Builds llama-cpp-python's wheel with CUDA into `out`. Returns the wheel and the folders of the
    libraries that the wheel needs; the last folder is the driver's. Compiled files are kept for the next run.
    """
    kept = backends.folder() / "cuda"
    kept.mkdir(parents=True, exist_ok=True)
    nvcc = compiler()
    blas = cublas(nvcc, kept / "cublas")
    libraries = [*([blas / "lib"] if blas else []), stub(kept / "stub")]
    name = "-".join(["build", architecture, *re.findall(r"\w+", options)])
    run(
        sys.executable, "-m", "pip", "wheel", "-v", "--no-deps", "--no-build-isolation",
        "-C", f"build-dir={kept / name}", "-w", out, backends.sources(backends.folder()).parents[1],
        CMAKE_ARGS=f"{documented()} -DCMAKE_CUDA_ARCHITECTURES={architecture} {options}",
        CUDACXX=str(nvcc),
        CMAKE_LIBRARY_PATH=paths(*libraries),
        CPATH=paths(blas and blas / "include"),
    )  # fmt: skip
    return next(out.glob("llama_cpp_python-*.whl")), libraries


def build(architecture: str) -> tuple[Path, list[Path]]:
    """Returns a folder with the package llama_cpp, built with CUDA, and the library folders that `wheel`
    returned.
    """
    site = backends.folder() / "cuda" / f"site-{architecture}"
    with tempfile.TemporaryDirectory() as directory:
        built, libraries = wheel(architecture, Path(directory))
        shutil.rmtree(site, ignore_errors=True)
        shutil.unpack_archive(built, site, "zip")
    return site, libraries


def output_of(*arguments: str | Path, code: int = 0, **environment: str) -> str:
    """Runs `eaglecpp` and returns its output. Fails if the exit code is not `code`."""
    command = [sys.executable, "-P", "-m", "eaglecpp", *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=os.environ | environment)
    print("+ eaglecpp", *arguments, *(f"{name}={value}" for name, value in environment.items()))
    print(done.stdout, done.stderr, flush=True)
    assert done.returncode == code, f"expected exit code {code}, found {done.returncode}"
    return done.stdout


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument(
        "--architecture", default="86", help="compute capability; 86 is an RTX 3090 (default)"
    )
    args = parser.parse_args()
    site, libraries = build(args.architecture)
    # The CUDA build is added to the extension, which was built against the CPU wheel.
    cuda = {"PYTHONPATH": str(site), "LD_LIBRARY_PATH": paths(*libraries)}
    facts = json.loads(output_of("doctor", "--json", **cuda))
    assert any("CUDA : ARCHS" in part for part in facts["features"]), "llama.cpp was built without CUDA"
    assert any("failed to initialize CUDA" in line for line in facts["errors"])
    answer = ("run", PAIR / "demo-target.gguf", "--temp", "0", "-n", "24", "-c", "512", "What is len?")
    text = output_of(*answer)
    assert "number of items" in text
    for draft in (PAIR / "demo-draft.gguf", *(ROOT / "tests" / "fixtures").glob("demo-d*.gguf")):
        assert output_of(*answer, "--draft", draft, "--strategy", "chain:3", **cuda) == text, draft
    # The CUDA driver is missing from here on.
    (libraries[-1] / "libcuda.so.1").unlink()
    assert "libcuda.so.1" in output_of("doctor", code=1, **cuda)


if __name__ == "__main__":
    main()
