# SPDX-License-Identifier: MIT
"""Tests changes of the store. A change succeeds completely or not at all, keeps every needed file, and may
run in parallel with other changes.
"""

from __future__ import annotations

import os
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import pytest

from eaglecpp.references import ModelName
from eaglecpp.store import StoreError, Stores
from eaglecpp.store.content import lock_store
from eaglecpp.store.layout import partial_path
from eaglecpp.store.transaction import DAYS, Transaction, copy_model, remove_model
from helpers.clock import set_clock
from helpers.store_check import orphans, store_problems
from helpers.stores import without_links

DIGEST = "sha256:" + "d" * 64


def make(stores: Stores, name: str, *contents: bytes) -> None:
    with Transaction(stores) as transaction:
        layers = [transaction.add_bytes("license", content) for content in contents]
        transaction.commit(ModelName.parse(name), layers, {"model_family": name})


def blobs(root: Path) -> set[bytes]:
    return {path.read_bytes() for path in (root / "blobs").iterdir()}


def test_blobs_are_removed_with_the_last_model_that_needs_them(stores: Stores, root: Path) -> None:
    make(stores, "a", b"shared", b"only a")
    make(stores, "b", b"shared")
    copy_model(stores, stores.get(ModelName.parse("a")), ModelName.parse("c"))
    remove_model(stores.own, ModelName.parse("A"))
    assert {b"shared", b"only a"} <= blobs(root)
    make(stores, "C", b"new")
    # The name keeps its original upper and lower case.
    assert [str(model.name) for model in stores.models()] == ["c:latest", "b:latest"]
    assert b"only a" not in blobs(root)
    for name in "bc":
        remove_model(stores.own, ModelName.parse(name))
    assert blobs(root) == set()
    assert [path for path in (root / "manifests").rglob("*") if path.is_file()] == []
    with pytest.raises(StoreError, match="model 'b:latest' not found"):
        remove_model(stores.own, ModelName.parse("b"))


def test_a_failing_operation_leaves_nothing(stores: Stores, root: Path) -> None:
    make(stores, "a", b"kept")
    before = blobs(root)
    with pytest.raises(RuntimeError), Transaction(stores) as transaction:
        transaction.add_bytes("license", b"half done")
        transaction.add_bytes("license", b"kept")
        raise RuntimeError
    assert blobs(root) == before
    assert list((root / "tmp").iterdir()) == []


def test_files_of_dead_processes_are_removed_after_some_days(
    stores: Stores, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make(stores, "a", b"kept")
    (root / "tmp" / "dead").mkdir()
    (root / "tmp" / "dead" / "half").write_bytes(b"x")
    (root / "blobs" / f"sha256-{'e' * 64}").write_bytes(b"no manifest names me")
    partial_path(root, DIGEST).write_bytes(b"to be resumed")
    (root / "locks" / f"sha256-{'d' * 64}.lock").touch()
    with Transaction(stores) as alive:
        make(stores, "b", b"another")
        assert list((root / "tmp").iterdir()) == [alive.directory]
    assert {b"no manifest names me", b"to be resumed"} <= blobs(root)
    later = time.time() + (DAYS + 1) * 86400
    set_clock(monkeypatch, "eaglecpp.store.transaction", time=lambda: later)
    make(stores, "c", b"a third")
    assert orphans(root) == [] and not partial_path(root, DIGEST).exists()
    assert [path.name for path in (root / "locks").iterdir()] == ["store.lock"]


@pytest.mark.parametrize("name", ["m" * 81, "with blank", "OTHER", "n/deeper"])
def test_blobs_of_a_manifest_stay_whatever_its_name(stores: Stores, root: Path, name: str) -> None:
    """Tests that the blobs of a manifest stay, whatever the manifest's name. Names that differ only in case
    are the same name for eaglecpp, but different names on the disk.
    """
    make(stores, "a", b"precious")
    make(stores, "other", b"other")
    folder = root / "manifests" / "registry.ollama.ai" / "library"
    moved = folder / name / "latest"
    moved.parent.mkdir(parents=True)
    (folder / "a" / "latest").rename(moved)
    (folder / "a" / ".DS_Store").write_bytes(b"what Finder leaves is no manifest")
    make(stores, "third", b"")
    assert {b"precious", b"other"} <= blobs(root)
    remove_model(stores.own, ModelName.parse("other"))
    assert b"precious" in blobs(root) and b"other" not in blobs(root)


@pytest.mark.parametrize("what", ["half", "pipe"])
def test_nothing_is_removed_while_a_manifest_cannot_be_read(stores: Stores, root: Path, what: str) -> None:
    make(stores, "a", b"precious")
    make(stores, "b", b"other")
    manifest = root / "manifests" / "registry.ollama.ai" / "library" / "a" / "latest"
    good = manifest.read_bytes()
    if what == "pipe" and os.name != "nt":
        manifest.unlink()
        os.mkfifo(manifest)
        with pytest.raises(StoreError, match=f"{manifest}: expected a file, found a named pipe"):
            stores.get(ModelName.parse("a"))
    else:
        manifest.write_bytes(good[:50])
    remove_model(stores.own, ModelName.parse("b"))
    assert {b"precious", b"other"} <= blobs(root)
    manifest.unlink()
    manifest.write_bytes(good)
    assert stores.get(ModelName.parse("a")).texts("license") == ("precious",)


def test_many_operations_at_once(stores: Stores, root: Path) -> None:
    def work(number: int) -> None:
        for round_ in range(4):
            make(stores, f"m{number % 3}", b"shared", b"%d" % (number % 3), b"%d-%d" % (number, round_))
            with suppress(StoreError):  # raised if another thread has removed the model
                remove_model(stores.own, ModelName.parse(f"m{(number + 1) % 3}"))

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(work, range(4)))
    assert store_problems(root) == []
    assert orphans(root) == []


def test_blobs_in_use_stay_although_another_process_removes_the_model(
    stores: Stores, root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "weights"
    file.write_bytes(b"weights")
    with Transaction(stores) as making:
        making.commit(ModelName.parse("a"), [making.add_file("model", file)], {})
    model = stores.get(ModelName.parse("a"))
    with Transaction(stores) as copying, Transaction(stores) as again:
        copied = [copying.add_layer(model, layer) for layer in model.manifest.layers]
        known = [again.add_file("model", file)]
        remove_model(stores.own, model.name)
        copying.commit(ModelName.parse("b"), copied, {})
        remove_model(stores.own, ModelName.parse("b"))
        again.commit(ModelName.parse("c"), known, {})
    assert b"weights" in blobs(root)
    assert store_problems(root) == [] and orphans(root) == []
    without_links(monkeypatch)
    model = stores.get(ModelName.parse("c"))
    with (
        Transaction(stores) as late,
        pytest.raises(StoreError, match="removed by another process in the meantime; try again"),
    ):
        layers = [late.add_layer(model, layer) for layer in model.manifest.layers]
        remove_model(stores.own, model.name)
        late.commit(ModelName.parse("d"), layers, {})


def test_a_stuck_store_is_reported(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """If another process holds the store's lock for too long, an error reports this. tests/e2e/test_kill.py
    shows that a second download waits for the first.
    """
    monkeypatch.setattr("eaglecpp.store.content._PATIENCE_S", 0.1)
    with lock_store(root), pytest.raises(StoreError, match="another process has held"), lock_store(root):
        pass


def test_a_store_of_a_newer_version_is_not_changed(stores: Stores, root: Path) -> None:
    root.mkdir(parents=True)
    (root / "eaglecpp.json").write_text('{"layout": 2}')
    with pytest.raises(StoreError, match=r"1}', found b'{\"layout\": 2}'; a newer eaglecpp may read it"):
        make(stores, "a", b"x")
