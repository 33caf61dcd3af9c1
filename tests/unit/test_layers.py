# SPDX-License-Identifier: MIT
"""The layer rules of docs/architecture.md, read off the sources: who includes what in native/, and who may
print, touch the extension or know HTTP in Python. import-linter holds the Python import order
(pyproject.toml).
"""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from helpers.import_graph import circle, import_graph, imports

ROOT = Path(__file__).resolve().parents[2]
NATIVE = ROOT / "native"

# each folder may include these folders (and its own)
ALLOWED = {
    "base": set(),
    "algo": {"base"},
    "grammar": {"base"},
    "kernels": set(),
    "ggml_hook": {"base", "kernels"},
    "gguf": {"base"},
    "draft": {"base", "algo", "kernels", "ggml_hook", "gguf"},
    "target": {"base", "algo", "grammar", "kernels", "ggml_hook", "gguf"},
    "engine": {"base", "algo", "kernels", "ggml_hook", "gguf", "draft", "target"},
    "bindings": {"base", "algo", "grammar", "kernels", "ggml_hook", "gguf", "draft", "target", "engine"},
}
# headers of others, and the folders that may include them
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


def python_files(folder: str) -> list[Path]:
    return sorted((ROOT / folder).rglob("*.py"))


def nodes(path: Path) -> list[ast.AST]:
    return list(ast.walk(ast.parse(path.read_text(encoding="utf-8"))))


def prints(path: Path) -> bool:
    calls = [node.func for node in nodes(path) if isinstance(node, ast.Call)]
    return any(
        (isinstance(f, ast.Name) and f.id == "print")
        or (isinstance(f, ast.Attribute) and f.attr in {"echo", "secho"})
        for f in calls
    )


def test_only_the_command_line_prints() -> None:
    library = [p for p in [*python_files("eaglecpp"), *python_files("convert")] if "cli" not in p.parts]
    assert [p.name for p in library if p.name not in {"cli.py", "__main__.py"} and prints(p)] == []


@pytest.mark.parametrize("package", ["eaglecpp", "convert"])
def test_no_module_is_in_a_circle(package: str) -> None:
    """Imports inside functions and for type checkers count as well."""
    assert circle(import_graph(ROOT, package)) == []


def test_convert_is_a_leaf() -> None:
    for path in python_files("convert"):
        assert not {name for name in imports(path) if name.split(".")[0] in {"eaglecpp", "convert"}}, path


def test_one_file_loads_the_extension() -> None:
    users = [
        p.relative_to(ROOT).as_posix() for p in python_files("eaglecpp") if "eaglecpp._core" in imports(p)
    ]
    assert users == ["eaglecpp/_extension.py"]
