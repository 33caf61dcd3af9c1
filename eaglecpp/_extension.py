# SPDX-License-Identifier: MIT
"""The only way to the compiled extension: loads `eaglecpp._core` and refuses a llama.cpp it was not built
for.

`llama_cpp` is imported first, so that its copy of libllama (or the one `LLAMA_CPP_LIB_PATH` names) is the
only one in the process. The extension shares C structs with that library, whose layout changes between
versions; a wrong pair would not fail cleanly but read garbage, hence `VersionError` at import and nothing
more lenient.
"""

from __future__ import annotations

import re
from importlib import metadata

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


try:
    import llama_cpp
except (ImportError, OSError, RuntimeError) as error:
    raise VersionError(f"llama-cpp-python cannot be loaded: {error}") from error
_check_package(llama_cpp.__version__, _required_version())
try:
    from eaglecpp import _core as core
except ImportError as error:
    raise VersionError(
        f"eaglecpp's extension cannot be loaded: {error}. In a checkout, for this Python: pip install ."
    ) from error
_check_library(llama_cpp.__version__, core.version_info())


def versions() -> dict[str, str]:
    """Versions of the parts in this process: what `_core.version_info()` gives and `llama_cpp_python`."""
    return {"llama_cpp_python": str(llama_cpp.__version__), **core.version_info()}
