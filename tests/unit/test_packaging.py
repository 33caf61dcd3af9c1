# SPDX-License-Identifier: MIT
"""The recipes of other package managers say what pyproject.toml says."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

import yaml
from packaging.requirements import Requirement

ROOT = Path(__file__).resolve().parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
PINNED = {
    Requirement(line).name.replace("_", "-"): Requirement(line).specifier for line in PROJECT["dependencies"]
}
# what llama-cpp-python itself needs, and the interpreter
BESIDE = {"python", "diskcache", "typing-extensions"}


def recipe() -> dict[str, Any]:
    text = (ROOT / "examples" / "packaging" / "recipe.yaml").read_text(encoding="utf-8")
    return dict(yaml.safe_load(text))


def test_the_conda_recipe_is_of_this_version_and_the_pinned_llama_cpp_python() -> None:
    assert recipe()["context"] == {
        "version": PROJECT["version"],
        "llama": str(PINNED["llama-cpp-python"]).removeprefix("=="),
    }


def test_the_conda_recipe_needs_what_the_package_needs() -> None:
    lines = [line.replace("_", "-").split(" ", 1) for line in recipe()["requirements"]["run"]]
    needed = {name: "".join(version) for name, *version in lines if name not in BESIDE}
    wanted = {name: str(versions) for name, versions in PINNED.items() if name != "llama-cpp-python"}
    assert needed == wanted


def test_only_systems_on_which_it_ran_are_claimed() -> None:
    systems = [line for line in PROJECT["classifiers"] if line.startswith("Operating System")]
    page = (ROOT / "docs" / "install.md").read_text(encoding="utf-8")
    assert "| macOS, Windows | every C++ source compiles; nothing was run." in page
    assert systems == ["Operating System :: POSIX :: Linux"]


def test_the_formula_is_of_this_version() -> None:
    formula = (ROOT / "examples" / "packaging" / "eaglecpp.rb").read_text(encoding="utf-8")
    assert re.findall(r"eaglecpp-([0-9.]+)\.tar\.gz", formula) == [PROJECT["version"]]


def test_the_container_copies_all_that_a_build_reads() -> None:
    text = (ROOT / "examples" / "serve" / "Containerfile").read_text(encoding="utf-8")
    copied = {name for line in re.findall(r"^COPY (?!--)(.*) /src", text, re.M) for name in line.split()}
    needed = {"pyproject.toml", "CMakeLists.txt", "native", "eaglecpp", "convert", PROJECT["readme"]}
    needed |= {name for name in PROJECT["license-files"] if not name.startswith("eaglecpp/")}
    assert copied == needed
    assert all((ROOT / name).exists() for name in copied)
