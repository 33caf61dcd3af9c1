# SPDX-License-Identifier: MIT
"""Names that others give to files: bare names only, and nothing is ever written outside its folder."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from eaglecpp.references.names import ModelName
from eaglecpp.store import StoreError, Stores
from eaglecpp.store.layout import child, is_file_name
from eaglecpp.store.manifest import CONFIG
from eaglecpp.store.remote.pull import pull
from helpers.hub_server import HubServer, layer_entry
from helpers.stores import Tiny

BAD = [
    "", ".", "..", "../x-00001-of-00002.gguf", "a/b", "/etc/passwd", "a\\b", "..\\..\\x", "C:x",
    "x.gguf:stream", "nul", "CON.gguf", "com1.tar.gz", "LPT9 .txt", "x.", "x ", ".hidden", "x\0y", "x\ny",
    "x" * 300, None, 7,
]  # fmt: skip


@pytest.mark.parametrize("name", BAD)
def test_what_is_no_bare_file_name_is_refused(name: Any, tmp_path: Path) -> None:
    assert not is_file_name(name)
    with pytest.raises(StoreError, match="bare name of a file"):
        child(tmp_path, name)


@given(st.text(alphabet=st.sampled_from("./\\:aC-\0 nulNUL1"), max_size=12))
def test_a_child_is_never_outside_its_folder(name: str) -> None:
    folder = Path("/some/folder")
    if is_file_name(name):
        assert child(folder, name).parent == folder
        assert Path(name).name == name


def hostile(hub: HubServer, tiny: Tiny, names: tuple[str, str]) -> str:
    data = (tiny.target.read_bytes(), tiny.draft.read_bytes())
    config = b'{"model_format":"gguf"}'
    layers = [layer_entry("model", blob) | {"name": name} for blob, name in zip(data, names, strict=True)]
    manifest = {"schemaVersion": 2, "config": layer_entry(CONFIG, config), "layers": layers}
    blobs = {entry["digest"]: blob for entry, blob in zip(layers, data, strict=True)}
    hub.add_manifest("library/evil:1", manifest, blobs | {manifest["config"]["digest"]: config})
    return f"http://{hub.host}/library/evil:1"


@pytest.mark.parametrize("prefix", ["../../../../victim/", "{root}/", "..\\..\\victim\\", "C:"])
def test_a_manifest_cannot_name_files_elsewhere(
    prefix: str, hub: HubServer, tiny: Tiny, stores: Stores, home: Path
) -> None:
    victim = home / "victim"
    victim.mkdir()
    mine = victim / "x-00001-of-00002.gguf"
    mine.write_bytes(b"precious")
    stem = prefix.format(root=victim) + "x"
    name = hostile(hub, tiny, (f"{stem}-00001-of-00002.gguf", f"{stem}-00002-of-00002.gguf"))
    with pytest.raises(StoreError, match="name: expected the bare name of a file"):
        pull(ModelName.parse(name), insecure=True)
    assert mine.read_bytes() == b"precious"
    assert [path for path in home.rglob("*") if path.suffix == ".gguf"] == [mine]


def test_a_repository_of_the_hub_cannot_name_files_elsewhere(
    hub: HubServer, tiny: Tiny, stores: Stores
) -> None:
    data = tiny.target.read_bytes()
    hub.add("user/evil", {f"..\\..\\x-Q4_K_M-0000{i}-of-00002.gguf": data + bytes([i]) for i in (1, 2)})
    with pytest.raises(StoreError, match="bare name of a file"):
        pull(ModelName.parse("hf.co/user/evil:Q4_K_M"))
