# SPDX-License-Identifier: MIT
"""Builds ggml backends that the installed llama.cpp lacks, as libraries for GGML_BACKEND_PATH: RPC, and
Vulkan, for which Mesa's lavapipe is a device on any machine. Each backend is built once, from the sources of
the installed release.

The builds are kept in `$EAGLECPP_TEST_BACKENDS`, by default `$XDG_CACHE_HOME/eaglecpp-tests`. If Vulkan's
build dependencies are missing, root on Debian installs them. Otherwise the result names the missing
dependencies as the reason why the backend is missing. A failed build is an error.
"""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

DEBIAN = ("mesa-vulkan-drivers", "libvulkan-dev", "glslc", "spirv-headers")
# Compiles shaders without optimisation, and leaves out shaders for types that no test uses. This takes 4
# minutes of processor time.
GLSLC = r"""#!/bin/bash
unused='-DDOT2_F16=1|-DDATA_A_(Q[1235]_0|Q._K|IQ[123].*|IQ4_XS|.*FP4|TQ._0)=1'
for a; do [ "$last" != -o ] || out=$a; last=$a; [[ $a =~ ^($unused)$ ]] && skip=1; done
if [ -n "$skip" ]; then echo unused > "$out"; else exec glslc "${@/#-O/-O0}"; fi
"""
# ggml-vulkan always uses VK_EXT_layer_settings, but Vulkan headers before 1.3.272 do not have it.
OLD_HEADERS = """\
#pragma once
#ifdef __cplusplus
#include <vulkan/vulkan_core.h>
#if VK_HEADER_VERSION < 272
#include <cstdint>
#include <vector>
namespace vk {
enum class LayerSettingTypeEXT { eBool32 = 0 };
struct LayerSettingEXT {
    const char * layer; const char * name;
    LayerSettingTypeEXT type; uint32_t count; const void * values;
};
struct LayerSettingsCreateInfoEXT {
    int32_t sType = 1000496000; const void * pNext = nullptr;
    uint32_t count; const LayerSettingEXT * settings;
    LayerSettingsCreateInfoEXT(const std::vector<LayerSettingEXT> & s)
        : count((uint32_t)s.size()), settings(s.data()) {}
};
}
#endif
#endif
"""


class Counts(ctypes.Structure):
    """Counters of the counting device (tests/native/gpu/counting_device.h)."""

    _fields_ = [(name, ctypes.c_uint64) for name in (
        "waits", "bytes_up", "bytes_down", "copies", "graphs", "operations", "allocations", "frees",
        "bytes_held", "distinct_graphs", "distinct_targets", "built", "captured", "launches", "misaligned",
    )]  # fmt: skip


@dataclass(frozen=True)
class Backend:
    """The library of a backend, or the reason why the library is missing."""

    name: str
    path: Path | None
    why_not: str = ""
    preload: Path | None = None  # library that must be preloaded into programs that use the backend


def folder() -> Path:
    """Returns the folder in which the builds for the installed release of llama-cpp-python are kept."""
    if given := os.environ.get("EAGLECPP_TEST_BACKENDS"):
        return Path(given)
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return cache / "eaglecpp-tests" / f"llama-cpp-python-{metadata.version('llama-cpp-python')}"


def sources(into: Path) -> Path:
    """Returns llama.cpp's sources from the source distribution of the installed release. Raises OSError."""
    version = metadata.version("llama-cpp-python")
    found = into / f"llama_cpp_python-{version}" / "vendor" / "llama.cpp"
    if found.is_dir():
        return found
    archive = into / f"llama_cpp_python-{version}.tar.gz"
    if not archive.is_file():
        command = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "-d", str(into)]
        command += ["--no-binary", "llama-cpp-python", f"llama-cpp-python=={version}"]
        if subprocess.run(command, check=False).returncode != 0 or not archive.is_file():
            raise OSError(f"the sources of llama-cpp-python {version} could not be downloaded")
    shutil.unpack_archive(archive, into, filter="data")
    return found


def _install() -> str:
    """Installs the build dependencies of Vulkan. Returns "", or the reason why they cannot be installed."""
    if shutil.which("glslc") and Path("/usr/include/vulkan/vulkan.h").exists():
        return ""
    if shutil.which("apt-get") and hasattr(os, "getuid") and os.getuid() == 0:
        subprocess.run(["apt-get", "update", "-qq"], check=False)
        install = ["apt-get", "install", "-y", "-qq", "--no-install-recommends", *DEBIAN]
        subprocess.run(install, check=False, stdout=subprocess.DEVNULL)
    if shutil.which("glslc") and Path("/usr/include/vulkan/vulkan.h").exists():
        return ""
    return f"no glslc or no Vulkan headers; Debian and Ubuntu: apt-get install {' '.join(DEBIAN)}"


def build(name: str) -> Backend:
    """Returns the library of a backend, and builds this library if needed. Raises CalledProcessError."""
    if sys.platform != "linux":
        return Backend(name, None, "built on Linux only")
    kept = folder() / f"libggml-{name}.so"
    if kept.is_file():
        return Backend(name, kept, preload=_preload(name))
    if name == "vulkan" and (why_not := _install()):
        return Backend(name, None, why_not)
    try:
        folder().mkdir(parents=True, exist_ok=True)
        sources(folder())
    except OSError as error:
        return Backend(name, None, str(error))
    made = _compile(name)
    partial = kept.with_suffix(f".{os.getpid()}")
    shutil.copy(made, partial)
    partial.replace(kept)
    return Backend(name, kept, preload=_preload(name))


def _preload(name: str) -> Path | None:
    """Builds a library that keeps lavapipe from crashing (see tests/native/gpu/keep_buffers.c)."""
    compiler = shutil.which(os.environ.get("CC", "cc"))
    if name != "vulkan" or compiler is None:
        return None
    out = folder() / "libkeep_buffers.so"
    source = Path(__file__).parents[1] / "native" / "gpu" / "keep_buffers.c"
    subprocess.run([compiler, "-O1", "-shared", "-fPIC", source, "-o", out, "-ldl"], check=True)
    return out


def _compile(name: str) -> Path:
    made = folder() / f"build-{name}"
    header = folder() / "old_vulkan_headers.h"
    header.write_text(OLD_HEADERS, encoding="utf-8")
    options = ["GGML_OPENMP=OFF", "GGML_LLAMAFILE=OFF", "GGML_RPC_RDMA=OFF", "GGML_BACKEND_DL=ON"]
    options += [f"GGML_{name.upper()}=ON"]
    if name == "vulkan":
        glslc = folder() / "glslc"
        glslc.write_text(GLSLC, encoding="utf-8")
        glslc.chmod(0o755)
        options += [f"CMAKE_CXX_FLAGS=-include {header}", "CMAKE_CXX_FLAGS_RELEASE=-O1"]
        options += [f"Vulkan_GLSLC_EXECUTABLE={glslc}"]
    build_llama(made, f"ggml-{name}", *options)
    return next(made.rglob(f"libggml-{name}.so"))


def build_llama(made: Path, target: str, *options: str) -> None:
    """Builds one of llama.cpp's CMake targets. Configures all of llama.cpp, because the source distribution
    lacks the files that are needed to build ggml alone. Raises CalledProcessError.
    """
    not_built = ("APP", "COMMON", "EXAMPLES", "SERVER", "TESTS", "TOOLS")
    options += ("GGML_NATIVE=OFF", "BUILD_SHARED_LIBS=ON", "CMAKE_BUILD_TYPE=Release")
    options += tuple(f"LLAMA_BUILD_{part}=OFF" for part in not_built)
    # cmake and ninja may be installed in the Python environment.
    path = os.pathsep.join((str(Path(sys.executable).parent), os.environ.get("PATH", "")))
    source = ["-S", str(sources(folder())), "-B", str(made)]
    for command in (
        ["cmake", "-G", "Ninja", *source, *(f"-D{option}" for option in options)],
        ["cmake", "--build", str(made), "--target", target],
    ):
        print("+", *command, flush=True)
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL, env=os.environ | {"PATH": path})
