# SPDX-License-Identifier: MIT
"""Who imports whom in a Python tree, and which modules import each other in a circle.

Every import counts: at the top of a file, inside a function, and for type checkers only. A circle that is
hidden in a function is still two files that cannot be read, moved or tested one without the other.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Mapping
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

__all__ = ["circle", "import_graph"]


def import_graph(root: Path, package: str) -> dict[str, set[str]]:
    """The modules of a package below `root`, each with the modules of the same package that it imports."""
    files = {
        _module_name(root, path): path
        for path in sorted((root / package).rglob("*.py*"))
        if path.suffix in (".py", ".pyi")
    }
    return {name: _imports(name, path, files) - {name} for name, path in files.items()}


def circle(graph: Mapping[str, Iterable[str]]) -> list[str]:
    """Modules each of which imports the next, the first one again at the end; empty where none do."""
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        return list(error.args[1])
    return []


def _module_name(root: Path, path: Path) -> str:
    return ".".join(path.relative_to(root).with_suffix("").parts).removesuffix(".__init__")


def _imports(name: str, path: Path, files: Mapping[str, Path]) -> set[str]:
    package = name if path.name == "__init__.py" else name.rpartition(".")[0]
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                up = package.split(".")[: len(package.split(".")) - node.level + 1]
                base = ".".join([*up, *filter(None, [node.module])])
            for alias in node.names:  # a submodule, or a name of the module
                whole = f"{base}.{alias.name}"
                found.add(whole if whole in files else base)
    return found & files.keys()
