# SPDX-License-Identifier: MIT
"""Tests that `_core.pyi` has exactly the names and arguments of the compiled extension."""

from __future__ import annotations

import ast
import inspect
import re
from pathlib import Path
from typing import Any

import pytest

import eaglecpp
from eaglecpp import _extension

STUB = ast.parse((Path(eaglecpp.__file__).parent / "_core.pyi").read_text(encoding="utf-8"))
CLASSES = {node.name: node for node in STUB.body if isinstance(node, ast.ClassDef)}
FUNCTIONS = {node.name: node for node in STUB.body if isinstance(node, ast.FunctionDef)}

VALUES = {node.target.id for node in STUB.body if isinstance(node, ast.AnnAssign)}  # type: ignore[union-attr]


def public(thing: Any) -> set[str]:
    return {name for name in dir(thing) if not name.startswith("_")}


def members(node: ast.ClassDef) -> dict[str, ast.stmt]:
    found: dict[str, ast.stmt] = {}
    for item in node.body:
        if isinstance(item, ast.FunctionDef):
            found[item.name] = item
        elif isinstance(item, ast.AnnAssign) and isinstance(item.target, ast.Name):
            found[item.target.id] = item
    return found


def test_module_names() -> None:
    assert public(_extension.core) == set(CLASSES) | set(FUNCTIONS) | VALUES


@pytest.mark.parametrize("name", sorted(CLASSES))
def test_class_members(name: str) -> None:
    stub = {member for member in members(CLASSES[name]) if not member.startswith("__")}
    assert public(getattr(_extension.core, name)) == stub


def callables() -> list[tuple[str, Any, ast.FunctionDef]]:
    found = [(name, getattr(_extension.core, name), node) for name, node in FUNCTIONS.items()]
    for name, node in CLASSES.items():
        for member, item in members(node).items():
            is_property = isinstance(item, ast.FunctionDef) and item.decorator_list
            if isinstance(item, ast.FunctionDef) and not is_property and member != "__len__":
                found.append((f"{name}.{member}", getattr(getattr(_extension.core, name), member), item))
    return found


@pytest.mark.parametrize(
    ("label", "function", "node"), callables(), ids=lambda x: x if isinstance(x, str) else ""
)
def test_argument_names(label: str, function: Any, node: ast.FunctionDef) -> None:
    # nanobind writes the signature into the first line of the docstring. It calls unnamed arguments arg,
    # arg0, ...
    first = (inspect.getdoc(function) or "").splitlines()[0]
    native = re.findall(r"(\w+)(?=:)", re.sub(r"\[[^\]]*\]", "", first))
    stub = [argument.arg for argument in node.args.args if argument.arg != "self"]
    assert [n for n in native if n != "self"] == stub, label
