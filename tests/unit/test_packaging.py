# SPDX-License-Identifier: MIT
"""Tests that the documentation and the container agree with pyproject.toml."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

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
