# SPDX-License-Identifier: MIT
"""Tests that a process that is killed before any of its file operations leaves a valid store, with either the
old model or the new model.
"""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

import pytest

from eaglecpp.references import ModelName
from eaglecpp.store import StoreError, Stores
from eaglecpp.store.layout import blob_path
from eaglecpp.store.remote.pull import pull
from eaglecpp.store.transaction import remove_model
from helpers.hub_server import HubServer, digest_of
from helpers.kills import killed_everywhere
from helpers.store_check import orphans, store_problems
from helpers.stores import Tiny, make_model

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="forks")


def test_create_keeps_the_old_model_or_has_the_new_one(tiny: Tiny, stores: Stores, root: Path) -> None:
    text = f"FROM {tiny.target}\nDRAFT {tiny.draft}\nSYSTEM new\nPARAMETER top_k 5\n"
    make_model(stores, text)  # imports the modules once in the parent process, not in every child
    remove_model(stores.own, ModelName.parse("m"))
    make_model(stores, f"FROM {tiny.target}\nSYSTEM old\n")
    states = set()

    def check() -> None:
        assert store_problems(root) == []
        states.add(stores.get(ModelName.parse("m")).texts("system"))

    assert killed_everywhere(root, lambda: make_model(stores, text), check) > 30
    assert states == {("old",), ("new",)}
    assert list((root / "tmp").iterdir()) == []


def test_rm_at_every_step(tiny: Tiny, stores: Stores, root: Path) -> None:
    names = [ModelName.parse(f"m{i}") for i in range(2)]
    for name in names:
        make_model(stores, f"FROM {tiny.target}\nSYSTEM {name.model}\n", name.model)

    def remove() -> None:
        with suppress(StoreError):  # raised if an earlier child has removed the model
            remove_model(stores.own, names[0])

    def check() -> None:
        assert store_problems(root) == []
        assert stores.find(names[1]) is not None

    assert killed_everywhere(root, remove, check) > 3
    assert stores.find(names[0]) is None


def test_pull_at_every_step(tiny: Tiny, stores: Stores, root: Path, hub: HubServer) -> None:
    data = tiny.target.read_bytes()
    hub.add("user/tiny-GGUF", {"tiny-Q4_K_M.gguf": data, "system": b"s"})
    name = ModelName.parse("hf.co/user/tiny-GGUF:Q4_K_M")
    blob = blob_path(root, digest_of(data))
    pull(name)  # imports the modules once in the parent process, not in every child
    remove_model(stores.own, name)

    def check() -> None:
        assert store_problems(root) == []
        if (model := stores.find(name)) is not None:
            assert model.target_files()[0].read_bytes() == data
            remove_model(stores.own, name)  # the next child has to pull the model again

    assert killed_everywhere(root, lambda: pull(name), check) > 30
    assert stores.get(name).texts("system") == ("s",)
    assert blob.read_bytes() == data
    assert orphans(root) == []


def test_convert_at_every_step(tiny: Tiny, tmp_path: Path) -> None:
    from eaglecpp.convert import convert_checkpoint

    folder = tmp_path / "out"
    folder.mkdir()
    out, foreign = folder / "draft.gguf", folder / ".other.gguf.0123abcd.tmp"
    foreign.touch()
    out.write_bytes(b"old")
    states = set()

    def check() -> None:
        states.add(out.read_bytes())
        out.write_bytes(b"old")

    def convert() -> None:
        convert_checkpoint(tiny.checkpoint, target=tiny.target, out=out, type="F32")

    assert killed_everywhere(folder, convert, check) > 1
    assert states | {out.read_bytes()} == {b"old", tiny.draft.read_bytes()}
    assert sorted(folder.iterdir()) == [foreign, out], "the next run must remove files of killed runs"
