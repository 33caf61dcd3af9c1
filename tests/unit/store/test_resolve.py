# SPDX-License-Identifier: MIT
"""A path, a stored name, Ollama's name, what a package carries: in this order, and nothing is fetched."""

from __future__ import annotations

from pathlib import Path

import pytest

from eaglecpp.errors import ModelNotFoundError
from eaglecpp.modelfile import Modelfile
from eaglecpp.opening.find import find_drafter, find_target
from eaglecpp.references.names import ModelName
from eaglecpp.store import Stores
from eaglecpp.store.create import create_model
from helpers.opening import options_of
from helpers.stores import OllamaModel, Tiny


def make(stores: Stores, name: str, text: str) -> None:
    create_model(stores, ModelName.parse(name), Modelfile.from_text(text), Path.cwd())


def test_a_file_overrides_a_name(
    tiny: Tiny, stores: Stores, ollama: OllamaModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    ollama("library/m/latest", {"model": tiny.target.read_bytes()})
    assert find_target("m").kind == "ollama"
    make(stores, "m", f"FROM {tiny.target}\nDRAFT {tiny.draft}\nSYSTEM s\n")
    resolved = find_target("m")
    assert (resolved.kind, resolved.system, str(resolved.name)) == ("store", "s", "m:latest")
    assert resolved.draft is not None
    Path("m").write_bytes(b"a file of that name")
    assert find_target("m").target == Path("m")
    assert options_of(find_target("m")) == {}


@pytest.mark.parametrize(
    ("reference", "text"),
    [
        ("llama3.2:3b", r"not on this machine .to get it: eaglecpp pull llama3\.2:3b"),
        ("hf.co/u/r:Q4_K_M", r"to get it: eaglecpp pull hf\.co/u/r:Q4_K_M"),
        ("hf://u/r", r"to get it: eaglecpp pull hf://u/r"),
        ("./m.gguf", "no such file"),
        ("m.gguf", "no such file"),
        ("/a/b", "no such file"),
        ("a b", "no such file, and not a model name"),
        ("a/b/c/d", "not a model name"),
        ("qwen3:480b-cloud", "runs in Ollama's cloud"),
        ("", "no such file"),
    ],
)
def test_what_is_not_here_says_how_to_get_it(reference: str, text: str) -> None:
    with pytest.raises(ModelNotFoundError, match=text):
        find_target(reference)


def test_a_drafter_by_name(tiny: Tiny, stores: Stores) -> None:
    assert find_drafter(tiny.draft) == tiny.draft
    make(stores, "pair", f"FROM {tiny.target}\nDRAFT {tiny.draft}\n")
    make(stores, "plain", f"FROM {tiny.target}\n")
    assert find_drafter("pair").read_bytes() == tiny.draft.read_bytes()
    assert find_drafter("plain").read_bytes() == tiny.target.read_bytes()  # a small model that drafts
    with pytest.raises(ModelNotFoundError, match="drafter 'nowhere': not on this machine"):
        find_drafter("nowhere")
