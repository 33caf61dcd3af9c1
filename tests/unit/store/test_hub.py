# SPDX-License-Identifier: MIT
"""Tests the choice of a file in a repository. llama.cpp's rules decide for targets, and for drafters in the
same repository.
"""

from __future__ import annotations

import pytest

from eaglecpp.store import DownloadError
from eaglecpp.store.remote.download import Remote
from eaglecpp.store.remote.hub import Repository, choose_drafter, choose_model


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
