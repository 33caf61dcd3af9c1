# SPDX-License-Identifier: MIT
"""Tests the store's commands: Ollama's columns and words, exit codes, stdout and stderr."""

from __future__ import annotations

import io
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from eaglecpp.cli import main
from helpers.hub_server import HubServer
from helpers.stores import OllamaModel, Tiny, files_of

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Returns a function `run("list")` that runs a command in an empty directory, and returns exit code,
    stdout and stderr.
    """
    monkeypatch.chdir(tmp_path)

    def call(*args: Any) -> tuple[int, str, str]:
        code = main([str(arg) for arg in args])
        out, err = capsys.readouterr()
        return code, out, err

    return call


@pytest.fixture
def modelfile(tiny: Tiny, tmp_path: Path) -> Path:
    path = tmp_path / "Modelfile"
    path.write_text(
        f'FROM {tiny.target}\nDRAFT {tiny.draft}\nSYSTEM """You are\ntiny.\nVery."""\n'
        'PARAMETER stop "<x> y"\n'
        "PARAMETER top_k 5\nPARAMETER temperature 1\nPARAMETER min_p .5\nLICENSE MIT\n"
        "TEMPLATE [{{ .Prompt }}]\n"
    )
    return path


def test_the_life_of_a_model(run: Run, modelfile: Path, root: Path) -> None:
    assert run("create", "tiny") == (0, "created 'tiny'\n", "")
    for args in (("show", "gpt-4o"), ("generate", "gpt-4o", "-p", "x")):
        assert "; stored here: tiny" in run(*args)[2]
    code, out, err = run("list")
    head, row = out.splitlines()
    assert head.split() == ["NAME", "ID", "SIZE", "MODIFIED", "DRAFT"]
    assert row.split()[:4] == ["tiny:latest", row.split()[1], "1.8", "MB"]
    assert row.split()[-1] == "eagle3"
    assert (code, err) == (0, "")
    assert "    size                1.8 MB\n" in run("show", "tiny")[1], "the drafter must not be counted"
    assert "size              1.8 MB\n" in run("inspect", "tiny")[1]
    assert run("cp", "tiny", "me/other:v1") == (0, "copied 'tiny' to 'me/other:v1'\n", "")
    assert run("list", "me/")[1].count("\n") == 2
    assert run("rm", "tiny", "me/other:v1") == (0, "deleted 'tiny'\ndeleted 'me/other:v1'\n", "")
    assert run("list")[1] == "NAME    ID    SIZE    MODIFIED    DRAFT\n"
    assert list((root / "blobs").iterdir()) == []


def test_show_parts(run: Run, modelfile: Path, tiny: Tiny) -> None:
    run("create", "tiny")
    assert run("show", "tiny", "--system")[1] == "You are\ntiny.\nVery.\n"
    _, out, err = run("show", "tiny", "--template")
    assert (out, "it replaces the template in the GGUF" in err) == ("[{{ .Prompt }}]\n", True)
    assert run("show", "tiny", "--license")[1] == "MIT\n"
    assert run("show", "tiny", "--parameters")[1] == (
        f'{"min_p":<30} 0.5\n{"stop":<30} "<x> y"\n{"temperature":<30} 1\n{"top_k":<30} 5\n'
    )
    text = run("show", "tiny", "--modelfile")[1]
    assert "# To build a new Modelfile based on this, replace FROM with:\n# FROM tiny:latest\n" in text
    assert "\n#eaglecpp: draft /" in text and "\nDRAFT " not in text, "Ollama expects an MTP drafter in DRAFT"
    Path("again").write_text(text)
    assert run("create", "again", "-f", "again")[0] == 0
    assert len({m["digest"] for m in json.loads(run("list", "--json")[1])["models"]}) == 1


def test_show_overview(run: Run, modelfile: Path) -> None:
    run("create", "tiny")
    code, out, err = run("show", "tiny")
    assert (code, err) == (0, "")
    blocks = {block.split("\n")[0].strip(): block for block in out.strip("\n").split("\n\n")}
    assert [*blocks][:3] == ["Model", "Capabilities", "Draft"]
    assert "Modelfile's TEMPLATE: it replaces the template in the GGUF" in blocks["Template"]
    assert "    architecture        llama\n" in blocks["Model"]
    assert "    layers read     R_2, R_4, R_5\n" in blocks["Draft"]
    assert "    You are\n    tiny.\n    ..." in blocks["System"]
    value = json.loads(run("show", "tiny", "--json")[1])
    assert value["model_info"]["general.architecture"] == "llama"
    assert value["draft_info"]["general.architecture"] == "eagle3"
    assert Path(value["files"]["draft"]).is_file()


def test_create_reads_standard_input_and_reports_errors_by_line(
    run: Run, tiny: Tiny, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(f"FROM {tiny.target}\n".encode())))
    code, out, _ = run("create", "a", "-f", "-", "--json")
    assert (code, json.loads(out)["name"], json.loads(out)["draft"]) == (0, "a:latest", None)
    (tmp_path / "bad").write_text(f"FROM {tiny.target}\nPARAMETER top_k many\n")
    assert run("create", "b", "-f", "bad") == (1, "", "error: bad:2: invalid int value [many]\n")
    (tmp_path / "old").write_text(f"FROM {tiny.target}\nPARAMETER mirostat 1\n")
    code, out, err = run("create", "b", "-f", "old")
    assert (code, out) == (0, "created 'b'\n")
    assert "old:2: parameter mirostat is deprecated and ignored" in err
    assert run("create", "b", "-f", "absent")[0] == 1
    for template, said in {
        "a\n{{ .Prompt } }": "TEMPLATE, line 2: unexpected '}' inside an action",
        "{% for m in messages %}\n{{ m.x | no }}{% endfor %}": "TEMPLATE, line 2: No filter named 'no'.",
        "{{ .Promt }}": "TEMPLATE: there is no .Promt; did you mean .Prompt? (the TEMPLATE does not print "
        "the user's messages)",
        "{% for m in mesages %}{{ m.x }}{% endfor %}": "the TEMPLATE does not print the user's messages",
    }.items():
        (tmp_path / "bad").write_text(f'FROM {tiny.target}\nTEMPLATE """{template}"""\n')
        assert run("create", "b", "-f", "bad") == (1, "", f"error: bad:2: {said}\n")
    (tmp_path / "odd").write_text(f'FROM {tiny.target}\nTEMPLATE """{{{{ .Sytem }}}} {{{{ .Prompt }}}}"""\n')
    code, _, err = run("create", "b", "-f", "odd")
    assert (code, err) == (0, "note: odd:2: TEMPLATE: there is no .Sytem; did you mean .System?\n")


@pytest.mark.parametrize(
    ("args", "code", "text"),
    [
        (["show", "nothing"], 1, "model 'nothing:latest' not found (`eaglecpp list` shows all)"),
        (["rm", "nothing"], 1, "not found"),
        (["rm", "a b"], 2, "is not a model name"),
        (["pull", "m", "--draft", "x", "--no-draft"], 2, "contradict"),
        (["pull", "Qwen/Qwen3-8B"], 1, "; for a repository on the Hub write hf.co/Qwen/Qwen3-8B"),
        (["pull", "m:cloud"], 2, "Ollama's cloud"),
        (["pull", "~/m.gguf", "--draft", "auto"], 2, "found a path: '~/m.gguf'. To run a file"),
    ],
)
def test_refusals_are_one_line_and_a_code(args: list[str], code: int, text: str, run: Run) -> None:
    found, out, err = run(*args)
    assert (found, out, err.count("\n")) == (code, "", 1)
    assert text in err


def test_rm_removes_cached_prompts_and_no_other_file(run: Run, tmp_path: Path) -> None:
    for name in ("mine.eagle-slot", f"{'0' * 16}-{'f' * 16}.eagle-prompt", "novel.eagle-prompt", "a.gguf"):
        (tmp_path / name).write_bytes(bytes(1000))
    assert run("rm", "--prompt-cache", str(tmp_path)) == (0, "deleted 2 prompts, 2.0 KB\n", "")
    left = {path.name for path in tmp_path.iterdir() if path.is_file()}
    assert left == {"a.gguf", "novel.eagle-prompt"}
    assert run("rm", "--prompt-cache", str(tmp_path / "nowhere"))[0] == 2


def test_rm_removes_all_or_none(run: Run, modelfile: Path, tiny: Tiny, ollama: OllamaModel) -> None:
    ollama("library/theirs/latest", {"model": tiny.target.read_bytes()})
    run("create", "tiny")
    code, out, err = run("rm", "tiny", "theirs")
    assert (code, out) == (1, "")
    assert "in Ollama's store" in err and "ollama rm theirs" in err
    assert run("list", "tiny")[1].count("\n") == 2
    code, out, err = run("list")
    assert "1 of these models are in Ollama's store" in err
    assert [line.split()[0] for line in out.splitlines()[1:]] == ["tiny:latest", "theirs:latest"]
    assert "Ollama's, " in run("show", "theirs")[1]


def test_pull_includes_the_drafter(run: Run, hub: HubServer, tiny: Tiny) -> None:
    hub.add("user/tiny-GGUF", {"t-Q4_K_M.gguf": tiny.target.read_bytes()})
    hub.add("maker/eagle3", files_of(tiny))
    code, out, err = run("pull", "-hf", "user/tiny-GGUF", "--draft", "hf.co/maker/eagle3:f16", "--json")
    assert (code, json.loads(out)["draft"], err) == (0, "eagle3", "")
    drafter = "hf.co/maker/eagle3:F16"
    assert "eagle3 (drafter only)" in run("list", drafter)[1]
    assert "Draft\n    architecture    eagle3" in run("show", drafter)[1].replace("  Draft", "Draft")
    for option in ("--json", "--modelfile", "--template", "--license"):
        assert run("show", drafter, option)[0] == 0, option
    assert run("pull", "hf.co/no/where")[0] == 1
