# SPDX-License-Identifier: MIT
"""Tests the layer rules of docs/architecture.md for native/ by the includes of its files. pyproject.toml has
the layer rules for Python: import-linter checks the order of imports and cycles, and ruff checks which files
print and which file loads the extension.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
NATIVE = ROOT / "native"

# Folders whose headers each folder may include, in addition to its own headers.
ALLOWED = {
    "base": set(),
    "algo": {"base"},
    "grammar": {"base", "algo"},
    "kernels": set(),
    "ggml_hook": {"base", "kernels"},
    "gguf": {"base"},
    "draft": {"base", "algo", "kernels", "ggml_hook", "gguf"},
    "target": {"base", "algo", "grammar", "kernels", "ggml_hook", "gguf"},
    "engine": {"base", "algo", "kernels", "ggml_hook", "gguf", "draft", "target"},
    "bindings": {"base", "algo", "grammar", "kernels", "ggml_hook", "gguf", "draft", "target", "engine"},
}
# Folders that may include the headers of each library.
FOREIGN = {
    "nanobind": {"bindings"},
    "Python.h": set(),
    "llama": {"target", "engine", "bindings"},
    "ggml": {"kernels", "ggml_hook", "gguf", "draft", "target", "engine", "bindings"},
    "gguf.h": {"gguf"},
}


def includes(path: Path) -> list[str]:
    return re.findall(r'^\s*#\s*include\s*[<"]([^>"]+)[>"]', path.read_text(encoding="utf-8"), re.MULTILINE)


def sources() -> list[Path]:
    return sorted(p for p in NATIVE.rglob("*") if p.suffix in {".h", ".cpp", ".inc"})


def folder_of(path: Path) -> str:
    return path.relative_to(NATIVE).parts[0]


def test_every_native_folder_has_a_rule() -> None:
    assert {folder_of(p) for p in sources()} == set(ALLOWED)


@pytest.mark.parametrize("path", sources(), ids=lambda p: p.relative_to(NATIVE).as_posix())
def test_native_includes(path: Path) -> None:
    folder = folder_of(path)
    for header in includes(path):
        first = header.split("/")[0]
        if first in ALLOWED:
            assert first == folder or first in ALLOWED[folder], f"{folder} must not include {header}"
        for foreign, allowed in FOREIGN.items():
            is_it = first == foreign or (foreign in {"llama", "ggml"} and re.match(rf"{foreign}[-.]", first))
            assert not is_it or folder in allowed, f"{folder} must not include {header}"
