# SPDX-License-Identifier: MIT
"""Tests that the plan for opening a model names each part, and where it comes from. `Engine.open("name")`
opens a model with all settings of its Modelfile, which may draft from the text or with the model's own head.
`tests/parity/test_text.py` and `tests/parity/test_model_drafters.py` test that these drafts change no token.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from eaglecpp import Engine, Llama, ModelOptions
from eaglecpp.cli import group, main
from eaglecpp.errors import MismatchError
from eaglecpp.modelfile import Modelfile, Resolved
from eaglecpp.opening.fetch import fetch
from eaglecpp.opening.find import find_here, find_target
from eaglecpp.opening.plan import make_plan, plan_opening
from eaglecpp.references import ModelName
from eaglecpp.store import Stores
from eaglecpp.store.describe import draft_text
from eaglecpp.store.facts import read_facts
from helpers.lora import write_lora
from helpers.models import Models
from helpers.opening import options_of
from helpers.tiny import make_target
from helpers.tiny_arch import make_head_file, make_with_head

Create = Callable[..., Any]


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


# Engines by name


MESSAGES = [{"role": "user", "content": "Hi"}]


@pytest.fixture
def quick(named: Create) -> Create:
    """Returns the function `named` for models that open fast."""
    return lambda *lines: named("PARAMETER num_ctx 256", "PARAMETER num_thread 1", *lines)


def test_drafter_and_parameters_are_used(quick: Create) -> None:
    name = quick("PARAMETER temperature 0", "PARAMETER num_predict 9", "#eaglecpp: strategy chain:2")
    with Engine.open(name) as engine:
        result = engine.generate("ab")
        assert (engine.n_ctx, engine.model.n_threads, len(result.tokens)) == (256, 1, 9)
        assert result.timings.plan["strategy"] == "chain:2"
        assert result.timings.draft_n > 0
    with Engine.open(name, strategy="off", n_ctx=128, max_tokens=5) as engine:
        assert not engine.has_draft
        assert (engine.n_ctx, engine.generate("ab").tokens) == (128, result.tokens[:5])


def test_a_pragma_chooses_the_template(quick: Create) -> None:
    with Engine.open(quick("#eaglecpp: chat_template raw")) as engine:
        assert engine.detokenize(engine.chat_prompt(MESSAGES)) == "Hi"


def test_adapters_are_used_even_with_an_options_object(quick: Create, models: Models, tmp_path: Path) -> None:
    write_lora(tmp_path / "lora.gguf", models.target)
    name = quick("ADAPTER ./lora.gguf")

    def tokens(reference: str | Path, **options: Any) -> list[int]:
        with Engine.open(reference, max_tokens=12, temperature=0.0, **options) as engine:
            return engine.generate("ab cd").tokens

    without = tokens(models.target, n_ctx=256, n_threads=1)
    adapted = tokens(name)
    assert adapted != without
    assert tokens(name, model=ModelOptions(n_ctx=256, n_threads=1)) == adapted
    assert tokens(name, lora=()) == without


def test_llama_opens_names_too(quick: Create) -> None:
    llm = Llama(quick(), n_ctx=256, n_threads=1, strategy="chain:2", verbose=False)
    assert llm("ab", max_tokens=8, temperature=0.0)["timings"]["draft_n"] > 0
    llm.close()


def test_notes_for_the_user_are_logged(quick: Create, caplog: pytest.LogCaptureFixture) -> None:
    Engine.open(quick("RENDERER qwen3"), strategy="off").close()
    assert "RENDERER qwen3 exists only in Ollama" in caplog.text


# Drafts from the text


SIZES = {"n_ctx": 512, "n_threads": 1}
COPY = "ab cd ef gh ab cd ef gh ab cd ef gh ab cd"


def test_text_drafts_can_be_turned_off_with_a_drafter(models: Models) -> None:
    for wanted, drafts in (("auto", True), ("on", True), ("off", False)):
        with Engine.open(models.target, draft=models.draft, text_drafts=wanted, **SIZES) as engine:
            done = engine.generate(COPY, max_tokens=60, temperature=0.0, ignore_eos=True)
            assert drafts or done.timings.text_draft_n == 0
            fixed = engine.generate(COPY, max_tokens=20, temperature=0.0, strategy="chain:3")
            assert fixed.timings.text_draft_n == 0, "a fixed strategy must not draft from the text"


def test_contradictions_are_refused(models: Models) -> None:
    with pytest.raises(ValueError, match="draft 'text' contradicts text_drafts 'off'"):
        Engine.open(models.target, draft="text", text_drafts="off", **SIZES)
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


def test_a_modelfile_may_name_the_text(models: Models, create: Create) -> None:
    for line in ("DRAFT text", "#eaglecpp: draft text"):
        text = f"FROM {models.target}\n{line}\n"
        plan = Resolved(Modelfile.from_text(text), ".")
        assert plan.draft is None and plan.draft_word == "text"
        made = create(text)
        assert not made.manifest.of_kind("draft")
        assert draft_text(made) == "text"
    resolved = find_target("tiny")
    assert resolved.draft is None and options_of(resolved)["text_drafts"] == "on"


# Drafts of a model's own head


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
