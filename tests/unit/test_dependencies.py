# SPDX-License-Identifier: MIT
"""Tests that every imported package is declared. Otherwise an import may only work because another package
happens to install it.
"""

from __future__ import annotations

import ast
import re
import sys
import tomllib
from pathlib import Path

from packaging.requirements import Requirement

ROOT = Path(__file__).parents[2]
# These packages are imported on demand. eaglecpp works without them.
OPTIONAL = {"torch", "matplotlib", "openai", "IPython"}
NAMES = {
    "llama_cpp": "llama-cpp-python",
    "huggingface_hub": "huggingface-hub",
    "prompt_toolkit": "prompt-toolkit",
}


def imported() -> dict[str, str]:
    """Returns the imported top-level modules, each with one file that imports the module."""
    found = {}
    for path in [*(ROOT / "eaglecpp").rglob("*.py"), *(ROOT / "convert").rglob("*.py")]:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import):
                found |= {alias.name.partition(".")[0]: str(path) for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and not node.level:
                found[str(node.module).partition(".")[0]] = str(path)
    return found


def dependencies() -> list[str]:
    return list(
        tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["dependencies"]
    )


def test_every_import_is_declared() -> None:
    declared = {re.split(r"[<>=~\[; ]", text)[0].lower() for text in dependencies()}
    ours = {*sys.stdlib_module_names, *OPTIONAL, "eaglecpp", "convert"}
    missing = {
        name: path
        for name, path in imported().items()
        if name not in ours and NAMES.get(name, name) not in declared
    }
    assert missing == {}


def test_libraries_with_used_private_parts_have_an_upper_bound() -> None:
    """Tests that a library has an upper bound if eaglecpp uses its private parts. The step `lowest` of
    tests/run.py tests the lower bounds.
    """
    bounds = {found.name: found.specifier for found in map(Requirement, dependencies())}
    for name in ("httpx", "httpcore", "h11", "uvicorn", "starlette", "jinja2"):
        assert any(bound.operator == "<" for bound in bounds[name]), name
