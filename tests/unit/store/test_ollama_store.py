# SPDX-License-Identifier: MIT
"""Tests a store that is laid out like Ollama's. eaglecpp finds the store, reads it in place, and never writes
to it.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from eaglecpp.errors import UnsupportedError
from eaglecpp.opening.find import find_target
from eaglecpp.references import ModelName
from eaglecpp.store import StoreError, Stores
from eaglecpp.store.transaction import copy_model
from helpers.stores import OllamaModel, Tiny, without_links

NAME = ModelName.parse("llama3.2:3b")


def test_all_parts_of_a_model_are_read(ollama: OllamaModel, tiny: Tiny, home: Path) -> None:
    target, draft = tiny.target.read_bytes(), tiny.draft.read_bytes()
    ollama(
        "library/llama3.2/3b",
        [
            ("model", target),
            ("draft", b"an older drafter"),
            ("draft", draft),
            ("template", b"{{ .Prompt }}"),
            ("system", b"Be brief."),
            ("license", b"L1"),
            ("license", b"L2"),
            ("params", json.dumps({"stop": "<x>", "temperature": 1, "num_gqa": 3, "novel": 1}).encode()),
            ("messages", b'[{"role":"user","content":"hi"}]'),
            ("embed", b"obsolete"),
            ("adapter", b"a LoRA"),
            ("projector", b"a projector"),
        ],
        b'{"model_format":"","renderer":"qwen3","draft":{"architecture":"dflash"}}',
    )
    resolved = find_target("LLaMA3.2:3B")
    assert resolved.name is not None
    stored = Stores.open().get(resolved.name)
    assert (resolved.kind, stored.draft_kind) == ("ollama", "DFlash")
    assert resolved.target.parent == home / ".ollama" / "models" / "blobs"
    assert resolved.target.read_bytes() == target
    # of several drafters, the last drafter is used
    assert resolved.draft is not None and resolved.draft.read_bytes() == draft
    others = (*stored.files("adapter"), *stored.files("projector"))
    assert [path.read_bytes() for path in others] == [b"a LoRA", b"a projector"]
    assert resolved.modelfile.system == "Be brief."
    assert resolved.modelfile.parameters == {"stop": ("<x>",), "temperature": 1.0}
    assert [turn.content for turn in resolved.modelfile.messages] == ["hi"]
    assert str(resolved.name) == "llama3.2:3b"  # the name has the upper and lower case of the file on disk
    assert (resolved.modelfile.template, resolved.stored_template) == (None, "{{ .Prompt }}")
    assert [str(notice) for notice in resolved.modelfile.notices] == [
        "llama3.2:3b: unknown parameter 'novel'; ignored",
        "llama3.2:3b: RENDERER qwen3 exists only in Ollama; eaglecpp uses the model's chat template",
    ]
    assert (resolved.modelfile.license, resolved.modelfile.renderer) == (("L1", "L2"), "qwen3")


def test_manifests_of_newer_releases_are_links_to_blobs(ollama: OllamaModel, tiny: Tiny, home: Path) -> None:
    old = ollama("library/llama3.2/3b", {"model": tiny.target.read_bytes()})
    store = home / ".ollama" / "models"
    digest = "sha256-" + "d" * 64
    old.rename(store / "blobs" / digest)
    new = store / "manifests-v2" / "ollama.com" / "library" / "llama3.2" / "3b"
    new.parent.mkdir(parents=True)
    new.symlink_to(os.path.relpath(store / "blobs" / digest, new.parent))
    assert find_target("llama3.2:3b").target.read_bytes() == tiny.target.read_bytes()
    (store / "blobs" / digest).unlink()
    with pytest.raises(StoreError, match="broken link"):
        find_target("llama3.2:3b")


def test_a_missing_or_cut_blob_is_reported(ollama: OllamaModel, tiny: Tiny, home: Path) -> None:
    ollama("library/llama3.2/3b", {"model": tiny.target.read_bytes()})
    blob = find_target("llama3.2:3b").target
    blob.write_bytes(b"short")
    with pytest.raises(
        StoreError, match=r"expected \d+ bytes, found 5; pull it again: ollama pull llama3.2:3b"
    ):
        find_target("llama3.2:3b")
    blob.unlink()
    with pytest.raises(StoreError, match=r"model blob sha256:\w+ is missing"):
        find_target("llama3.2:3b")


@pytest.mark.parametrize(
    ("layers", "config", "text"),
    [
        ({"tensor": b"x"}, {"model_format": "safetensors"}, "MLX model"),
        ({"model": b"x"}, {"remote_host": "https://ollama.com"}, "runs on https://ollama"),
        ({"system": b"x"}, {}, "has no model layer"),
    ],
)
def test_models_that_cannot_run_here_are_refused(
    layers: dict[str, bytes], config: dict[str, str], text: str, ollama: OllamaModel
) -> None:
    ollama("library/llama3.2/3b", layers, json.dumps(config).encode())
    with pytest.raises(UnsupportedError, match=text):
        find_target("llama3.2:3b")


@pytest.mark.parametrize("can_link", [True, False])
def test_a_copy_shares_the_blob_and_outlives_the_original_if_links_work(
    can_link: bool, ollama: OllamaModel, tiny: Tiny, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    layers = {"model": tiny.target.read_bytes(), "template": b"{{ .Prompt }}"}
    manifest = ollama("library/llama3.2/3b", layers)
    stores = Stores.open()
    if not can_link:
        without_links(monkeypatch)
    theirs = find_target("llama3.2:3b").target
    copy_model(stores, stores.get(NAME), ModelName.parse("mine"))
    ours = find_target("mine")
    assert ours.kind == "store"
    assert ours.target.samefile(theirs) and (ours.target.parent == root / "blobs") == can_link
    # Ollama still chooses the template
    assert (ours.modelfile.template, ours.stored_template) == (None, "{{ .Prompt }}")
    manifest.unlink()
    theirs.unlink()
    if can_link:
        assert find_target("mine").target.read_bytes() == tiny.target.read_bytes()
    else:
        with pytest.raises(StoreError, match=r"mine:latest: model blob .* is missing"):
            find_target("mine")
