# SPDX-License-Identifier: MIT
"""Tests that a reader sees either the complete old model or the complete new model, while the model is being
replaced.
"""

from __future__ import annotations

import mmap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from eaglecpp.cli.show import show as show_command
from eaglecpp.opening.find import find_drafter, find_target
from eaglecpp.references import ModelName
from eaglecpp.server import catalog
from eaglecpp.server.config import ServerConfig
from eaglecpp.store import Store, StoredModel, Stores
from eaglecpp.store.remote.pull import pull
from eaglecpp.store.transaction import remove_model
from helpers.hub_server import HubServer
from helpers.stores import Tiny, make_model

NAME = ModelName.parse("m")


def make(stores: Stores, tiny: Tiny, system: str) -> None:
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
    "list": lambda: [m.config and m.name for m in Stores.open().models()] == [NAME] and "new",
    "create": lambda: make_model(Stores.open(), "FROM m\n", "n").texts("system")[0],
    "show": lambda: CliRunner().invoke(show_command, ["m", "--system"], catch_exceptions=False).stdout,
    "/api/show": lambda: catalog.facts({}, ServerConfig(), "m")["system"],
}


@pytest.mark.parametrize("reader", READERS)
def test_a_model_that_is_replaced_while_it_is_read_is_read_again(
    reader: str, tiny: Tiny, stores: Stores, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root.parent.mkdir(parents=True)
    make(stores, tiny, "old")
    real, n_loads = Store._load, 0

    def load(store: Store, name: ModelName, path: Path) -> StoredModel | None:
        nonlocal n_loads
        found = real(store, name, path)
        n_loads += 1
        if n_loads == 1:
            make(stores, tiny, "new")
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
