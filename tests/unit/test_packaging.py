# SPDX-License-Identifier: MIT
"""Pages and the container agree with pyproject.toml."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

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
