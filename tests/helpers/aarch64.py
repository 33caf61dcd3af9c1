# SPDX-License-Identifier: MIT
"""Builds a 64-bit ARM machine with the pinned llama.cpp from Debian's packages. QEMU's user emulation runs
the machine.

`prepare` builds the machine once, in the folder of helpers/backends.py. The machine is a root directory of
unpacked Debian packages (their install scripts are not run), Python packages from PyPI's wheels for ARM, and
llama-cpp-python with libraries from the cross-compiler. Cross-compiling takes minutes, while a compiler
inside the emulator would take hours.
"""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
from importlib import metadata
from pathlib import Path

from packages import installed_wheel
from packaging.requirements import Requirement

from helpers import backends

ROOT = Path(__file__).resolve().parents[2]
COMPILER = "aarch64-linux-gnu-g++"
EMULATOR = "qemu-aarch64-static"
DEBIAN = ("python3", "libpython3-dev", "libgomp1", "libstdc++6")
# This architecture is the default of llama-cpp-python's builds. Apple's processors support it from the M2 on.
ARCHITECTURE = "armv8.2-a+dotprod+i8mm"


def missing() -> str:
    """Returns the reason why the ARM machine cannot be built here, or ""."""
    if sys.platform != "linux" or os.getuid() != 0:
        return "debootstrap and chroot need root on Linux"
    tools = [n for n in (COMPILER, EMULATOR, "debootstrap", "dpkg", "unshare") if shutil.which(n) is None]
    install = "apt-get install debootstrap g++-aarch64-linux-gnu qemu-user-static"
    return f"{' and '.join(tools)} not found; Debian and Ubuntu: {install}" if tools else ""


def prepare() -> Path:
    """Builds the machine if needed, and returns its root directory. llama_cpp and eaglecpp's dependencies are
    in `/opt/site` below this directory.
    """
    folder = backends.folder() / "aarch64"
    root = folder / "root"
    if not root.is_dir():
        partial = folder / "root.partial"
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir(parents=True)
        _unpack_debian(partial)
        _install_packages(partial / "opt" / "site", include(partial).name)
        _install_llama(folder / "build", partial / "opt" / "site")
        partial.rename(root)
    return root


def include(root: Path) -> Path:
    """Returns the folder of Python's headers in `root`."""
    return next(root.glob("usr/include/python3.*"))


def libraries(root: Path) -> dict[str, Path]:
    """Returns the paths of the libraries that the extension links, by the libraries' names."""
    folder = root / "opt" / "site" / "llama_cpp" / "lib"
    return {name: folder / f"lib{name}.so" for name in ("ggml-base", "ggml", "ggml-cpu", "llama")}


def call(root: Path, folder: Path, *command: str, **environment: str) -> None:
    """Runs a command in the emulated machine, with `folder` as /mnt. Raises CalledProcessError."""
    shutil.copy(shutil.which(EMULATOR) or "", root / "usr" / "bin" / EMULATOR)
    (root / "mnt").mkdir(exist_ok=True)
    mounts = f"""
        mount --rbind /dev {shlex.quote(str(root))}/dev
        mount --rbind /proc {shlex.quote(str(root))}/proc
        mount --bind {shlex.quote(str(folder))} {shlex.quote(str(root))}/mnt
        exec chroot "$@"
    """
    emulated = [str(root), f"/usr/bin/{EMULATOR}", "-cpu", "max", *command]
    print("+ on ARM:", *command, *(f"{name}={value}" for name, value in environment.items()), flush=True)
    system = {"PATH": "/usr/bin:/bin:/usr/sbin", "HOME": "/tmp", "PYTHONPATH": "/mnt:/opt/site"}
    subprocess.run(
        ["unshare", "--mount", "sh", "-ec", mounts, "sh", *emulated], check=True, env=system | environment
    )


def install(into: Path, extension: Path) -> None:
    """Installs eaglecpp with the given extension, and the demo pair, in the emulated machine."""
    shutil.copytree(
        ROOT / "eaglecpp", into / "eaglecpp", ignore=shutil.ignore_patterns("*.so", "__pycache__")
    )
    shutil.copytree(ROOT / "convert", into / "eaglecpp" / "convert")
    shutil.copy(extension, into / "eaglecpp" / "_core.so")
    facts = into / "eaglecpp.dist-info"
    facts.mkdir()
    for name in ("METADATA", "entry_points.txt"):
        (facts / name).write_text(metadata.distribution("eaglecpp").read_text(name) or "", encoding="utf-8")
    for model in (ROOT / "examples" / "demo_model" / "pair").glob("*.gguf"):
        shutil.copy(model, into)
    shutil.copy(ROOT / "tests" / "arm_engine.py", into)


def _unpack_debian(root: Path) -> None:
    """Unpacks Debian's packages. The packages' install scripts are not run: the scripts take minutes in an
    emulator, and Python does not need them.
    """
    # The machine gets the Debian release of the cross-compiler, because it must have the libraries that the
    # compiler links.
    suite = dict(line.partition("=")[::2] for line in Path("/etc/os-release").read_text().splitlines())
    command = ["debootstrap", "--download-only", "--arch=arm64", "--variant=minbase"]
    command += [f"--include={','.join(DEBIAN)}", suite["VERSION_CODENAME"], str(root)]
    print("+", *command, flush=True)
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    archives = root / "var" / "cache" / "apt" / "archives"
    for package in archives.glob("*.deb"):
        subprocess.run(["dpkg", "-x", package, root], check=True)
        package.unlink()
    # Debian's pyconfig.h includes a processor-specific header. The header is in a folder that the
    # cross-compiler does not search.
    headers = include(root)
    shutil.copy(root / "usr" / "include" / "aarch64-linux-gnu" / headers.name / "pyconfig.h", headers)


def _install_packages(site: Path, python: str) -> None:
    """Installs the requirements of eaglecpp and llama_cpp, without llama_cpp."""
    wanted = []
    for line in (metadata.requires("eaglecpp") or []) + (metadata.requires("llama-cpp-python") or []):
        requirement = Requirement(line)
        if requirement.name != "llama-cpp-python" and requirement.marker is None:
            wanted.append(f"{requirement.name}{requirement.specifier}")
    glibc = [f"--platform=manylinux_2_{minor}_aarch64" for minor in (17, 28, 31, 34)]
    command = [sys.executable, "-m", "pip", "install", "-q", "--target", str(site), "--only-binary=:all:"]
    command += [*glibc, "--implementation=cp", f"--python-version={python.removeprefix('python')}", *wanted]
    print("+", *command, flush=True)
    subprocess.run(command, check=True)


def _install_llama(made: Path, site: Path) -> None:
    """Installs llama_cpp: Python files of the installed package, libraries from the cross-compiler."""
    options = (
        "CMAKE_SYSTEM_NAME=Linux", "CMAKE_SYSTEM_PROCESSOR=aarch64", f"CMAKE_CXX_COMPILER={COMPILER}",
        f"CMAKE_C_COMPILER={COMPILER.replace('g++', 'gcc')}", f"GGML_CPU_ARM_ARCH={ARCHITECTURE}",
        "CMAKE_BUILD_WITH_INSTALL_RPATH=ON", "CMAKE_INSTALL_RPATH=$ORIGIN",
    )  # fmt: skip
    backends.build_llama(made, "llama", *options)
    shutil.unpack_archive(installed_wheel("llama-cpp-python", made), site, "zip")
    shutil.rmtree(site / "llama_cpp" / "lib")
    shutil.copytree(made / "bin", site / "llama_cpp" / "lib", symlinks=True)
