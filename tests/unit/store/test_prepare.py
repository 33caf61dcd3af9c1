# SPDX-License-Identifier: MIT
"""`--draft auto` on the command line: the model's own drafter, its repository's, the table's, or none."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from eaglecpp.convert.errors import ConvertError
from eaglecpp.opening.fetch import fetch
from eaglecpp.store.drafters import KnownDrafter
from helpers.hub_server import HubServer
from helpers.stores import Tiny

REPO = "hf.co/user/tiny-GGUF"


@pytest.fixture
def known(hub: HubServer, tiny: Tiny, monkeypatch: pytest.MonkeyPatch) -> HubServer:
    """A Hub with the target and, elsewhere, the checkpoint that the table names for it."""
    row = KnownDrafter("maker/eagle3", ("user/tiny",), "eagle", "default", "a test")
    monkeypatch.setattr("eaglecpp.store.drafters.known_drafters", lambda: (row,))
    hub.add("user/tiny-GGUF", {"t-Q8_0.gguf": tiny.target.read_bytes()})
    hub.add("maker/eagle3", {path.name: path.read_bytes() for path in tiny.checkpoint.iterdir()})
    return hub


def test_the_tables_drafter_is_fetched_and_converted_once(
    known: HubServer, tiny: Tiny, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = fetch(REPO, "auto").draft
    assert first is not None and first.name.startswith("sha256-")
    n_requests = len(known.content_requests())
    assert fetch(REPO, "auto").draft == first
    shutil.copy(tiny.target, tmp_path / "tiny-Q8_0.gguf")
    assert fetch(str(tmp_path / "tiny-Q8_0.gguf"), "auto").draft == first  # a file is known by its name
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    assert fetch(REPO, "auto").draft == first
    assert len(known.content_requests()) == n_requests


def test_the_drafter_beside_the_target_overrides_the_tables(
    known: HubServer, tiny: Tiny, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = tiny.draft.read_bytes()
    known.add("user/tiny-GGUF", {"t-Q8_0.gguf": tiny.target.read_bytes(), "eagle3-F32.gguf": data})
    draft = fetch(REPO, "auto").draft
    assert draft is not None and draft.read_bytes() == data
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    assert fetch(REPO, "auto").draft == draft


def test_a_drafter_that_does_not_fit_or_cannot_be_had_leaves_the_model_running(
    known: HubServer, tiny: Tiny, tmp_path: Path
) -> None:
    shutil.copy(tiny.other, tmp_path / "tiny.gguf")
    found = fetch(str(tmp_path / "tiny.gguf"), "auto")
    assert found.draft is None
    assert found.notices[0].startswith("running without a drafter: target")
    with pytest.raises(ConvertError, match="hidden size"):
        fetch(str(tmp_path / "tiny.gguf"), "hf.co/maker/eagle3")
    del known.repos["maker/eagle3"]
    found = fetch(REPO, "auto")
    assert found.draft is None
    assert found.notices[0].startswith("running without a drafter: maker/eagle3")
