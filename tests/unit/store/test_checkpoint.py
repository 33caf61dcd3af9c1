# SPDX-License-Identifier: MIT
"""`convert` is handed local files: what is on the Hub is fetched first, by the downloader of the store."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from eaglecpp.cli import main
from eaglecpp.convert import read_keys
from eaglecpp.errors import ModelNotFoundError
from eaglecpp.opening.checkpoint import local_checkpoint
from eaglecpp.store import DownloadError, OfflineError
from helpers.hub_server import HubServer
from helpers.stores import Tiny, put_into_cache


@pytest.fixture
def maker(hub: HubServer, tiny: Tiny) -> HubServer:
    """A Hub with the tiny drafter's checkpoint."""
    hub.add("maker/draft", {path.name: path.read_bytes() for path in tiny.checkpoint.iterdir()})
    return hub


def test_a_checkpoint_of_the_hub_is_converted_and_named_as_the_source(
    maker: HubServer, tiny: Tiny, tmp_path: Path
) -> None:
    for name in ("one.gguf", "two.gguf"):
        out = tmp_path / name
        assert main(["convert", "hf.co/maker/draft", "--target", str(tiny.target), "-o", str(out)]) == 0
        assert read_keys(out)["eaglecpp.source"] == "maker/draft"
    assert len(maker.content_requests()) == 1, "what was downloaded once is not downloaded again"


@pytest.mark.parametrize("refused", [("symlink",), ("symlink", "link")])
@pytest.mark.parametrize("is_cached", [False, True])
def test_a_system_that_makes_no_links_converts_too(
    refused: tuple[str, ...],
    is_cached: bool,
    maker: HubServer,
    tiny: Tiny,
    home: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Windows: `symlink` for ordinary users, `link` between two drives."""

    def refuse(*args: object, **options: object) -> None:
        raise OSError(22, "A required privilege is not held by the client", "x", 1314)

    if is_cached:
        put_into_cache(
            home, "maker/draft", {path.name: path.read_bytes() for path in tiny.checkpoint.iterdir()}
        )
    for name in refused:
        monkeypatch.setattr(os, name, refuse)
    with local_checkpoint("hf.co/maker/draft") as found:
        for path in tiny.checkpoint.iterdir():
            assert (found.path / path.name).read_bytes() == path.read_bytes()


def test_what_cannot_be_had_is_said(maker: HubServer, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ModelNotFoundError, match=r"hf\.co/maker/draft"), local_checkpoint("maker/draft"):
        pass
    maker.add("maker/empty", {"README.md": b"nothing"})
    with pytest.raises(DownloadError, match="it contains no drafter"), local_checkpoint("hf.co/maker/empty"):
        pass
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(OfflineError, match="offline mode"), local_checkpoint("hf.co/maker/draft"):
        pass
