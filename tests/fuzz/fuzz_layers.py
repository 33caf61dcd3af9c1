# SPDX-License-Identifier: MIT
"""Fuzzes models of several layers: whatever their names, sizes and order, files appear in the store's views
only, and nothing outside is touched.
"""

from __future__ import annotations

import json
import tempfile
from pathlib import Path

import atheris
from atheris_target import fuzz, instrumented

with instrumented():
    from eaglecpp.errors import EagleError
    from eaglecpp.references.names import ModelName
    from eaglecpp.store.layout import blob_path
    from eaglecpp.store.manifest import IMAGE
    from eaglecpp.store.store import Store

NAMES = (
    "x-00001-of-00002.gguf", "x-00002-of-00002.gguf", "X-00002-of-00002.GGUF", "../x-00002-of-00002.gguf",
    "a/x-00002-of-00002.gguf", "..\\x-00002-of-00002.gguf", "/tmp/x-00002-of-00002.gguf", "", ".",
    "nul-00001-of-00001.gguf", "-00001-of-00002.gguf", "x-00001-of-99999.gguf", "x-00000-of-00000.gguf",
)  # fmt: skip
KINDS = ("model", "model", "model", "draft", "adapter", "projector", "params", "template")
SEEDS = ["\0\1abcd", "\2\0\1\0\0", "zzzzzzzzzzzzzzzz"]
NAME = ModelName.parse("m:1")

FOLDER = Path(tempfile.mkdtemp())
ROOT = FOLDER / "outer" / "store"
DIGESTS = ["sha256:" + digit * 64 for digit in "abc"]


def prepare() -> None:
    for digest in DIGESTS:
        path = blob_path(ROOT, digest)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"x")
    (ROOT / "manifests/registry.ollama.ai/library/m").mkdir(parents=True)


def test_one(data: bytes) -> None:
    choices = atheris.FuzzedDataProvider(data)
    layers = []
    for _ in range(choices.ConsumeIntInRange(0, 4)):
        given = choices.ConsumeBool()
        name = choices.PickValueInList(list(NAMES)) if given else choices.ConsumeUnicode(20)
        kind = choices.PickValueInList(list(KINDS))
        digest = choices.PickValueInList(DIGESTS)
        layers.append({"mediaType": IMAGE + kind, "digest": digest, "size": 1, "name": name})
    manifest = json.dumps({"layers": layers}).encode("utf-8", "surrogatepass")
    (ROOT / "manifests/registry.ollama.ai/library/m/1").write_bytes(manifest)
    try:
        model = Store(ROOT).find(NAME)
        assert model is not None
        files = model.target_files()
    except EagleError:
        files = ()
    for file in files:
        assert file.resolve().is_relative_to(ROOT.resolve()) and file.read_bytes() == b"x"
    allowed = {"manifests", "blobs", "views"}
    assert {entry.name for entry in ROOT.iterdir()} <= allowed
    assert [entry.name for entry in FOLDER.iterdir()] == ["outer"]
    assert [entry.name for entry in ROOT.parent.iterdir()] == ["store"]
    for view in (ROOT / "views").glob("*"):
        assert view.is_dir() and all(entry.is_file() for entry in view.iterdir())


if __name__ == "__main__":
    prepare()
    fuzz(test_one, SEEDS, [name for name in NAMES if name])
