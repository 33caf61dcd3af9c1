# SPDX-License-Identifier: MIT
"""Tests the table of known drafters. The table is well-formed, and a drafter is found by every name of its
target, but by no other name.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

import pytest

from eaglecpp.references import ModelName
from eaglecpp.store.drafters import (
    KnownDrafter,
    find_drafters,
    first_runnable,
    known_drafters,
    no_drafter_reason,
)


def found(*names: str, **metadata: str) -> str:
    keys = {f"general.{key}".replace("__", "."): value for key, value in metadata.items()}
    match = first_runnable(find_drafters(names, keys))
    return "" if match is None else match.repo


def test_every_row_of_the_table_is_complete() -> None:
    from eaglecpp.convert.dialects import DIALECTS

    families = {dialect.name for dialect in DIALECTS}
    rows = known_drafters()
    assert len(rows) > 40
    assert len({row.repo for row in rows}) == len(rows)
    for row in rows:
        assert re.fullmatch(r"[\w.-]+/[\w.-]+", row.repo)
        assert row.family in families | {""}, row.repo
        assert row.source, row.repo
        ModelName.parse(f"hf.co/{row.repo}")
        for target in row.targets:
            assert re.fullmatch(r"[\w.-]+/[\w.-]+|[a-z0-9.-]+:[\w.-]+", target), target


def test_every_target_finds_its_own_drafter() -> None:
    for row in known_drafters():
        for target in row.targets:
            matches = find_drafters([target])
            assert row.repo in [match.repo for match in matches]
            offered = first_runnable(matches)
            assert (offered is None) == all(match.refused for match in matches)
            assert offered is None or target in offered.targets


@pytest.mark.parametrize(
    "name",
    ["Qwen/Qwen3-8B", "hf.co/Qwen/Qwen3-8B-GGUF:Q4_K_M", "bartowski/Qwen_Qwen3-8B-GGUF",
     "Qwen3-8B-Q4_K_M.gguf", "qwen3-8b-UD-Q4_K_XL-00001-of-00002.gguf", "Qwen3-8B.i1-IQ3_XXS.gguf",
     "Qwen3 8B", "qwen3:8b", "qwen3:8b-q8_0", "qwen3:latest", "registry.ollama.ai/library/qwen3:8b"],
)  # fmt: skip
def test_a_target_is_known_by_every_name(name: str) -> None:
    assert found(name) == "deepseek-ai/dspark_qwen3_8b_block7"


@pytest.mark.parametrize(
    "metadata",
    [
        {"name": "Qwen3 8B"},
        {"name": "model", "basename": "Qwen3", "size_label": "8B"},
        {"name": "My Tune", "base_model__0__repo_url": "https://huggingface.co/Qwen/Qwen3-8B"},
        {"name": "x", "base_model__0__name": "Qwen3 8B"},
    ],
)
def test_metadata_decide_if_names_do_not(metadata: Mapping[str, str]) -> None:
    assert found("mine:latest", **metadata) == "deepseek-ai/dspark_qwen3_8b_block7"


@pytest.mark.parametrize(
    "name",
    ["Qwen3-8B-Base", "Qwen3-80B", "qwen3:8b-base", "qwen3", "Llama-3.1-8B", "xQwen3-8B", "", "m.gguf", "8B"],
)
def test_part_of_a_name_is_not_a_name(name: str) -> None:
    assert found(name) == ""


def test_a_drafter_that_cannot_run_is_listed_but_not_offered(monkeypatch: pytest.MonkeyPatch) -> None:
    assert no_drafter_reason("x", []) == "no drafter is known for x"
    rows = [
        KnownDrafter("a/first", ("o/m",), "eagle", "default", "t", refused="it cannot"),
        KnownDrafter("a/second", ("o/m",), "eagle", "default", "t"),
    ]
    monkeypatch.setattr("eaglecpp.store.drafters.known_drafters", lambda: rows)
    matches = find_drafters(["o/m"])
    assert [match.repo for match in matches] == [row.repo for row in rows] and first_runnable(
        matches
    ) == matches[1]
    assert (
        no_drafter_reason("o/m", matches[:1])
        == "the drafters known for o/m cannot run here (a/first: it cannot)"
    )
