# SPDX-License-Identifier: MIT
"""Tests what is fetched before a model is opened or converted. `--draft auto` chooses the model's own
drafter. If there is none, it chooses the drafter in the model's repository, then the drafter in the table of
known drafters, and otherwise no drafter. `convert` gets local files, even if the Hub has files of the same
name.
"""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest

from eaglecpp.cli import main
from eaglecpp.convert import read_keys
from eaglecpp.convert.errors import ConvertError
from eaglecpp.opening.fetch import fetch, local_checkpoint
from eaglecpp.store import DownloadError, OfflineError, drafters
from eaglecpp.store.drafters import KnownDrafter
from helpers.hub_server import HubServer
from helpers.stores import Tiny, files_of

REPO = "hf.co/user/tiny-GGUF"


@pytest.fixture
def known(hub: HubServer, tiny: Tiny, monkeypatch: pytest.MonkeyPatch) -> HubServer:
    """Starts a Hub with the target. Another repository of the Hub has the drafter's checkpoint that the table
    names for this target.
    """
    row = KnownDrafter("maker/eagle3", ("user/tiny",), "eagle", "default", "a test")
    monkeypatch.setattr("eaglecpp.store.drafters.known_drafters", lambda: (row,))
    hub.add("user/tiny-GGUF", {"t-Q8_0.gguf": tiny.target.read_bytes()})
    hub.add("maker/eagle3", files_of(tiny))
    return hub


def test_the_tables_drafter_is_fetched_and_converted_once(
    known: HubServer, tiny: Tiny, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = fetch(REPO, "auto").draft
    assert first is not None and first.name.startswith("sha256-")
    n_requests = len(known.content_requests())
    assert fetch(REPO, "auto").draft == first
    shutil.copy(tiny.target, tmp_path / "tiny-Q8_0.gguf")
    # The target is recognised by the name of its file.
    assert fetch(str(tmp_path / "tiny-Q8_0.gguf"), "auto").draft == first
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    assert fetch(REPO, "auto").draft == first
    assert len(known.content_requests()) == n_requests


def test_the_drafter_next_to_the_target_overrides_the_tables(
    known: HubServer, tiny: Tiny, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = tiny.draft.read_bytes()
    known.add("user/tiny-GGUF", {"t-Q8_0.gguf": tiny.target.read_bytes(), "eagle3-Q8_0.gguf": data})
    draft = fetch(f"{REPO}:Q8_0", "auto").draft
    assert draft is not None and draft.read_bytes() == data
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    assert fetch(f"{REPO}:Q8_0", "auto").draft == draft, "offline, the drafter must be found in the cache"


def test_without_a_fitting_drafter_the_text_drafts(known: HubServer, tiny: Tiny, tmp_path: Path) -> None:
    shutil.copy(tiny.other, tmp_path / "tiny.gguf")
    found = fetch(str(tmp_path / "tiny.gguf"), "auto")
    assert found.draft is None and found.drafts_text
    assert found.notices[0].startswith("maker/eagle3: target ")
    with pytest.raises(ConvertError, match="hidden size"):
        fetch(str(tmp_path / "tiny.gguf"), "hf.co/maker/eagle3")
    del known.repos["maker/eagle3"]
    found = fetch(REPO, "auto")
    assert found.draft is None and found.drafts_text
    assert re.fullmatch(r"maker/eagle3: .*; drafting from the text itself", found.notices[0])


def test_the_next_known_drafter_is_taken_if_the_first_is_gated(
    known: HubServer, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = (KnownDrafter("maker/gated", ("user/tiny",), source="a test"), *drafters.known_drafters())
    monkeypatch.setattr("eaglecpp.store.drafters.known_drafters", lambda: rows)
    known.add("maker/gated", {"eagle3-Q8_0.gguf": b"x"}, gated=True)
    found = fetch(REPO, "auto")
    assert found.draft is not None
    assert re.fullmatch(r"maker/gated: .*; using maker/eagle3 instead", found.notices[0])
    assert main(["pull", REPO, "--draft", "auto"]) == 0
    assert "using maker/eagle3 instead" in capsys.readouterr().err


@pytest.fixture
def maker(hub: HubServer, tiny: Tiny) -> HubServer:
    """Starts a Hub with the tiny drafter's checkpoint."""
    hub.add("maker/draft", files_of(tiny))
    return hub


def test_a_checkpoint_of_the_hub_is_converted_and_named_as_the_source(
    maker: HubServer, tiny: Tiny, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for out in (tmp_path / "one.gguf", tmp_path / "two.gguf"):
        assert main(["convert", "hf.co/maker/draft", "--target", str(tiny.target), "-o", str(out)]) == 0
        assert read_keys(out)["eaglecpp.source"] == "maker/draft"
        assert capsys.readouterr().err.endswith(f"use it: `eaglecpp run {tiny.target} --draft {out}`\n")
    assert len(maker.content_requests()) == 1, "the second run must download nothing"


def test_unavailable_models_are_reported(maker: HubServer, monkeypatch: pytest.MonkeyPatch) -> None:
    maker.add("maker/empty", {"README.md": b"nothing"})
    with pytest.raises(DownloadError, match="no drafter in"), local_checkpoint("hf.co/maker/empty"):
        pass
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(OfflineError, match="offline mode"), local_checkpoint("hf.co/maker/draft"):
        pass
