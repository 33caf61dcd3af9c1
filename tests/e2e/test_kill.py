# SPDX-License-Identifier: MIT
"""Runs commands that use one store at the same time.

tests/unit/store/test_every_kill.py kills create, pull, rm and convert before every file operation.
"""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from helpers.command import COMMAND
from helpers.hub_server import HubServer
from helpers.models import Models
from helpers.store_check import orphans, store_problems

NAME = "hf.co/user/tiny-GGUF:Q4_K_M"


def started(folder: Path, *words: str) -> subprocess.Popen[str]:
    return subprocess.Popen([COMMAND, *words], cwd=folder, stderr=subprocess.PIPE, text=True, env=os.environ)


def test_processes_share_one_store(hub: HubServer, models: Models, home: Path, tmp_path: Path) -> None:
    (tmp_path / "Modelfile").write_text(f"FROM {models.target}\nDRAFT {models.draft}\n", encoding="utf-8")
    first = started(tmp_path, "create", "last")
    assert (first.communicate()[1], first.returncode)[1] == 0
    # The hub's content differs from the stored file. Equal content would need no download.
    served = models.target.read_bytes() + b"from the hub"
    hub.add("user/tiny-GGUF", {"tiny-Q4_K_M.gguf": served, "system": b"s"})
    hub.faults.bytes_per_s = 4_000_000
    commands = [("pull", NAME), ("pull", NAME), ("create", "a"), ("rm", "last")]
    children = [started(tmp_path, *words) for words in commands]
    ended = [(child.communicate()[1], child.returncode) for child in children]
    assert [code for _, code in ended] == [0, 0, 0, 0], ended
    assert len(hub.content_requests()) == 1, "concurrent pulls must share one download"
    assert store_problems(home / "models") == []
    assert orphans(home / "models") == []
