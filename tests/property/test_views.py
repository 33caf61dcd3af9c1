# SPDX-License-Identifier: MIT
"""Tests models of several layers, with any names, kinds, digests and order of the layers. Files appear only
in the store's views, and files outside the store do not change.
"""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from eaglecpp.errors import EagleError
from eaglecpp.references import ModelName
from eaglecpp.store.layout import blob_path
from eaglecpp.store.manifest import IMAGE
from eaglecpp.store.store import Store

NAMES = [
    "x-00001-of-00002.gguf", "x-00002-of-00002.gguf", "X-00002-of-00002.GGUF", "../x-00002-of-00002.gguf",
    "a/x-00002-of-00002.gguf", "..\\x-00002-of-00002.gguf", "/tmp/x-00002-of-00002.gguf", "", ".",
    "nul-00001-of-00001.gguf", "-00001-of-00002.gguf", "x-00001-of-99999.gguf", "x-00000-of-00000.gguf",
]  # fmt: skip
DIGESTS = ["sha256:" + digit * 64 for digit in "abc"]
KINDS = [IMAGE + kind for kind in ("model", "draft", "adapter", "projector", "params", "template")]
LAYERS = st.fixed_dictionaries(
    {
        "mediaType": st.sampled_from(KINDS[:1] * 3 + KINDS[1:]),
        "digest": st.sampled_from(DIGESTS),
        "size": st.just(1),
        "name": st.sampled_from(NAMES) | st.text(max_size=20),
    }
)


@given(st.lists(LAYERS, max_size=4))
def test_layers_appear_only_in_views(layers: list[dict[str, Any]]) -> None:
    with tempfile.TemporaryDirectory() as name:
        root = Path(name) / "outer" / "store"
        for digest in DIGESTS:
            blob_path(root, digest).parent.mkdir(parents=True, exist_ok=True)
            blob_path(root, digest).write_bytes(b"x")
        manifest = root / "manifests/registry.ollama.ai/library/m/1"
        manifest.parent.mkdir(parents=True)
        manifest.write_text(json.dumps({"layers": layers}), encoding="utf-8")
        try:
            model = Store(root).find(ModelName.parse("m:1"))
            assert model is not None
            files = model.target_files()
        except EagleError:
            files = ()
        for file in files:
            assert file.resolve().is_relative_to(root.resolve()) and file.read_bytes() == b"x"
        assert {entry.name for entry in root.iterdir()} <= {"manifests", "blobs", "views"}
        assert [entry.name for entry in Path(name).iterdir()] == ["outer"]
        assert [entry.name for entry in root.parent.iterdir()] == ["store"]
        for view in (root / "views").glob("*"):
            assert view.is_dir() and all(entry.is_file() for entry in view.iterdir())
