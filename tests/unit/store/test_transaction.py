# SPDX-License-Identifier: MIT
"""Changes of the store: all or nothing, nothing left behind, several at once."""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest

from eaglecpp.references.names import ModelName
from eaglecpp.store import StoreError, Stores
from eaglecpp.store.collect import PARTIAL_DAYS
from eaglecpp.store.errors import Status
from eaglecpp.store.layout import partial_path
from eaglecpp.store.locks import lock_blob, lock_path, lock_store, try_lock
from eaglecpp.store.transaction import Transaction, copy_model, remove_model
from helpers.store_check import orphans, store_problems

DIGEST = "sha256:" + "d" * 64


def make(stores: Stores, name: str, *contents: bytes) -> None:
    with Transaction(stores) as transaction:
        layers = [transaction.add_bytes("license", content) for content in contents]
        transaction.commit(ModelName.parse(name), layers, {"model_family": name})


def blobs(root: Path) -> set[bytes]:
    return {path.read_bytes() for path in (root / "blobs").iterdir()}


def test_blobs_go_when_the_last_model_that_needs_them_goes(stores: Stores, root: Path) -> None:
    make(stores, "a", b"shared", b"only a")
    make(stores, "b", b"shared")
    copy_model(stores, stores.get(ModelName.parse("a")), ModelName.parse("c"))
    remove_model(stores.own, ModelName.parse("A"))
    assert {b"shared", b"only a"} <= blobs(root)
    remove_model(stores.own, ModelName.parse("c"))
    assert b"only a" not in blobs(root)
    remove_model(stores.own, ModelName.parse("b"))
    assert blobs(root) == set()
    assert list((root / "manifests").rglob("*")) == []
    with pytest.raises(StoreError, match="model 'b:latest' not found"):
        remove_model(stores.own, ModelName.parse("b"))


def test_replacing_a_model_drops_what_it_had(stores: Stores, root: Path) -> None:
    make(stores, "a", b"old")
    make(stores, "A", b"new")
    assert [str(model.name) for model in stores.models()] == ["a:latest"]  # one name, in the case it had
    assert b"old" not in blobs(root)
    assert orphans(root) == []


def test_an_operation_that_fails_leaves_nothing(stores: Stores, root: Path) -> None:
    make(stores, "a", b"kept")
    before = blobs(root)
    with pytest.raises(RuntimeError), Transaction(stores) as transaction:
        transaction.add_bytes("license", b"half done")
        raise RuntimeError
    assert blobs(root) == before
    assert list((root / "tmp").iterdir()) == []


def test_what_dead_processes_left_goes_with_the_next_change(stores: Stores, root: Path) -> None:
    make(stores, "a", b"kept")
    dead = root / "tmp" / "0123"
    dead.mkdir()
    (dead / "half").write_bytes(b"x")
    (root / "tmp" / "4567.lock").touch()
    (root / "blobs" / f"sha256-{'e' * 64}").write_bytes(b"no manifest names me")
    (root / "manifests" / "registry.ollama.ai" / "library" / "a" / ".latest.x.tmp").write_bytes(b"{")
    (root / "locks" / f"sha256-{'f' * 64}.lock").touch()
    with Transaction(stores) as alive:
        alive.add_bytes("license", b"in work")
        make(stores, "b", b"another")
        assert alive.directory.is_dir()  # not taken for dead by the one that finished meanwhile
        left = {path.name for path in (root / "tmp").iterdir()}
        assert left == {alive.directory.name, f"{alive.directory.name}.lock"}
    assert orphans(root) == []
    assert [path.name for path in (root / "locks").iterdir()] == ["store.lock"]
    assert list(root.rglob("*.tmp")) == []


def test_an_operation_that_begins_is_not_taken_for_dead(
    stores: Stores, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody tidies up between the opening of its lock and the locking."""

    @contextmanager
    def looked_at(path: Path) -> Iterator[bool]:
        with try_lock(root / "locks" / "store.lock") as free:
            could_tidy.append(free)
        with try_lock(path) as free:
            yield free

    could_tidy: list[bool] = []
    monkeypatch.setattr("eaglecpp.store.transaction.try_lock", looked_at)
    with Transaction(stores):
        assert could_tidy == [False]


def test_unfinished_downloads_wait_but_not_for_ever(stores: Stores, root: Path) -> None:
    make(stores, "a", b"x")
    young, old, busy = (partial_path(root, f"sha256:{letter * 64}") for letter in "abc")
    for path in (young, old, busy):
        path.write_bytes(b"part")
    past = time.time() - (PARTIAL_DAYS + 1) * 86400
    for path in (old, busy):
        os.utime(path, (past, past))
    with lock_blob(root, "sha256:" + "c" * 64, lambda status: None):
        make(stores, "b", b"y")
    assert (young.exists(), old.exists(), busy.exists()) == (True, False, True)


def test_nothing_is_tidied_while_a_manifest_cannot_be_read(stores: Stores, root: Path) -> None:
    make(stores, "a", b"precious")
    manifest = root / "manifests" / "registry.ollama.ai" / "library" / "a" / "latest"
    good = manifest.read_bytes()
    manifest.write_bytes(good[:50])
    make(stores, "b", b"other")
    remove_model(stores.own, ModelName.parse("b"))
    assert {b"precious", b"other"} <= blobs(root)
    manifest.write_bytes(good)
    make(stores, "b", b"again")
    assert b"other" not in blobs(root)


def test_many_at_once(stores: Stores, root: Path) -> None:
    def work(number: int) -> None:
        for round_ in range(4):
            make(stores, f"m{number % 3}", b"shared", b"%d" % (number % 3), b"%d-%d" % (number, round_))
            if round_ % 2:
                remove_or_miss(stores, f"m{(number + 1) % 3}")

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(work, range(4)))
    assert store_problems(root) == []
    assert orphans(root) == []


@pytest.mark.parametrize("at", range(3))
def test_the_first_change_of_a_store_may_come_between_any_two_looks_of_another(
    stores: Stores, root: Path, monkeypatch: pytest.MonkeyPatch, at: int
) -> None:
    """Two commands started together on a fresh machine: neither takes the other's store for Ollama's."""
    looks = 0
    real = Path.exists

    def exists(path: Path) -> bool:
        nonlocal looks
        found = real(path)
        looks += 1
        if looks == at + 1:
            make(stores, "first", b"first")
        return found

    monkeypatch.setattr(Path, "exists", exists)
    make(stores, "second", b"second")
    assert looks > at
    assert sorted(str(model.name) for model in stores.models()) == ["first:latest", "second:latest"]


def remove_or_miss(stores: Stores, name: str) -> None:
    try:
        remove_model(stores.own, ModelName.parse(name))
    except StoreError as error:
        assert "not found" in str(error)


def test_what_another_process_removes_meanwhile_is_kept(stores: Stores, root: Path, tmp_path: Path) -> None:
    file = tmp_path / "weights"
    file.write_bytes(b"weights")
    with Transaction(stores) as transaction:
        layers = [transaction.add_file("model", file), transaction.add_bytes("license", b"x")]
        transaction.commit(ModelName.parse("a"), layers, {})
    model = stores.get(ModelName.parse("a"))
    noted = stores.own.linked()
    with Transaction(stores) as copying, Transaction(stores) as again:
        copied = [copying.add_layer(model, layer) for layer in model.manifest.layers]
        known = [again.add_file("model", file)]
        remove_model(stores.own, model.name)
        assert blobs(root) == set()
        copying.commit(ModelName.parse("b"), copied, {})
        remove_model(stores.own, ModelName.parse("b"))
        again.commit(ModelName.parse("c"), known, {})
    assert b"weights" in blobs(root)
    assert stores.own.linked() == noted, "a change of the file would still be seen"
    assert store_problems(root) == []
    assert orphans(root) == []


def test_a_blob_that_vanished_meanwhile_stops_the_commit(
    stores: Stores, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a disk where files can have one name only."""
    monkeypatch.setattr("eaglecpp.store.transaction.share", lambda source, destination: None)
    make(stores, "a", b"x")
    model = stores.get(ModelName.parse("a"))
    with Transaction(stores) as transaction:
        layers = [transaction.add_layer(model, layer) for layer in model.manifest.layers]
        remove_model(stores.own, model.name)
        with pytest.raises(
            StoreError, match="removed or changed by another process in the meantime; try again"
        ):
            transaction.commit(ModelName.parse("b"), layers, {})
    assert stores.models() == []


def test_the_second_download_waits_for_the_first(root: Path) -> None:
    heard: list[Status] = []
    order: list[str] = []
    entered = threading.Event()

    def second() -> None:
        entered.wait()
        with lock_blob(root, DIGEST, heard.append):
            order.append("second")

    thread = threading.Thread(target=second)
    thread.start()
    with lock_blob(root, DIGEST, heard.append):
        entered.set()
        while not heard:
            time.sleep(0.01)
        order.append("first")
    thread.join()
    assert order == ["first", "second"]
    assert heard == [Status("waiting for another process that is downloading this file", DIGEST)]


@pytest.mark.skipif(sys.platform != "linux", reason="looks a file up in /proc")
def test_a_lock_is_not_tidied_away_while_it_is_taken(
    stores: Stores, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between opening its file and locking it: two processes would download the same blob."""
    import fcntl

    make(stores, "a", b"x")
    real, threads = fcntl.flock, []

    def flock(fd: int, how: int) -> None:
        if Path(f"/proc/self/fd/{fd}").readlink() == lock_path(root, DIGEST) and not threads:
            threads.append(threading.Thread(target=make, args=(stores, "b", b"y")))
            threads[0].start()
            threads[0].join(0.5)
        real(fd, how)

    monkeypatch.setattr(fcntl, "flock", flock)
    with lock_blob(root, DIGEST, lambda status: None):
        threads[0].join()
        with try_lock(lock_path(root, DIGEST)) as free:
            assert not free


def test_a_stuck_store_is_said_so(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("eaglecpp.store.locks._PATIENCE_S", 0.1)
    with (
        lock_store(root),
        pytest.raises(StoreError, match="another process has been changing"),
        lock_store(root),
    ):
        pass
    with lock_blob(root, DIGEST, lambda status: None), try_lock(lock_path(root, DIGEST)) as free:
        assert not free


def test_a_store_of_a_newer_version_is_left_alone(stores: Stores, root: Path) -> None:
    root.mkdir(parents=True)
    (root / "eaglecpp.json").write_text('{"layout": 2}')
    with pytest.raises(StoreError, match="expected layout 1, found 2; written by a newer eaglecpp"):
        make(stores, "a", b"x")
