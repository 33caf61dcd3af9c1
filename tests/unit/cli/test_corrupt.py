# SPDX-License-Identifier: MIT
"""Tests commands with a damaged GGUF. Every command must print one line that names the file, and exit with
code 1.
"""

from __future__ import annotations

import io
import struct
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from eaglecpp.cli import main
from helpers.http_server import DRAFT, TARGET

DAMAGES: dict[str, Callable[[bytes], bytes]] = {
    "empty": lambda data: b"",
    "another format": lambda data: b"GGUX" + data[4:],
    "cut in its head": lambda data: data[:3000],
    "cut in its weights": lambda data: data[: len(data) // 2],
    "endless": lambda data: data[:8] + struct.pack("<QQ", 2**60, 2**60) + data[24:],
}


COMMANDS = ("run", "generate", "inspect", "create", "generate --draft")


def refused_alone(args: list[str]) -> tuple[int, str]:
    """Runs the command in a separate process, because a server changes the allocator and the logging."""
    command = [sys.executable, "-P", "-m", "eaglecpp", *args]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    return ended.returncode, ended.stderr


def damaged(folder: Path, damage: str, path: Path) -> str:
    broken = folder / "broken.gguf"
    broken.write_bytes(DAMAGES[damage](path.read_bytes()))
    return str(broken)


def check(code: int, reply: str, broken: str) -> None:
    lines = [line for line in reply.splitlines() if " INFO " not in line and not line.endswith(" ...")]
    assert code == 1
    assert len(lines) == 1 and lines[0].startswith("error: ") and broken in lines[0], reply
    assert "internal error" not in lines[0]


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("command", COMMANDS)
def test_a_damaged_file_is_one_line(
    command: str,
    damage: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO()))
    name, _, with_draft = command.partition(" ")
    broken = damaged(tmp_path, damage, DRAFT if with_draft else TARGET)
    modelfile = tmp_path / "Modelfile"
    modelfile.write_text(f"FROM {broken}\n")
    rest = {"run": ["hi"], "generate": ["-p", "hi"]}.get(name, [])
    files = [str(TARGET), "--draft", broken] if with_draft else [broken]
    args = [name, "made", "-f", str(modelfile)] if name == "create" else [name, *files, *rest]
    check(main(args), capsys.readouterr().err, broken)


@pytest.mark.parametrize(("damage", "is_draft"), [("cut in its head", False), ("cut in its weights", True)])
def test_a_server_is_not_started_on_a_damaged_file(damage: str, is_draft: bool, tmp_path: Path) -> None:
    broken = damaged(tmp_path, damage, DRAFT if is_draft else TARGET)
    files = [str(TARGET), "--draft", broken] if is_draft else [broken]
    check(*refused_alone(["serve", *files, "--port", "0"]), broken)
