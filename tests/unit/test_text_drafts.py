# SPDX-License-Identifier: MIT
"""Drafts from the text itself, from Python and the command line: who asks for them, what is said about them,
and what is refused. That they change no token is shown in `tests/parity/test_text.py`.
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import eaglecpp
from eaglecpp import Engine
from eaglecpp.cli import main
from eaglecpp.cli.chat.model import RunModel, find_source
from eaglecpp.cli.doctor import _model_lines
from eaglecpp.cli.terminal import not_drafted, stats_line
from eaglecpp.errors import ModelNotFoundError
from eaglecpp.modelfile import Modelfile, resolve
from eaglecpp.opening.find import find_target
from eaglecpp.references.names import ModelName
from eaglecpp.results import Timings
from eaglecpp.store import Stores
from eaglecpp.store.create import create_model
from eaglecpp.store.describe import draft_text
from eaglecpp.store.remote.find_draft import find_draft
from helpers.opening import options_of

if TYPE_CHECKING:
    from conftest import Models

SIZES = {"n_ctx": 512, "n_threads": 1}
COPY = "ab cd ef gh ab cd ef gh ab cd ef gh ab cd"


@pytest.fixture
def stores(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Stores:
    monkeypatch.setenv("EAGLECPP_MODELS", str(tmp_path / "models"))
    monkeypatch.setenv("OLLAMA_MODELS", str(tmp_path / "none"))
    return Stores.open()


def test_the_text_stands_in_for_a_drafter(models: Models) -> None:
    with Engine.open(models.target, draft="text", **SIZES) as engine:
        assert (engine.has_draft, engine.drafts_text, engine.draft_path) == (True, True, None)
        assert engine.draft_info is None
        done = engine.generate(COPY, max_tokens=40, temperature=0.0, strategy="chain:4", ignore_eos=True)
        timings = done.timings
        assert timings.draft_n == timings.text_draft_n > 0
        assert timings.draft_n_accepted == timings.text_draft_n_accepted
        assert done.accepted.count(True) == timings.draft_n_accepted
        plain = engine.generate(COPY, max_tokens=40, temperature=0.0, strategy="off", ignore_eos=True)
        assert plain.tokens == done.tokens and plain.timings.draft_n == 0


def test_copies_may_be_longer_than_drafts_of_a_drafter(models: Models) -> None:
    for options, most in (
        ({"draft": "text"}, 32),
        ({"draft": models.draft}, 16),
        ({"draft": "text", "n_draft_max": 5}, 5),
        ({"draft": "text", "n_sequences": 2}, 16),  # each conversation's rows take logits
    ):
        with Engine.open(models.target, **SIZES, **options) as engine:
            assert engine.native.n_draft_max == most


def test_what_was_learned_about_the_text_is_kept(
    models: Models, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EAGLECPP_PLANNER_CACHE", "1")
    monkeypatch.setenv("EAGLECPP_HOME", str(tmp_path))
    kept = []
    for _ in range(2):
        with Engine.open(models.target, draft="text", **SIZES) as engine:
            kept.append(engine.native.planner_state("costs", "acceptance")[1])
            engine.generate(COPY, max_tokens=40, temperature=0.0, ignore_eos=True)
    assert kept[0] != kept[1], "the second engine knows what the first one learned"
    assert any("text-acceptance" in path.read_text() for path in tmp_path.rglob("*.acceptance"))


def test_without_being_named_the_text_is_not_drafted_from(models: Models) -> None:
    with Engine.open(models.target, **SIZES) as engine:
        assert (engine.has_draft, engine.drafts_text) == (False, False)
    with Engine.open(models.target, text_drafts="on", **SIZES) as engine:
        assert (engine.has_draft, engine.drafts_text) == (True, True)


def test_beside_a_drafter_it_can_be_left_out(models: Models) -> None:
    for wanted, drafts in (("auto", True), ("on", True), ("off", False)):
        with Engine.open(models.target, draft=models.draft, text_drafts=wanted, **SIZES) as engine:
            assert engine.drafts_text is drafts
            done = engine.generate(COPY, max_tokens=60, temperature=0.0, ignore_eos=True)
            assert drafts or done.timings.text_draft_n == 0
            fixed = engine.generate(COPY, max_tokens=20, temperature=0.0, strategy="chain:3")
            assert fixed.timings.text_draft_n == 0, "a fixed strategy is the drafter's alone"


def test_contradictions_are_refused(models: Models) -> None:
    with pytest.raises(
        ValueError, match="draft 'text' asks for drafts from the text, but text_drafts is 'off'"
    ):
        Engine.open(models.target, draft="text", text_drafts="off", **SIZES)
    with pytest.raises(ValueError, match="text_memory 100 needs drafts from the text"):
        Engine.open(models.target, draft="text", text_memory=100, text_drafts="off", **SIZES)
    with pytest.raises(ValueError, match="text_drafts must be one of auto, on, off"):
        Engine.open(models.target, text_drafts="maybe", **SIZES)


def test_a_file_of_that_name_is_named_by_its_path(
    models: Models, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "text").write_bytes(models.draft.read_bytes())
    monkeypatch.chdir(tmp_path)
    with Engine.open(models.target, draft="text", **SIZES) as engine:
        assert engine.draft_path is None
    with Engine.open(models.target, draft="./text", **SIZES) as engine:
        assert engine.draft_path is not None


def test_the_drop_in_llama_knows_it(models: Models) -> None:
    llama = eaglecpp.Llama(str(models.target), draft_model="text", n_ctx=512, n_threads=1)
    assert llama.engine.has_draft and llama.engine.draft_path is None
    assert (
        llama.create_completion(COPY, max_tokens=8, temperature=0.0)["timings"]["plan"]["strategy"] == "auto"
    )


# The command line


def run(capsys: pytest.CaptureFixture[str], *args: object) -> tuple[int, str, str]:
    code = main([str(one) for one in args])
    out, err = capsys.readouterr()
    return code, out, err


def test_generate_drafts_from_the_text(models: Models, capsys: pytest.CaptureFixture[str]) -> None:
    shared = (
        "generate",
        models.target,
        "-p",
        COPY,
        "-n",
        30,
        "--temp",
        0,
        "-c",
        512,
        "-t",
        1,
        "--ignore-eos",
    )
    code, out, _ = run(capsys, *shared, "--draft", "text", "--strategy", "chain:4", "--json")
    timings = json.loads(out)["timings"]
    assert code == 0 and timings["text_draft_n"] == timings["draft_n"] > 0
    code, out, _ = run(capsys, *shared, "--text-drafts", "on", "--strategy", "chain:4", "--json")
    assert code == 0 and json.loads(out)["timings"]["text_draft_n"] > 0
    code, _, err = run(capsys, *shared, "--draft", "text", "--text-drafts", "off")
    assert code != 0 and "leave out one" in err
    code, _, err = run(capsys, *shared, "--strategy", "chain:4")
    assert code == 2 and "needs a drafter" in err


def test_words_about_it() -> None:
    plan = {"strategy": "chain:4", "why": "asked for"}
    stats = Timings(
        predicted_n=50, predicted_ms=1000.0, draft_n=40, draft_n_accepted=30, rounds=20, plan=plan
    )
    stats = replace(stats, text_draft_n=22, text_draft_n_accepted=20)
    assert "75% of 40 drafted tokens accepted · 20 of them from the text" in stats_line(stats, has_draft=True)
    assert "nothing in the text" in not_drafted(
        "off: nothing in the text so far pays as a draft; drafted in 0"
    )
    model = {"target": "t.gguf", "draft": "text", "n_threads": 1, "chains_only": "", "exact_reason": "",
             "exact_trees": True, "exact_rows": "1-17", "measured_steps": 0,
             "draft_device": "", "draft_why": "", "memory_plan": []}  # fmt: skip
    assert "drafter           none: drafts from the text itself" in _model_lines(model)


def test_a_chat_drafts_from_the_text(models: Models) -> None:
    model = RunModel(find_source(str(models.target), "text"), {"n_ctx": 512, "n_threads": 1})
    try:
        assert model.can_draft and model.drafts_text_alone and str(model.strategy) == "auto"
        model.set_strategy(eaglecpp.Strategy.parse("chain:20"))
        assert model.engine.has_draft and str(model.strategy) == "chain:20"
        model.set_strategy(eaglecpp.Strategy.parse("off"))
        assert str(model.strategy) == "off"
    finally:
        model.close()


# Modelfiles


def test_a_modelfile_may_name_the_text(models: Models, stores: Stores) -> None:
    for line in ("DRAFT text", "#eaglecpp: draft text"):
        text = f"FROM {models.target}\n{line}\n"
        plan = resolve(Modelfile.from_text(text), ".")
        assert plan.draft is None and plan.drafts_text
        made = create_model(
            stores, ModelName.parse("copier"), Modelfile.from_text(text), Path(), report=lambda status: None
        )
        assert not made.model.manifest.of_kind("draft")
        assert draft_text(made.model) == "text"
    resolved = find_target("copier", stores)
    assert resolved.draft is None and options_of(resolved)["text_drafts"] == "on"


def test_a_drafter_of_the_base_gives_way_to_the_text(models: Models, stores: Stores) -> None:
    def made(name: str, text: str) -> str:
        modelfile = Modelfile.from_text(text)
        done = create_model(stores, ModelName.parse(name), modelfile, Path(), report=lambda status: None)
        return draft_text(done.model)

    assert made("pair", f"FROM {models.target}\nDRAFT {models.draft}\n") not in ("-", "text")
    assert made("copier", "FROM pair\nDRAFT text\n") == "text"
    assert made("both", f"FROM copier\nDRAFT {models.draft}\n") not in ("-", "text")


def test_the_text_cannot_be_fetched(stores: Stores, models: Models) -> None:
    from eaglecpp.store.facts import read_facts

    facts = read_facts([models.target])
    with pytest.raises(ModelNotFoundError, match="this means drafts from the text itself"):
        find_draft(stores, "text", Path(), [models.target], facts, report=lambda status: None)
