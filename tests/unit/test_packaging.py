# SPDX-License-Identifier: MIT
"""Tests that the documentation and the container agree with pyproject.toml, and that every imported package
is declared. Otherwise an import may only work because another package happens to install it.
"""

from __future__ import annotations

import ast
import re
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml
from packaging.requirements import Requirement

ROOT = Path(__file__).resolve().parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]


def test_only_tested_systems_are_claimed() -> None:
    systems = [line for line in PROJECT["classifiers"] if line.startswith("Operating System")]
    page = (ROOT / "docs" / "install.md").read_text(encoding="utf-8")
    assert "| macOS, Windows | every C++ source compiles; nothing was run." in page
    assert systems == ["Operating System :: POSIX :: Linux"]


def test_the_container_copies_all_that_a_build_reads() -> None:
    text = (ROOT / "examples" / "serve" / "Containerfile").read_text(encoding="utf-8")
    copied = {name for line in re.findall(r"^COPY (?!--)(.*) /src", text, re.M) for name in line.split()}
    needed = {"pyproject.toml", "CMakeLists.txt", "native", "eaglecpp", "convert", PROJECT["readme"]}
    needed |= {name for name in PROJECT["license-files"] if not name.startswith("eaglecpp/")}
    assert copied == needed
    assert all((ROOT / name).exists() for name in copied)


WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))


def jobs(path: Path) -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load(path.read_text(encoding="utf-8"))["jobs"]
    return found


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_workflows_run_programs_and_steps_that_exist(path: Path) -> None:
    known = (ROOT / "tests" / "run.py").read_text(encoding="utf-8").partition("STEPS:")[2]
    for job in jobs(path).values():
        needed = job.get("needs", [])
        assert set(needed) <= set(jobs(path)), needed
        for line in filter(None, (step.get("run") for step in job["steps"])):
            for program in re.findall(r"(?:\.venv/bin/python|python3?|^)\s*((?:tests/|\.ci/)\S+)", line):
                assert (ROOT / program).is_file(), line
            for name in line.partition("tests/run.py ")[2].split():
                assert f'"{name}": ' in known, line


# Dependencies


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
