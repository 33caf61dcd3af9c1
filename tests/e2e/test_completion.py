# SPDX-License-Identifier: MIT
"""Tab completes commands, options and the names of stored models, in a real shell."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from helpers.terminal import ENTER, TAB, Terminal

if TYPE_CHECKING:
    from conftest import Models

CTRL_U = "\x15"


@pytest.mark.skipif(shutil.which("bash") is None, reason="bash is not installed")
def test_tab_completes_in_a_shell(models: Models, tmp_path: Path) -> None:
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    env = {"HOME": str(tmp_path), "EAGLECPP_HOME": str(tmp_path), "PATH": path, "HF_HUB_OFFLINE": "1"}
    (tmp_path / "Modelfile").write_text(f"FROM {models.target}\n", encoding="utf-8")
    create = [sys.executable, "-P", "-m", "eaglecpp", "create", "mine:little"]
    subprocess.run(create, cwd=tmp_path, env=os.environ | env, check=True, capture_output=True)
    with Terminal(["bash", "--norc", "-i"], tmp_path, **env) as terminal:
        line = 'eval "$(_EAGLECPP_COMPLETE=bash_source eaglecpp)"'
        terminal.type(f"{line}; echo rea''dy{ENTER}")
        terminal.wait("ready")
        for typed, completed in [
            ("eaglecpp doct", "eaglecpp doctor"),
            ("eaglecpp run mi", "eaglecpp run mine:little"),
            ("eaglecpp run --hideth", "eaglecpp run --hidethinking"),
        ]:
            terminal.type(typed + TAB)
            terminal.wait_until(
                lambda completed=completed: terminal.line.endswith(completed), completed, seconds=60
            )
            terminal.type(CTRL_U)
