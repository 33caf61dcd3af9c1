# SPDX-License-Identifier: MIT
"""Tests that the plan for opening a model names each part, and where it comes from."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from eaglecpp import ModelOptions
from eaglecpp.cli import main
from eaglecpp.opening.find import find_here
from eaglecpp.opening.plan import make_plan, plan_opening
from helpers.models import Models

Create = Callable[..., str]


def test_every_option_has_its_origin(named: Create) -> None:
    name = named("PARAMETER num_ctx 256", "#eaglecpp: strategy chain:2", "#eaglecpp: exact off")
    plan = plan_opening(name, options={"n_threads": 1, "top_k": 3}, defaults={"model.n_batch": 64})
    found = {key: (setting.value, setting.origin) for key, setting in plan.settings.items()}
    assert found["model.n_ctx"] == (256, "PARAMETER of tiny:latest")
    assert found["model.n_batch"] == (64, "the command's default")
    assert found["model.n_threads"] == (1, "asked for")
    assert found["sampling.top_k"] == (3, "asked for")
    assert found["sampling.top_p"] == (0.9, "Ollama's default")
    assert found["draft.exact"] == ("off", "#eaglecpp: of tiny:latest")
    assert (str(plan.strategy.value), plan.strategy.origin) == ("chain:2", "#eaglecpp: of tiny:latest")
    assert plan.files.draft_origin == "comes with tiny:latest"
    text = "\n".join(text for _, text in plan.rows())
    assert "n_ctx 256 (PARAMETER of tiny:latest)" in text and "chain:2 (#eaglecpp: of tiny:latest)" in text


def test_an_option_object_overrides_all_of_its_kind(named: Create) -> None:
    plan = plan_opening(named("PARAMETER num_ctx 256"), objects=(ModelOptions(n_threads=1), None, None))
    assert plan.model_options() == ModelOptions(n_threads=1)
    assert plan.sampling_options().top_p == 0.9


@pytest.mark.parametrize(
    ("draft", "strategy"), [("off", None), ("none", None), (False, "off"), (None, "none"), (None, "off")]
)
def test_every_way_to_turn_drafting_off_means_the_same(
    named: Create, models: Models, draft: Any, strategy: str | None
) -> None:
    plan = plan_opening(named(), draft, strategy=strategy)
    assert (plan.draft, str(plan.strategy.value)) == (None, "off")
    with pytest.raises(ValueError, match=r"draft 'off' contradicts strategy chain:2"):
        plan_opening(models.target, "off", strategy="chain:2")


def test_the_text_instead_of_a_drafter(models: Models) -> None:
    plan = plan_opening(models.target, "text")
    assert (plan.draft, plan.drafts_text_alone, plan.draft_options().text_drafts) == (None, True, "on")


def test_only_a_default_context_is_chosen_again(models: Models, monkeypatch: pytest.MonkeyPatch) -> None:
    lengths = iter((512, 1024))
    monkeypatch.setattr("eaglecpp.opening.plan.choose_n_ctx", lambda *args: (next(lengths), "free memory"))
    plan = make_plan(find_here(models.target), choose_context=True)
    again = plan.with_context()
    assert (plan.model_options().n_ctx, again.model_options().n_ctx, again.context.value) == (512, 1024, 1024)
    given = make_plan(find_here(models.target), options={"n_ctx": 256}, choose_context=True)
    assert given.with_context() is given


def test_show_and_verbose_print_the_plan(named: Create, capsys: pytest.CaptureFixture[str]) -> None:
    name = named("PARAMETER num_ctx 256", "PARAMETER num_thread 1")
    assert main(["show", name]) == 0
    shown = capsys.readouterr().out
    assert "Opened with" in shown and "n_ctx 256 (PARAMETER of tiny:latest)" in shown
    assert main(["generate", name, "-p", "ab", "-n", "2", "-v", "--strategy", "off"]) == 0
    output = capsys.readouterr().err
    for text in ("drafter:    none", "strategy:   off (asked for)", "n_ctx 256 (PARAMETER of tiny:latest"):
        assert text in output
