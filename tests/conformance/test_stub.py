# SPDX-License-Identifier: MIT
"""Tests that names in Python and in C++ are the same: `_core.pyi` has exactly the names and arguments of the
compiled extension, and the converter writes the keys and tensors that the native reader reads.
"""

from __future__ import annotations

import ast
import inspect
import re
from pathlib import Path
from typing import Any

import pytest

import eaglecpp
from eaglecpp import _extension
from eaglecpp.convert import keys

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


# Keys and tensors

# The converter does not declare the names of these keys, because it copies the keys from the target.
DRAFT = Path(__file__).parents[2] / "native" / "draft"
FROM_THE_TARGET = {"tokenizer.ggml.token_type"}


def native_names() -> set[str]:
    """Returns the names of keys in the native reader, and the names of tensors in the native graphs."""
    text = "".join((DRAFT / name).read_text(encoding="utf-8") for name in ("draft_file.cpp", "graph.cpp"))
    layers = re.findall(r'linear\([^;{]*?"([a-z_{}.]+)"', text)
    return {f"{layer}.{part}" for layer in layers for part in ("weight", "bias")} | set(
        re.findall(r'"([a-z0-9_{}]+(?:\.[a-z0-9_{}]+)+|d2t)"', text)
    ) - set(layers)


def test_the_reader_knows_every_key_of_the_drafter() -> None:
    written = {key.name for key in keys.KEYS if key.name.startswith("{arch}.")}
    assert written == {name for name in native_names() if name.startswith("{arch}.")}


def test_the_reader_knows_every_tensor() -> None:
    written = {tensor.name.replace("{a}", "{i}") for tensor in keys.TENSORS}
    endings = (".weight", ".bias", "_conv_base")
    tensors = {name for name in native_names() if name.endswith(endings) or name == "d2t"}
    assert written == tensors


def test_the_reader_uses_only_keys_that_the_converter_writes() -> None:
    written = {key.name for key in keys.KEYS} | {t.name.replace("{a}", "{i}") for t in keys.TENSORS}
    assert native_names() - written == FROM_THE_TARGET
