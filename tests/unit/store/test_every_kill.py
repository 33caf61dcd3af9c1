# SPDX-License-Identifier: MIT
"""A process killed before any one of its file operations leaves a sound store, and the next one tidies up.

Not at random: a child dies at its first operation on the store, the next one at its second, and so on until
one lives to the end. `sys.addaudithook` announces every operation before it happens.
"""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from eaglecpp.modelfile import Modelfile
from eaglecpp.references.names import ModelName
from eaglecpp.store import Stores
from eaglecpp.store.create import create_model
from eaglecpp.store.layout import blob_path
from eaglecpp.store.remote.pull import pull
from eaglecpp.store.transaction import copy_model, remove_model
from helpers.hub_server import HubServer, digest_of
from helpers.store_check import orphans, store_problems
from helpers.stores import Tiny

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="forks")

KILLED = 137


def killed_everywhere(root: Path, operation: Callable[[], object], check: Callable[[], None]) -> int:
    """Runs the operation in children that die ever later; `check` looks at what each left. Returns how many
    died.
    """
    for n_allowed in range(10_000):
        code = in_child(root, operation, n_allowed)
        if code == 0:
            return n_allowed
        assert code == KILLED, f"the child failed by itself with {code}"
        check()
    raise AssertionError("the operation never ended")


def in_child(root: Path, operation: Callable[[], object], n_allowed: int) -> int:
    """The exit code of a child that dies before its file operation number `n_allowed` below `root`."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # forking beside threads; this child has none
        child = os.fork()
    if child:
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    try:
        left, prefix = n_allowed, str(root)

        def hook(event: str, args: tuple[Any, ...]) -> None:
            nonlocal left
            touches = event == "open" or event.startswith(("os.", "shutil."))
            if touches and any(
                isinstance(arg, str | os.PathLike) and str(arg).startswith(prefix) for arg in args
            ):
                left -= 1
                if left < 0:
                    os._exit(KILLED)

        sys.addaudithook(hook)
        operation()
    except BaseException:
        os._exit(1)
    os._exit(0)


def make(stores: Stores, name: str, text: str) -> None:
    create_model(stores, ModelName.parse(name), Modelfile.from_text(text), Path.cwd())


def test_create_at_every_step(tiny: Tiny, stores: Stores, root: Path) -> None:
    text = f"FROM {tiny.target}\nDRAFT {tiny.draft}\nSYSTEM s\nPARAMETER top_k 5\n"
    make(stores, "other", f"FROM {tiny.target}\n")
    make(stores, "m", text)  # what it imports is imported once, not in every child
    remove_model(stores.own, ModelName.parse("m"))

    def check() -> None:
        assert store_problems(root) == []
        assert [str(model.name) for model in stores.models()] in (
            ["other:latest"],
            ["m:latest", "other:latest"],
        )

    n_kills = killed_everywhere(root, lambda: make(stores, "m", text), check)
    assert n_kills > 30
    assert orphans(root) == []
    assert len(list((root / "tmp").iterdir())) == 0


def test_replacing_keeps_the_old_model_or_has_the_new_one(tiny: Tiny, stores: Stores, root: Path) -> None:
    make(stores, "m", f"FROM {tiny.target}\nSYSTEM old\n")
    states = set()

    def check() -> None:
        assert store_problems(root) == []
        states.add(stores.get(ModelName.parse("m")).texts("system"))

    assert killed_everywhere(root, lambda: make(stores, "m", f"FROM {tiny.target}\nSYSTEM new\n"), check) > 20
    assert states == {("old",), ("new",)}
    assert orphans(root) == []


def test_rm_at_every_step(tiny: Tiny, stores: Stores, root: Path) -> None:
    names = [ModelName.parse(f"m{i}") for i in range(2)]
    for name in names:
        make(stores, name.model, f"FROM {tiny.target}\nSYSTEM {name.model}\n")

    def remove() -> None:
        if stores.find(names[0]) is not None:
            remove_model(stores.own, names[0])
        else:  # gone, but not tidied up: any change of the store does that
            copy_model(stores, stores.get(names[1]), ModelName.parse("m2"))

    def check() -> None:
        assert store_problems(root) == []
        assert stores.find(names[1]) is not None

    assert killed_everywhere(root, remove, check) > 10
    assert orphans(root) == []
    assert stores.find(names[0]) is None


def test_cp_at_every_step(tiny: Tiny, stores: Stores, root: Path) -> None:
    make(stores, "m", f"FROM {tiny.target}\n")
    model = stores.get(ModelName.parse("m"))
    destination = ModelName.parse("copy")
    killed_everywhere(
        root,
        lambda: copy_model(stores, model, destination),
        lambda: pytest.fail("broken") if store_problems(root) else None,
    )
    assert stores.get(destination).digest == model.digest
    assert orphans(root) == []


def test_pull_at_every_step(tiny: Tiny, stores: Stores, root: Path, hub: HubServer) -> None:
    data = tiny.target.read_bytes()
    hub.add("user/tiny-GGUF", {"tiny-Q4_K_M.gguf": data, "system": b"s"})
    name = ModelName.parse("hf.co/user/tiny-GGUF:Q4_K_M")
    blob = blob_path(root, digest_of(data))
    pull(name)  # what it imports is imported once, not in every child
    remove_model(stores.own, name)

    def check() -> None:
        assert store_problems(root) == []
        if (model := stores.find(name)) is not None:
            assert model.target_files()[0].read_bytes() == data
            remove_model(stores.own, name)  # so that the next one has to pull, too

    assert killed_everywhere(root, lambda: pull(name), check) > 30
    assert stores.get(name).texts("system") == ("s",)
    assert blob.read_bytes() == data
    assert orphans(root) == []


def test_convert_at_every_step(tiny: Tiny, tmp_path: Path) -> None:
    from eaglecpp.convert import convert_checkpoint

    folder = tmp_path / "out"
    folder.mkdir()
    out = folder / "draft.gguf"

    def check() -> None:
        assert not out.exists() or out.read_bytes() == tiny.draft.read_bytes()
        out.unlink(missing_ok=True)

    def convert() -> None:
        convert_checkpoint(tiny.checkpoint, target=tiny.target, out=out, type="F32")

    assert killed_everywhere(folder, convert, check) > 1
    assert out.read_bytes() == tiny.draft.read_bytes()
