# SPDX-License-Identifier: MIT
"""`Engine.open("name")` opens the model as it was created, not its target alone."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from eaglecpp import Engine, Llama, ModelOptions, SamplingOptions
from helpers.lora import write_lora

if TYPE_CHECKING:
    from conftest import Models

Create = Callable[..., str]
MESSAGES = [{"role": "user", "content": "Hi"}]


@pytest.fixture
def named(models: Models, create: Callable[..., Any]) -> Create:
    """`named("SYSTEM s")`: a stored model of the tiny pair with these lines; gives its name."""

    def make(*lines: str, draft: bool = True) -> str:
        first = [f"FROM {models.target}", *([f"DRAFT {models.draft}"] if draft else [])]
        create("\n".join([*first, "PARAMETER num_ctx 256", "PARAMETER num_thread 1", *lines, ""]))
        return "tiny"

    return make


def test_the_drafter_and_the_parameters_come_with_it(named: Create) -> None:
    name = named("PARAMETER temperature 0", "PARAMETER num_predict 9", "#eaglecpp: strategy chain:2")
    with Engine.open(name) as engine:
        result = engine.generate("ab")
        assert (engine.n_ctx, engine.model.n_threads, len(result.tokens)) == (256, 1, 9)
        assert result.timings.plan["strategy"] == "chain:2"
        assert result.timings.draft_n > 0
    with Engine.open(name, strategy="off", n_ctx=128, max_tokens=5) as engine:
        assert not engine.has_draft
        assert (engine.n_ctx, engine.generate("ab").tokens) == (128, result.tokens[:5])


def test_what_is_given_overrides_it(named: Create, models: Models) -> None:
    name = named(
        "PARAMETER num_predict 9", "PARAMETER temperature 0", "#eaglecpp: strategy chain:2", draft=False
    )
    with Engine.open(name) as engine:
        assert (engine.has_draft, str(engine.strategy)) == (False, "auto")
    with Engine.open(name, models.draft, strategy="chain:3", sampling=SamplingOptions(seed=3)) as engine:
        assert str(engine.strategy) == "chain:3"
        assert (engine.sampling.max_tokens, engine.sampling.temperature) == (
            -1,
            SamplingOptions().temperature,
        )
        assert engine.model.n_ctx == 256


def test_chat_uses_its_template_system_prompt_and_messages(named: Create) -> None:
    name = named(
        "TEMPLATE [{{ .System }}|{{ .Prompt }}]",
        "SYSTEM Be brief.",
        "MESSAGE user one",
        "MESSAGE assistant two",
    )
    with Engine.open(name) as engine:
        assert engine.detokenize(engine.chat_prompt(MESSAGES), special=True).endswith(
            "[Be brief.|one]two[|Hi]"
        )
        own = [{"role": "system", "content": "S"}, *MESSAGES]
        assert "Be brief." not in engine.detokenize(engine.chat_prompt(own), special=True)


def test_a_pragma_chooses_the_template(named: Create) -> None:
    with Engine.open(named("#eaglecpp: chat_template raw")) as engine:
        assert engine.detokenize(engine.chat_prompt(MESSAGES)) == "Hi"


def test_adapters_come_with_it_even_under_whole_options(
    named: Create, models: Models, tmp_path: Path
) -> None:
    write_lora(tmp_path / "lora.gguf", models.target)
    name = named("ADAPTER ./lora.gguf")

    def tokens(reference: str | Path, **options: Any) -> list[int]:
        with Engine.open(reference, max_tokens=12, temperature=0.0, **options) as engine:
            return engine.generate("ab cd").tokens

    without = tokens(models.target, n_ctx=256, n_threads=1)
    adapted = tokens(name)
    assert adapted != without
    assert tokens(name, model=ModelOptions(n_ctx=256, n_threads=1)) == adapted
    assert tokens(name, lora=()) == without


@pytest.mark.parametrize("temperature", [0.0, 0.9])
def test_an_adapted_model_says_the_same_with_and_without_drafts(
    temperature: float, named: Create, models: Models, tmp_path: Path
) -> None:
    write_lora(tmp_path / "lora.gguf", models.target, size=0.3)
    name = named("ADAPTER ./lora.gguf")
    answers = []
    for strategy in ("off", "chain:3"):
        with Engine.open(name, strategy=strategy) as engine:
            answers.append(engine.generate("ab cd", max_tokens=60, temperature=temperature, seed=5))
    assert answers[0].tokens == answers[1].tokens
    assert answers[1].timings.draft_n_accepted > 0


def test_the_drop_in_takes_names_too(named: Create) -> None:
    llm = Llama(named(), n_ctx=256, n_threads=1, strategy="chain:2", verbose=False)
    assert llm("ab", max_tokens=8, temperature=0.0)["timings"]["draft_n"] > 0
    llm.close()


def test_what_its_user_should_know_is_logged(named: Create, caplog: pytest.LogCaptureFixture) -> None:
    Engine.open(named("RENDERER qwen3"), strategy="off").close()
    assert "RENDERER qwen3 is built into Ollama" in caplog.text
