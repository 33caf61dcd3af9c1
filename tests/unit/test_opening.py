# SPDX-License-Identifier: MIT
"""The plan of opening a model says what each part is, and where it came from."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest

from eaglecpp import ModelOptions
from eaglecpp.cli import main
from eaglecpp.errors import ModelNotFoundError
from eaglecpp.opening.find import find_here
from eaglecpp.opening.plan import OpeningPlan, make_plan, plan_opening
from helpers.http_server import MODEL, TestServer

if TYPE_CHECKING:
    from conftest import Models

Create = Callable[..., str]


@pytest.fixture
def named(models: Models, create: Callable[..., Any]) -> Create:
    """A stored model of the tiny pair with these lines; gives its name."""

    def make(*lines: str) -> str:
        create("\n".join([f"FROM {models.target}", f"DRAFT {models.draft}", *lines, ""]))
        return "tiny"

    return make


def test_every_option_knows_where_it_is_from(named: Create) -> None:
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
    assert plan.found.draft_origin == "comes with tiny:latest"
    text = "\n".join(text for _, text in plan.rows())
    assert "n_ctx 256 (PARAMETER of tiny:latest)" in text and "chain:2 (#eaglecpp: of tiny:latest)" in text


def test_an_option_object_overrides_all_of_its_kind(named: Create) -> None:
    plan = plan_opening(named("PARAMETER num_ctx 256"), objects=(ModelOptions(n_threads=1), None, None))
    assert plan.model_options() == ModelOptions(n_threads=1)
    assert plan.sampling_options().top_p == 0.9


def test_a_file_has_the_engines_own_defaults(models: Models) -> None:
    plan = plan_opening(models.target)
    assert plan.settings == {}
    assert (plan.draft, str(plan.strategy.value), plan.can_draft) == (None, "auto", False)


def test_the_text_in_place_of_a_drafter(models: Models) -> None:
    plan = plan_opening(models.target, "text")
    assert (plan.draft, plan.drafts_text_alone, plan.draft_options().text_drafts) == (None, True, "on")


def test_a_drafter_of_its_own_that_is_not_there(models: Models) -> None:
    with pytest.raises(ModelNotFoundError, match="--draft auto"):
        plan_opening(models.target, "auto")


@pytest.fixture
def plans(monkeypatch: pytest.MonkeyPatch) -> list[OpeningPlan]:
    """Every plan that is made."""
    made: list[OpeningPlan] = []
    init = OpeningPlan.__init__

    def count(plan: OpeningPlan, *args: Any, **fields: Any) -> None:
        init(plan, *args, **fields)
        made.append(plan)

    monkeypatch.setattr(OpeningPlan, "__init__", count)
    return made


def test_one_answer_of_run_makes_one_plan(
    named: Create, plans: list[OpeningPlan], monkeypatch: pytest.MonkeyPatch
) -> None:
    with open(os.devnull) as nobody:  # noqa: PTH123
        monkeypatch.setattr("sys.stdin", nobody)
        assert main(["run", named(), "hi", "--max-tokens", "3", "-t", "1", "--no-planner-cache"]) == 0
    assert len(plans) == 1


def test_the_first_chat_with_a_server_makes_one_plan_and_the_next_none(plans: list[OpeningPlan]) -> None:
    body = {"model": MODEL, "messages": [{"role": "user", "content": "hi"}], "max_tokens": 3}
    with TestServer(engine={"n_threads": 1, "planner_cache": False}) as server:
        for _ in range(2):
            assert server.post("/v1/chat/completions", body).status_code == 200
            assert len(plans) == 1


def test_only_a_context_that_nobody_gave_is_chosen_again(
    models: Models, monkeypatch: pytest.MonkeyPatch
) -> None:
    lengths = iter((512, 1024))
    choose = "eaglecpp.opening.plan.choose_n_ctx"
    monkeypatch.setattr(choose, lambda *args: (next(lengths), "free memory"))
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
    said = capsys.readouterr().err
    for text in ("drafter:    none", "strategy:   off (asked for)", "n_ctx 256 (PARAMETER of tiny:latest"):
        assert text in said
