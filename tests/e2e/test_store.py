# SPDX-License-Identifier: MIT
"""Tests models with names as the user sees them: runs create, list, show, run, pull and rm as processes, also
at the same time.

tests/unit/store/test_transaction.py kills create, pull, rm and convert before every file operation.
"""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

from helpers.command import COMMAND, Cli
from helpers.hub_server import HubServer
from helpers.models import Models
from helpers.store_check import orphans, store_problems

CHAIN = ("--strategy", "chain:3")  # a fixed strategy, because the drafts of `auto` depend on the clock
SHORT = ("-n", "12", "--temp", "0", "--ctx-size", "512", "-t", "1")


def test_a_stored_pair_runs_by_name_with_its_drafter(cli: Cli, models: Models, tmp_path: Path) -> None:
    (tmp_path / "Modelfile").write_text(
        f"FROM {models.target}\nDRAFT {models.draft}\nPARAMETER num_predict 12\nPARAMETER temperature 0\n"
        "PARAMETER num_ctx 512\nPARAMETER num_thread 1\nLICENSE é漢\n"
    )
    assert cli("create", "tiny").returncode == 0
    ascii_only = {**os.environ, "LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    assert cli("show", "tiny", "--license", env=ascii_only).stdout == "é漢\n", "expected UTF-8 in a pipe"
    assert cli("create", "small", "-q", "q8_0", "--no-draft").stderr == "", "expected no log of llama.cpp"
    ran = cli("run", "tiny", "hello", "--verbose", *CHAIN)
    assert ran.returncode == 0
    assert ran.stdout == cli("run", models.target, "hello", *SHORT).stdout
    assert "acceptance length" in ran.stderr
    assert "drafting off" in cli("run", "tiny", "hello", "--no-draft").stderr
    raw = cli("generate", "TINY:latest", "-p", "ab", "--json", *CHAIN)
    plain = cli("generate", models.target, "-p", "ab", "--json", *SHORT)
    assert json.loads(raw.stdout)["tokens"] == json.loads(plain.stdout)["tokens"]
    assert json.loads(raw.stdout)["timings"]["draft_n"] > 0
    by_name = cli("generate", models.target, "--draft", "tiny", "-p", "ab", "--json", *CHAIN, *SHORT)
    assert json.loads(by_name.stdout)["timings"]["draft_n"] > 0
    assert cli("rm", "tiny").stdout == "deleted 'tiny'\n"
    assert cli("run", "tiny", "hello").returncode == 1


def test_run_downloads_a_missing_model_once(
    cli: Cli, models: Models, hub: HubServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub.add("me/tiny-GGUF", {"tiny-Q8_0.gguf": models.target.read_bytes()}, token="hf_token")
    refused = cli("run", "hf.co/me/tiny-GGUF", "hello", *SHORT)
    assert refused.returncode == 1
    assert "me/tiny-GGUF" in refused.stderr and "HF_TOKEN" in refused.stderr
    assert refused.stderr.count("\n") == 1
    monkeypatch.setenv("HF_TOKEN", "hf_token")
    ran = cli("run", "-hf", "me/tiny-GGUF", "hello", *SHORT)
    assert ran.stdout == cli("run", models.target, "hello", *SHORT).stdout
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    assert cli("run", "hf.co/me/tiny-GGUF", "hello", *SHORT).stdout == ran.stdout
    assert cli("pull", "hf.co/me/absent").returncode == 1


# Several commands at once

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
