# SPDX-License-Identifier: MIT
"""Tests a model's own head for further tokens (MTP) in a Modelfile, `--draft auto`, `drafters` and `bench`.
`tests/parity/test_model_drafters.py` tests that drafting with the head changes no text.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from eaglecpp import Engine
from eaglecpp.cli import group
from eaglecpp.errors import MismatchError
from eaglecpp.modelfile import Modelfile, Resolved
from eaglecpp.opening.fetch import fetch
from eaglecpp.opening.find import find_target
from eaglecpp.references import ModelName
from eaglecpp.store import Stores
from eaglecpp.store.describe import draft_text
from eaglecpp.store.facts import read_facts
from helpers.tiny import make_target
from helpers.tiny_arch import make_head_file, make_with_head

Create = Callable[..., Any]
QUICK = ("--seconds", "0", "-c", "256", "--temp", "0")


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_with_head(tmp_path_factory.mktemp("model"), "glm4moe")


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_target(tmp_path_factory.mktemp("plain")).gguf


def test_a_file_states_whether_it_has_a_head(target: Path, plain: Path, tmp_path: Path) -> None:
    assert read_facts([target]).has_head
    assert not read_facts([plain]).has_head
    assert not read_facts([make_head_file(tmp_path, "glm4moe")]).has_head, "heads alone are not a target"
    assert not read_facts([make_with_head(tmp_path, "glm4moe", without="nextn.eh_proj.weight")]).has_head


@pytest.mark.parametrize("line", ["DRAFT mtp", "#eaglecpp: draft mtp"])
def test_a_modelfile_names_it(create: Create, target: Path, line: str) -> None:
    text = f"FROM {target}\n{line}\n"
    plan = Resolved(Modelfile.from_text(text), ".")
    assert plan.draft is None and plan.draft_word == "mtp"
    assert draft_text(create(text, "own")) == "mtp"
    found = find_target("own")
    assert found.draft == found.target
    with Engine.open("own", n_ctx=128, n_threads=1) as engine:
        assert engine.draft_info is not None and engine.draft_info["kind"] == "head"
    assert "#eaglecpp: draft mtp" in Stores.open().get(ModelName.parse("own")).modelfile().to_text()


def test_a_model_without_a_head_is_refused(create: Create, plain: Path) -> None:
    with pytest.raises(MismatchError, match=r"DRAFT mtp: .*\(llama\) has no MTP head"):
        create(f"FROM {plain}\nDRAFT mtp\n")


def test_auto_uses_it_if_no_eagle_drafter_is_known(create: Create, target: Path) -> None:
    found = fetch(target, "auto")
    assert found.draft == target
    assert found.draft_origin.startswith("auto: its own head, because no drafter is known for ")


def test_drafters_reports_the_head(create: Create, target: Path, plain: Path) -> None:
    said = [CliRunner().invoke(group, ["drafters", str(model)]).stderr for model in (target, plain)]
    assert ["its own head (`--draft mtp`)" in text for text in said] == [True, False]
    assert all("use `--draft text`" in text for text in said)


def test_bench_compares_drafters_in_one_run(create: Create, target: Path) -> None:
    args = ["bench", str(target), "--draft", "mtp", "--draft", "text", *QUICK, "-n", "8"]
    done = CliRunner().invoke(group, [*args, "--draft", "auto", "--json"])
    ways = [one["strategy"] for one in json.loads(done.stdout)["results"]]
    assert ways == ["off", "auto, mtp", "auto, text", "auto, auto"]
    done = CliRunner().invoke(group, [*args, "--draft", "mtp"])
    assert done.exit_code == 2 and "named twice" in done.output
