# SPDX-License-Identifier: MIT
"""Tests the table of known drafters. The table is well-formed, and a drafter is found by every name of its
target, but by no other name. Tests the choice of a file in a repository: llama.cpp's rules decide for
targets, and for drafters in the same repository.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

import pytest

from eaglecpp.references import ModelName
from eaglecpp.store import DownloadError
from eaglecpp.store.drafters import (
    KnownDrafter,
    find_drafters,
    first_runnable,
    known_drafters,
    no_drafter_reason,
)
from eaglecpp.store.remote.download import Remote
from eaglecpp.store.remote.hub import Repository, choose_drafter, choose_model


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


# Files of a repository


def repository(*paths: str) -> Repository:
    return Repository("u/r", tuple(Remote(path, 5000, "sha256:" + "a" * 64) for path in paths))


def target(quant: str, *paths: str) -> list[str]:
    return [file.path for file in choose_model(repository(*paths), quant)]


@pytest.mark.parametrize(
    ("quant", "paths", "chosen"),
    [
        ("", ("m-Q8_0.gguf", "m-Q4_K_M.gguf"), ["m-Q4_K_M.gguf"]),
        ("", ("m-Q2_K.gguf", "m-Q8_0.gguf"), ["m-Q8_0.gguf"]),
        ("f16", ("m-BF16.gguf", "m-F16.gguf"), ["m-F16.gguf"]),
        ("Q4_0", ("m-IQ4_0.gguf", "m.Q4_0.gguf"), ["m.Q4_0.gguf"]),
        ("Q4_K_XL", ("m-UD-Q4_K_XL.gguf",), ["m-UD-Q4_K_XL.gguf"]),
        ("Q4_K", ("m-Q4_K_M.gguf", "m-Q4_K-imat.gguf"), ["m-Q4_K-imat.gguf"]),
        ("m-bf16.gguf", ("m-F16.gguf", "m-BF16.gguf"), ["m-BF16.gguf"]),
        ("Q8_0", ("mmproj-m-Q8_0.gguf", "eagle3-Q8_0.gguf", "m-Q8_0.gguf"), ["m-Q8_0.gguf"]),
        (
            "Q8_0",
            ("Q8_0/m-Q8_0-00002-of-00002.gguf", "Q8_0/m-Q8_0-00001-of-00002.gguf"),
            ["Q8_0/m-Q8_0-00001-of-00002.gguf", "Q8_0/m-Q8_0-00002-of-00002.gguf"],
        ),
    ],
)
def test_the_target_of_a_tag(quant: str, paths: tuple[str, ...], chosen: list[str]) -> None:
    assert target(quant, *paths) == chosen


def test_files_that_are_never_a_target() -> None:
    for name in ("mmproj-m.gguf", "mtp-m.gguf", "dflash-m.gguf", "eagle3-m.gguf", "dspark-m.gguf"):
        with pytest.raises(DownloadError, match="contains no GGUF model"):
            target("", name)


@pytest.mark.parametrize(
    ("wanted", "paths", "chosen"),
    [
        ("m-Q4_K_M.gguf", ("eagle3-Q8_0.gguf", "eagle3-Q4_K_M.gguf"), "eagle3-Q4_K_M.gguf"),
        ("m-Q4_K_M.gguf", ("eagle3-F16.gguf", "eagle3-Q8_0.gguf"), "eagle3-Q8_0.gguf"),
        ("a/m-Q4_0.gguf", ("eagle3-Q4_0.gguf", "a/eagle3-F16.gguf"), "a/eagle3-F16.gguf"),
        ("m-Q4_0.gguf", ("m-Q8_0.gguf", "m-eagle-Q4_0.gguf"), None),
    ],
)
def test_the_drafter_next_to_a_target(wanted: str, paths: tuple[str, ...], chosen: str | None) -> None:
    found = choose_drafter(repository(wanted, *paths), Remote(wanted, 1))
    assert (None if found is None else found.path) == chosen


@pytest.mark.parametrize(
    ("quant", "paths", "chosen"),
    [
        ("", ("eagle3-F16.gguf", "eagle3-Q8_0.gguf"), "eagle3-Q8_0.gguf"),
        ("f16", ("eagle3-F16.gguf", "eagle3-Q8_0.gguf"), "eagle3-F16.gguf"),
        ("", ("Qwen3-8B-eagle3.gguf", "Qwen3-8B.gguf"), "Qwen3-8B-eagle3.gguf"),
        ("", ("draft.gguf",), "draft.gguf"),
        ("", ("m-Q4_K_M.gguf", "model.safetensors"), None),  # the checkpoint might be the drafter
        ("", ("model.safetensors",), None),
    ],
)
def test_the_drafter_of_a_drafters_repository(quant: str, paths: tuple[str, ...], chosen: str | None) -> None:
    found = choose_drafter(repository(*paths), quant=quant)
    assert (None if found is None else found.path) == chosen
