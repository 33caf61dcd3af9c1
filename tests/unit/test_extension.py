# SPDX-License-Identifier: MIT
"""Tests the version guard: the extension refuses a llama.cpp for which it was not built, with a clear
error.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from eaglecpp import _extension as extension
from eaglecpp.errors import VersionError
from helpers.script import run_script

INFO = {"llama": "1", "ggml": "1", "ggml_commit": "0c1e570-dirty", "built_for": "0.3.36"}


def test_this_installation_fits_together() -> None:
    found = extension.versions()
    assert found["llama_cpp_python"] == found["built_for"] == extension._required_version()
    extension._check_library(found["built_for"], extension.core.version_info())


def test_another_package_version_is_refused() -> None:
    with pytest.raises(VersionError, match=r"expected .*0\.3\.36, found 0\.3\.35.*pip install"):
        extension._check_package("0.3.35", "0.3.36")
    extension._check_package("0.3.35", None)


def test_a_library_of_another_version_or_commit_is_refused() -> None:
    for commit in ("0c1e570", "0c1e570-dirty", "unknown"):
        extension._check_library("0.3.36", INFO | {"ggml_commit": commit})
    with pytest.raises(VersionError, match=r"built for llama-cpp-python 0\.3\.36, found 0\.3\.40"):
        extension._check_library("0.3.40", INFO)
    with pytest.raises(VersionError, match=r"commit deadbee, expected 0c1e570.*LLAMA_CPP_LIB_PATH"):
        extension._check_library("0.3.36", INFO | {"ggml_commit": "deadbee"})


def test_a_missing_llama_library_is_one_version_error(tmp_path: Path) -> None:
    done = run_script("import eaglecpp; eaglecpp.Engine", LLAMA_CPP_LIB_PATH=str(tmp_path))
    assert done.returncode == 1
    assert "eaglecpp.errors.VersionError: llama-cpp-python cannot be loaded" in done.stderr
    assert "LLAMA_CPP_LIB_PATH" in done.stderr.splitlines()[-1] and "pip install" in done.stderr


def test_sources_that_hide_the_installed_package_are_reported() -> None:
    """Tests the error if a checkout's sources hide the installed package. Python runs in the checkout without
    installed packages (-S), so it imports the checkout's `eaglecpp`.
    """
    command = [sys.executable, "-S", "-c", "import eaglecpp; eaglecpp.Engine"]
    done = subprocess.run(command, cwd=Path(__file__).parents[2], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert done.stderr.endswith("start Python in another directory\n")
