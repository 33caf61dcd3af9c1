# SPDX-License-Identifier: MIT
"""The model that comes with the package: run, listed, shown, copied and built on, but never changed."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from eaglecpp.cli import main
from eaglecpp.cli.models import prepare
from eaglecpp.errors import ModelNotFoundError
from eaglecpp.modelfile import Modelfile
from eaglecpp.modelfile.names import ModelName
from eaglecpp.store import ResolvedModel, Stores, resolve_draft, resolve_model
from eaglecpp.store.create import create_model
from helpers.stores import Tiny


@pytest.fixture
def demo(tiny: Tiny, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that stands in for the package's."""
    folder = tmp_path / "demo-pair"
    folder.mkdir()
    shutil.copy(tiny.target, folder / "demo-target.gguf")
    shutil.copy(tiny.draft, folder / "demo-draft.gguf")
    (folder / "MODEL.json").write_text("{}")
    monkeypatch.setattr("eaglecpp.store.demo.FOLDER", folder)
    monkeypatch.chdir(tmp_path)
    return folder


@pytest.mark.parametrize("name", ["demo:latest", "DEMO", "library/demo"])
def test_the_demo_is_the_pair_in_its_folder(name: str, demo: Path) -> None:
    resolved = resolve_model(name)
    assert (resolved.kind, resolved.target) == ("demo", demo / "demo-target.gguf")
    assert resolved.draft == resolve_draft(name) == demo / "demo-draft.gguf"
    assert resolved.engine_options() == {}
    assert str(resolved.name) == "demo:latest"


def test_a_folder_of_that_name_is_not_in_the_way(demo: Path) -> None:
    Path("demo").mkdir()
    assert prepare("demo").draft == demo / "demo-draft.gguf"


def test_without_it_the_error_says_so_and_nothing_is_fetched(tiny: Tiny, stores: Stores) -> None:
    modelfile, name = Modelfile.from_text("FROM demo\n"), ModelName.parse("demo")
    looks: tuple[Callable[[], object], ...] = (
        lambda: resolve_model("demo"),
        lambda: resolve_draft("demo"),
        lambda: prepare("demo"),
        lambda: stores.get(name),
        lambda: create_model(stores, name, modelfile, Path.cwd(), fetch=lambda name: pytest.fail("fetched")),
    )
    for look in looks:
        with pytest.raises(ModelNotFoundError, match="the demo model is not part of this installation"):
            look()
    assert stores.models() == []


def test_a_stored_model_of_that_name_goes_before_it(tiny: Tiny, demo: Path, stores: Stores) -> None:
    create_model(stores, ModelName.parse("demo"), Modelfile.from_text(f"FROM {tiny.target}\n"), demo)
    assert (resolve_model("demo").kind, resolve_model("demo").draft) == ("store", None)
    assert [model.own for model in stores.models()] == [True]


def test_the_commands_around_it(demo: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["list"]) == 0
    row = capsys.readouterr().out.splitlines()[1].split()
    assert (row[0], row[2:4], row[-1]) == ("demo:latest", ["2.2", "MB"], "eagle3")
    assert main(["show", "demo"]) == 0
    assert f"eaglecpp's, {demo}" in capsys.readouterr().out
    assert main(["rm", "demo"]) == 1
    assert "part of eaglecpp and cannot be removed" in capsys.readouterr().err
    assert main(["pull", "demo"]) == 2
    assert "there is nothing to pull" in capsys.readouterr().err
    assert main(["cp", "demo", "mine"]) == 0
    assert resolve_model("mine").draft is not None
    assert main(["list", "mine"]) == 0
    assert capsys.readouterr().out.splitlines()[-1].split()[-1] == "eagle3"
    assert sorted(path.name for path in demo.iterdir()) == [
        "MODEL.json",
        "demo-draft.gguf",
        "demo-target.gguf",
    ]


def test_a_model_can_be_built_on_it(demo: Path, stores: Stores) -> None:
    def made(name: str, text: str) -> ResolvedModel:
        create_model(stores, ModelName.parse(name), Modelfile.from_text(text), Path.cwd())
        return resolve_model(name)

    m = made("m", "FROM demo\nSYSTEM Be brief.\n")
    assert (m.kind, m.system) == ("store", "Be brief.")
    assert m.draft is not None and m.draft.read_bytes() == (demo / "demo-draft.gguf").read_bytes()
    assert made("n", "FROM m\nDRAFT demo\n").draft == m.draft
