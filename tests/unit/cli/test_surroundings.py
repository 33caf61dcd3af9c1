# SPDX-License-Identifier: MIT
"""Tests commands in unusual environments: closed streams, missing home folders, full disks, Ctrl+C during the
start, damaged files.
"""

from __future__ import annotations

import io
import os
import signal
import struct
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from eaglecpp.cli import main
from helpers.http_server import DRAFT, TARGET
from helpers.models import Models
from helpers.tiny_split import write_split

COMMAND = [sys.executable, "-P", "-m", "eaglecpp"]
posix = pytest.mark.skipif(os.name != "posix", reason="file descriptors, homes and devices of POSIX")


@pytest.fixture(autouse=True)
def nothing_typed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO()))


def outcome(capsys: pytest.CaptureFixture[str], *args: str) -> tuple[int, str, str]:
    """Returns status, stdout and stderr of a command."""
    code = main(args)
    out, err = capsys.readouterr()
    return code, out, err


# Standard streams


@posix
@pytest.mark.parametrize(
    ("line", "code", "out", "err"),
    [
        ("list >&-", 0, "", ""),
        ("list 2>&-", 0, "NAME ", ""),
        ("show missing 2>&-", 1, "", ""),
        ("show missing <&- >&-", 1, "", "error: model 'missing:latest' not found"),
        ("run {target} -n 3 -t 1 <&-", 2, "", "error: no prompt"),
        ("run {target} hello -n 3 -t 1 <&- 2>&-", 0, "", ""),
    ],
)
def test_a_command_does_its_work_without_its_standard_streams(
    line: str, code: int, out: str, err: str, models: Models, tmp_path: Path
) -> None:
    command = ["sh", "-c", '"$@" ' + line.format(target=models.target), "sh", *COMMAND]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == code
    assert done.stdout.startswith(out) and done.stderr.startswith(err)


@posix
def test_a_server_needs_no_standard_streams(home: Path, tmp_path: Path) -> None:
    line = ["sh", "-c", 'exec "$@" serve --port 0 <&- >&- 2>&-', "sh", *COMMAND]
    with subprocess.Popen(line, cwd=tmp_path) as process:
        while not (home / "server.json").exists():
            assert process.poll() is None
            time.sleep(0.05)
        process.send_signal(signal.SIGINT)
    assert process.returncode == 0


# Ctrl+C

INTERRUPTED = """
import os, runpy, signal, sys
class Finder:
    def find_spec(self, name, path, target=None):
        if name == "click":
            {}
sys.meta_path.insert(0, Finder())
sys.argv[1:] = ["list"]
runpy.run_module("eaglecpp", run_name="__main__")
"""


ENDED = """
import os, signal, sys, eaglecpp.__main__, eaglecpp.cli
class Late:
    def __del__(self, kill=os.kill, own=os.getpid(), number=signal.SIGINT):
        kill(own, number)  # when Python has put back the system's handler
late = Late()
eaglecpp.cli.main = lambda: 0
sys.exit(eaglecpp.__main__.main())
"""
KILL = "os.kill(os.getpid(), signal.SIGINT)"


@posix
@pytest.mark.parametrize(
    ("program", "code"),
    [
        (INTERRUPTED.format(KILL), 130),
        (INTERRUPTED.format(f"exec({KILL!r})"), 130),  # dataclasses and named tuples also call exec
        (ENDED, 0),
    ],
)
def test_ctrl_c_before_and_after_a_command_is_silent(program: str, code: int, tmp_path: Path) -> None:
    (tmp_path / "probe.py").write_text(program)
    done = subprocess.run(
        [sys.executable, "-P", "-m", "probe"], env={**os.environ, "PYTHONPATH": str(tmp_path)},
        cwd=tmp_path, capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stdout, done.stderr) == (code, "", "")


# Folders of the user


@posix
@pytest.mark.parametrize("variable", ["EAGLECPP_HOME", "EAGLECPP_MODELS", "OLLAMA_MODELS", "LLAMA_CACHE"])
def test_an_unknown_home_is_named(
    variable: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    if variable == "EAGLECPP_HOME":
        monkeypatch.delenv("EAGLECPP_MODELS")
    monkeypatch.setenv(variable, "~nobody-has-this/x")
    args = ["pull", "hf.co/o/n"] if variable == "LLAMA_CACHE" else ["list"]
    code, _, err = outcome(capsys, *args)
    assert (code, err) == (
        1,
        f"error: {variable}=~nobody-has-this/x: there is no user 'nobody-has-this' on this machine; give the "
        "path of a folder\n",
    )


# Models that are split into several files


def test_any_part_of_a_split_file_names_the_whole(
    models: Models, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    parts = write_split(models.target, tmp_path / "model", 3)
    options = ("-p", "hello", "-n", "5", "-t", "1", "--temp", "0")
    code, out, _ = outcome(capsys, "generate", str(parts[0]), *options)
    assert code == 0
    assert outcome(capsys, "generate", str(parts[1]), *options)[:2] == (0, out)
    parts[0].unlink()
    code, _, err = outcome(capsys, "generate", str(parts[1]), *options)
    assert code == 1 and f"first part, {parts[0].name}, is missing" in err


# Full disks


def test_a_full_disk_is_reported_with_its_folder_and_a_remedy(
    models: Models,
    tmp_path: Path,
    home: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    (tmp_path / "Modelfile").write_text(f"FROM {models.target}\n", encoding="utf-8")
    assert outcome(capsys, "create", "one", "-f", str(tmp_path / "Modelfile"))[0] == 0

    def full(self: Path, data: bytes) -> int:
        with open("/dev/full", "wb", buffering=0) as device:  # noqa: PTH123 - the error has no name, as of any write
            return device.write(data)

    monkeypatch.setattr(Path, "write_bytes", full)
    for args in (("cp", "one", "two"), ("create", "two", "-f", str(tmp_path / "Modelfile"))):
        code, _, err = outcome(capsys, *args)
        assert code == 1
        assert err == (
            f"error: {home / 'models'}: No space left on device; free some space (eaglecpp rm), or set "
            "EAGLECPP_MODELS to another disk\n"
        )
    monkeypatch.undo()


# Damaged files

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
    ended = subprocess.run([*COMMAND, *args], capture_output=True, text=True, timeout=120, check=False)
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
