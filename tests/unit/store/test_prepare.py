# SPDX-License-Identifier: MIT
"""`--draft auto` on the command line: the model's own drafter, its repository's, the table's, or none."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from eaglecpp.cli.models import prepare
from eaglecpp.convert import ConvertError
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
    first = prepare(REPO, "auto").draft
    assert first is not None and first.name.startswith("sha256-")
    n_requests = len(known.content_requests())
    assert prepare(REPO, "auto").draft == first
    shutil.copy(tiny.target, tmp_path / "tiny-Q8_0.gguf")
    assert prepare(str(tmp_path / "tiny-Q8_0.gguf"), "auto").draft == first  # a file is known by its name
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    assert prepare(REPO, "auto").draft == first
    assert len(known.content_requests()) == n_requests


def test_the_drafter_beside_the_target_goes_before_the_tables(
    known: HubServer, tiny: Tiny, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = tiny.draft.read_bytes()
    known.add("user/tiny-GGUF", {"t-Q8_0.gguf": tiny.target.read_bytes(), "eagle3-F32.gguf": data})
    draft = prepare(REPO, "auto").draft
    assert draft is not None and draft.read_bytes() == data
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    assert prepare(REPO, "auto").draft == draft


def test_a_drafter_that_does_not_fit_or_cannot_be_had_leaves_the_model_running(
    known: HubServer, tiny: Tiny, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copy(tiny.other, tmp_path / "tiny.gguf")
    assert prepare(str(tmp_path / "tiny.gguf"), "auto").draft is None
    assert "running without a drafter: target" in capsys.readouterr().err
    with pytest.raises(ConvertError, match="hidden size"):
        prepare(str(tmp_path / "tiny.gguf"), "hf.co/maker/eagle3")
    del known.repos["maker/eagle3"]
    assert prepare(REPO, "auto").draft is None
    assert "running without a drafter: maker/eagle3" in capsys.readouterr().err


def test_without_a_known_drafter_that_is_said(
    known: HubServer, tiny: Tiny, capsys: pytest.CaptureFixture[str]
) -> None:
    assert prepare(str(tiny.target), "auto").draft is None
    assert "no drafter is known for" in capsys.readouterr().err


def test_nothing_is_fetched_for_plain_decoding(known: HubServer) -> None:
    assert prepare(REPO, "auto", wants_draft=False).draft is None
    assert not any("maker" in request.path for request in known.log)
