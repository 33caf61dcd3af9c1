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

__all__ = ["circle", "import_graph", "imports"]


def import_graph(root: Path, package: str) -> dict[str, set[str]]:
    """The modules of a package below `root`, each with the modules of the same package that it imports."""
    files = {
        _module_name(root, path): path
        for path in sorted((root / package).rglob("*.py*"))
        if path.suffix in (".py", ".pyi")
    }
    graph = {}
    for name, path in files.items():
        package = name if path.name == "__init__.py" else name.rpartition(".")[0]
        # a submodule, or a name of the module
        found = {one if one in files else one.rpartition(".")[0] for one in imports(path, package)}
        graph[name] = found & files.keys() - {name}
    return graph


def circle(graph: Mapping[str, Iterable[str]]) -> list[str]:
    """Modules each of which imports the next, the first one again at the end; empty where none do."""
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        return list(error.args[1])
    return []


def _module_name(root: Path, path: Path) -> str:
    return ".".join(path.relative_to(root).with_suffix("").parts).removesuffix(".__init__")


def imports(path: Path, package: str = "") -> set[str]:
    """What a file imports: modules, and names as `module.name`. package: that of the file, for its relative
    imports, which are left out without it.
    """
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and (package or not node.level):
            up = package.split(".")[: len(package.split(".")) - node.level + 1] if node.level else []
            base = ".".join([*up, *filter(None, [node.module])])
            found |= {f"{base}.{alias.name}" for alias in node.names}
    return found
