# SPDX-License-Identifier: MIT
"""Who imports whom in a Python tree, and which modules import each other in a circle.

Every import counts: at the top of a file, inside a function, and for type checkers only. A circle that is
hidden in a function is still two files that cannot be read, moved or tested one without the other.

    python tests/helpers/import_graph.py [ROOT]      # files, lines and circles of each package
"""

from __future__ import annotations

import ast
import sys
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path

__all__ = ["circles", "import_graph", "package_table"]


def import_graph(root: Path, package: str) -> dict[str, set[str]]:
    """The modules of a package below `root`, each with the modules of the same package that it imports."""
    files = {
        _module_name(root, path): path
        for path in sorted((root / package).rglob("*.py*"))
        if path.suffix in (".py", ".pyi")
    }
    return {name: _imports(name, path, files) - {name} for name, path in files.items()}


def circles(graph: Mapping[str, Iterable[str]]) -> list[list[str]]:
    """Groups of modules each of which reaches all others of its group, largest first (Tarjan)."""
    order: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    found: list[list[str]] = []

    def visit(name: str) -> None:
        order[name] = low[name] = len(order)
        stack.append(name)
        for other in graph[name]:
            if other not in order:
                visit(other)
                low[name] = min(low[name], low[other])
            elif other in stack:
                low[name] = min(low[name], order[other])
        if low[name] == order[name]:
            at = stack.index(name)
            group = sorted(stack[at:])
            del stack[at:]
            if len(group) > 1:
                found.append(group)

    for name in graph:
        if name not in order:
            visit(name)
    return sorted(found, key=len, reverse=True)


def package_table(root: Path, package: str) -> list[tuple[str, int, int, int, int]]:
    """(folder, files, lines, lines of its longest file, modules that are in a circle), by folder."""
    in_circle = {name for group in circles(import_graph(root, package)) for name in group}
    rows: dict[str, list[int]] = {}
    caught: Counter[str] = Counter()
    for path in sorted((root / package).rglob("*.py")):
        folder = path.parent.relative_to(root).as_posix()
        rows.setdefault(folder, []).append(len(path.read_bytes().splitlines()))
        caught[folder] += _module_name(root, path) in in_circle
    return [(folder, len(n), sum(n), max(n), caught[folder]) for folder, n in sorted(rows.items())]


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


def main() -> None:
    root = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).resolve().parents[2]
    print("| package | files | lines | longest | in a circle |\n| --- | --- | --- | --- | --- |")
    for package in ("eaglecpp", "convert"):
        for row in package_table(root, package):
            print(f"| {' | '.join(map(str, row))} |")
        for group in circles(import_graph(root, package)):
            print(f"<!-- circle of {len(group)}: {', '.join(group)} -->")


if __name__ == "__main__":
    main()
