# SPDX-License-Identifier: MIT
"""Loads the compiled extension `eaglecpp._core`. No other file may load the extension. Refuses a llama.cpp
for which the extension was not built.

libllama is loaded first, from the package `llama_cpp` or from `LLAMA_CPP_LIB_PATH`, so that the process has
only one copy of libllama. The loader of the package `llama_cpp` is used, but the package's Python classes are
not imported, because importing them takes a third of a second. The extension shares C structs with libllama,
and the layout of these structs changes between versions. With another version, the extension would read
garbage instead of failing cleanly, so the import raises `VersionError`.
"""

from __future__ import annotations

import importlib.util
import os
import re
from importlib import metadata
from pathlib import Path

from eaglecpp.errors import VersionError

__all__ = ["core", "versions"]

_REMEDY = "Install the matching pair: pip install --force-reinstall eaglecpp llama-cpp-python=={}"

# First characters of the text that ggml_commit() returns in the pinned llama-cpp-python. An sdist build
# appends "-dirty", and a build without git reports "unknown". The check finds a LLAMA_CPP_LIB_PATH that
# points at another llama.cpp.
_LLAMA_COMMIT = "0c1e570"


def _required_version() -> str | None:
    """Returns the version of llama-cpp-python that this distribution's metadata requires; None without
    metadata.
    """
    try:
        requirements = metadata.requires("eaglecpp") or []
    except metadata.PackageNotFoundError:
        return None
    for requirement in requirements:
        if pin := re.match(r"llama[-_]cpp[-_]python\s*\(?==\s*([^\s;)]+)", requirement):
            return pin.group(1)
    return None


def _check_package(found: str, required: str | None) -> None:
    if required is not None and found != required:
        raise VersionError(f"expected llama-cpp-python {required}, found {found}. {_REMEDY.format(required)}")


def _check_library(found: str, info: dict[str, str]) -> None:
    built_for, commit = info["built_for"], info["ggml_commit"]
    if built_for != found:
        raise VersionError(
            f"eaglecpp's extension was built for llama-cpp-python {built_for}, found {found}. "
            f"{_REMEDY.format(built_for)}, or build eaglecpp again against {found}"
        )
    if not commit.startswith(_LLAMA_COMMIT) and commit != "unknown":
        raise VersionError(
            f"the llama.cpp library in this process has commit {commit}, expected {_LLAMA_COMMIT} (from "
            f"llama-cpp-python {built_for}). If LLAMA_CPP_LIB_PATH is set, unset it or point it at a build "
            f"of that commit; otherwise: {_REMEDY.format(built_for)}"
        )


def _load_llama() -> str:
    """Loads libllama as `import llama_cpp` does. Returns llama-cpp-python's version."""
    package = importlib.util.find_spec("llama_cpp")
    if package is None or package.origin is None:
        raise ImportError("No module named 'llama_cpp'")
    folder = Path(package.origin).parent
    loader = importlib.util.spec_from_file_location("_llama_cpp_loader", folder / "_ctypes_extensions.py")
    assert loader is not None
    assert loader.loader is not None
    module = importlib.util.module_from_spec(loader)
    loader.loader.exec_module(module)
    module.load_shared_library("llama", Path(os.environ.get("LLAMA_CPP_LIB_PATH", folder / "lib")))
    return metadata.version("llama-cpp-python")


try:
    _llama_cpp_python = _load_llama()
except (ImportError, OSError, RuntimeError, ValueError) as error:
    raise VersionError(
        f"llama-cpp-python cannot be loaded: {error}. If LLAMA_CPP_LIB_PATH is set, unset it; otherwise: "
        + _REMEDY.format(_required_version() or "VERSION")
    ) from error
_check_package(_llama_cpp_python, _required_version())
try:
    from eaglecpp import _core as core
except ImportError as error:
    raise VersionError(
        f"eaglecpp's extension cannot be loaded: {error}. To build it in a checkout: pip install ."
    ) from error
_check_library(_llama_cpp_python, core.version_info())


def versions() -> dict[str, str]:
    """Returns the versions in this process: the entries of `_core.version_info()` plus `llama_cpp_python`."""
    return {"llama_cpp_python": _llama_cpp_python, **core.version_info()}
