# SPDX-License-Identifier: MIT
"""The only way to the compiled extension: loads `eaglecpp._core` and refuses a llama.cpp it was not built
for.

The copy of libllama in the package `llama_cpp`, or the one that `LLAMA_CPP_LIB_PATH` names, is loaded first,
so that it is the only one in the process: by the package's own loader, but without its Python classes, which
take a third of a second to import. The extension shares C structs with that library, whose layout changes
between versions; a wrong pair would not fail cleanly but read garbage, hence `VersionError` at import and
nothing more lenient.
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

# What ggml_commit() of the pinned llama-cpp-python begins with (an sdist build appends "-dirty"; a build
# without git says "unknown"). Guards against LLAMA_CPP_LIB_PATH pointing at another llama.cpp under the right
# version.
_LLAMA_COMMIT = "0c1e570"


def _required_version() -> str | None:
    """The version pinned in this distribution's metadata; None when it runs from sources without metadata."""
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
        raise VersionError(
            f"llama-cpp-python {found} is installed, eaglecpp needs {required}. {_REMEDY.format(required)}"
        )


def _check_library(found: str, info: dict[str, str]) -> None:
    built_for, commit = info["built_for"], info["ggml_commit"]
    if built_for != found:
        raise VersionError(
            f"eaglecpp's extension was built for llama-cpp-python {built_for}, found {found}. "
            f"{_REMEDY.format(built_for)}, or build eaglecpp again against {found}"
        )
    if not commit.startswith(_LLAMA_COMMIT) and commit != "unknown":
        raise VersionError(
            f"the llama.cpp library in this process is of commit {commit}, expected {_LLAMA_COMMIT} (of "
            f"llama-cpp-python {built_for}). If LLAMA_CPP_LIB_PATH is set, unset it or point it at a build "
            f"of that commit; otherwise: {_REMEDY.format(built_for)}"
        )


def _load_llama() -> str:
    """Loads libllama as `import llama_cpp` does; returns llama-cpp-python's version."""
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
        f"eaglecpp's extension cannot be loaded: {error}. In a checkout, for this Python: pip install ."
    ) from error
_check_library(_llama_cpp_python, core.version_info())


def versions() -> dict[str, str]:
    """Versions of the parts in this process: what `_core.version_info()` gives and `llama_cpp_python`."""
    return {"llama_cpp_python": _llama_cpp_python, **core.version_info()}
