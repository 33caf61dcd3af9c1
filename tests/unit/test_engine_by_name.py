# SPDX-License-Identifier: MIT
"""Tests that `Engine.open("name")` opens a model with all settings of its Modelfile."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from eaglecpp import Engine, Llama, ModelOptions
from helpers.lora import write_lora
from helpers.models import Models

Create = Callable[..., str]
MESSAGES = [{"role": "user", "content": "Hi"}]


@pytest.fixture
def named(named: Create) -> Create:
    return lambda *lines: named("PARAMETER num_ctx 256", "PARAMETER num_thread 1", *lines)


def test_drafter_and_parameters_are_used(named: Create) -> None:
    name = named("PARAMETER temperature 0", "PARAMETER num_predict 9", "#eaglecpp: strategy chain:2")
    with Engine.open(name) as engine:
        result = engine.generate("ab")
        assert (engine.n_ctx, engine.model.n_threads, len(result.tokens)) == (256, 1, 9)
        assert result.timings.plan["strategy"] == "chain:2"
        assert result.timings.draft_n > 0
    with Engine.open(name, strategy="off", n_ctx=128, max_tokens=5) as engine:
        assert not engine.has_draft
        assert (engine.n_ctx, engine.generate("ab").tokens) == (128, result.tokens[:5])


def test_a_pragma_chooses_the_template(named: Create) -> None:
    with Engine.open(named("#eaglecpp: chat_template raw")) as engine:
        assert engine.detokenize(engine.chat_prompt(MESSAGES)) == "Hi"


def test_adapters_are_used_even_with_an_options_object(named: Create, models: Models, tmp_path: Path) -> None:
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


def test_llama_opens_names_too(named: Create) -> None:
    llm = Llama(named(), n_ctx=256, n_threads=1, strategy="chain:2", verbose=False)
    assert llm("ab", max_tokens=8, temperature=0.0)["timings"]["draft_n"] > 0
    llm.close()


def test_notes_for_the_user_are_logged(named: Create, caplog: pytest.LogCaptureFixture) -> None:
    Engine.open(named("RENDERER qwen3"), strategy="off").close()
    assert "RENDERER qwen3 exists only in Ollama" in caplog.text
