# SPDX-License-Identifier: MIT
"""Tests drafts from the text itself: options, reports and refusals. `tests/parity/test_text.py` tests that
these drafts change no token.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from eaglecpp import Engine
from eaglecpp.modelfile import Modelfile, Resolved
from eaglecpp.opening.find import find_target
from eaglecpp.store.describe import draft_text
from helpers.models import Models
from helpers.opening import options_of

Create = Callable[..., Any]
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
