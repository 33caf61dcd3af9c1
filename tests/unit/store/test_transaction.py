# SPDX-License-Identifier: MIT
"""Tests changes of the store. A change succeeds completely or not at all, keeps every needed file, and may
run in parallel with other changes. A process that is killed before any of its file operations leaves a valid
store, with either the old model or the new model. A reader sees either the complete old model or the complete
new model.
"""

from __future__ import annotations

import mmap
import os
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from eaglecpp.cli.show import show as show_command
from eaglecpp.opening.find import find_drafter, find_target
from eaglecpp.references import ModelName
from eaglecpp.server import catalog
from eaglecpp.server.config import ServerConfig
from eaglecpp.store import Store, StoredModel, StoreError, Stores
from eaglecpp.store.content import lock_store
from eaglecpp.store.layout import blob_path, partial_path
from eaglecpp.store.remote.pull import pull
from eaglecpp.store.transaction import DAYS, Transaction, copy_model, remove_model
from helpers.clock import set_clock
from helpers.hub_server import HubServer, digest_of
from helpers.kills import killed_everywhere
from helpers.store_check import orphans, store_problems
from helpers.stores import Tiny, make_model, without_links

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
    """If another process holds the store's lock for too long, an error reports this. tests/e2e/test_store.py
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


# A kill before every file operation


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


# Readers of a model that is being replaced

READ = ModelName.parse("m")


def replace_model(stores: Stores, tiny: Tiny, system: str) -> None:
    """Writes another target and drafter each time, so that no file of the old model remains."""
    for file in (tiny.target, tiny.draft):
        copy = stores.own.root.parent / file.name
        copy.unlink(missing_ok=True)
        copy.write_bytes(file.read_bytes() + system.encode())
    folder = stores.own.root.parent
    text = f"FROM {folder / tiny.target.name}\nDRAFT {folder / tiny.draft.name}\nSYSTEM {system}\n"
    text += f"REQUIRES 0.{len(stores.own.models())}.0\n"  # this line changes the config as well
    make_model(stores, text)


READERS: dict[str, Callable[[], Any]] = {
    "run": lambda: find_target("m").modelfile.system,
    "a drafter": lambda: find_drafter("m").read_bytes()[-3:].decode(),
    "list": lambda: [m.config and m.name for m in Stores.open().models()] == [READ] and "new",
    "create": lambda: make_model(Stores.open(), "FROM m\n", "n").texts("system")[0],
    "show": lambda: CliRunner().invoke(show_command, ["m", "--system"], catch_exceptions=False).stdout,
    "/api/show": lambda: catalog.facts({}, ServerConfig(), "m")["system"],
}


@pytest.mark.parametrize("reader", READERS)
def test_a_model_that_is_replaced_while_it_is_read_is_read_again(
    reader: str, tiny: Tiny, stores: Stores, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root.parent.mkdir(parents=True)
    replace_model(stores, tiny, "old")
    real, n_loads = Store._load, 0

    def load(store: Store, name: ModelName, path: Path) -> StoredModel | None:
        nonlocal n_loads
        found = real(store, name, path)
        n_loads += 1
        if n_loads == 1:
            replace_model(stores, tiny, "new")
        return found

    monkeypatch.setattr(Store, "_load", load)
    assert READERS[reader]().strip() == "new"


def test_a_mapped_file_is_never_written_to(tiny: Tiny, stores: Stores, root: Path, hub: HubServer) -> None:
    """Tests that a mapped file is never written to. Weights are mapped, and truncating a mapped file ends the
    process that mapped the file by a signal.
    """
    data = tiny.target.read_bytes()
    hub.add("user/tiny-GGUF", {"tiny-Q4_K_M.gguf": data})
    name = ModelName.parse("hf.co/user/tiny-GGUF:Q4_K_M")
    pull(name)
    blob = stores.get(name).target_files()[0]

    def replace_by_pull() -> None:
        hub.add("user/tiny-GGUF", {"tiny-Q4_K_M.gguf": data + b"newer"})
        pull(name)

    for change in (
        replace_by_pull,
        lambda: make_model(stores, f"FROM {tiny.other}\n", str(name)),
        lambda: remove_model(stores.own, name),
    ):
        blob = stores.get(name).target_files()[0]
        content = blob.read_bytes()
        with blob.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapped:
            change()
            assert mapped[:] == content
            assert not blob.exists()
