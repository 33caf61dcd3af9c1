# SPDX-License-Identifier: MIT
"""Tests that any content of a manifest or a blob either gives a value, or raises an error of eaglecpp. Also
tests models of several layers, with any names, kinds, digests and order of the layers: files appear only in
the store's views, and files outside the store do not change.
"""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from eaglecpp.errors import EagleError
from eaglecpp.references import ModelName
from eaglecpp.store.layout import blob_path, is_file_name
from eaglecpp.store.manifest import CONFIG, IMAGE, PRAGMAS, Layer, Manifest
from eaglecpp.store.model import StoredModel
from eaglecpp.store.store import Store
from helpers.opening import options_in

DIGEST = "sha256:" + "a" * 64
SCALARS = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8)
KEYS = st.sampled_from(
    ["layers", "config", "mediaType", "digest", "size", "from", "name", "manifests", "runner", "stop",
     "top_k", "temperature", "use_mmap", "role", "content", "draft", "architecture", "strategy", "x"]
)  # fmt: skip
VALUES = SCALARS | st.sampled_from(
    [DIGEST, "application/vnd.ollama.manifest.list.v2+json", "ollama", "chain:2"]
)
ANY_JSON: st.SearchStrategy[Any] = st.recursive(
    VALUES,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(KEYS, inner, max_size=5),
    max_leaves=12,
)
LAYERS = st.builds(
    Layer,
    st.sampled_from([IMAGE + "model", IMAGE + "draft", "other/type"]),
    st.integers(0, 2**256 - 1).map(lambda n: f"sha256:{n:064x}"),
    st.integers(0, 2**62),
    st.text(max_size=20),
    st.just("") | st.text(max_size=20).filter(is_file_name),
)


@given(st.lists(LAYERS, max_size=5), st.none() | LAYERS)
def test_a_written_manifest_is_read_back(layers: list[Layer], config: Layer | None) -> None:
    manifest = Manifest(tuple(layers), config)
    assert Manifest.from_bytes(manifest.to_bytes(), "x") == manifest


@given(ANY_JSON | st.binary(max_size=50))
def test_any_manifest_is_a_value_or_refused(value: Any) -> None:
    data = value if isinstance(value, bytes) else json.dumps(value).encode()
    try:
        Manifest.from_bytes(data, "x", lambda digest: data)
    except EagleError as error:
        assert str(error).startswith("x")


@pytest.mark.parametrize("kind", ["params", "messages", "pragmas", "config"])
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(value=ANY_JSON | st.binary(max_size=50))
def test_any_content_is_a_value_or_refused(kind: str, value: Any, tmp_path: Path) -> None:
    blob = tmp_path / "blob"
    blob.write_bytes(value if isinstance(value, bytes) else json.dumps(value).encode())
    media_type = {"pragmas": PRAGMAS, "config": CONFIG}.get(kind, IMAGE + kind)
    layer = Layer(media_type, DIGEST, 1)
    manifest = Manifest((), layer) if kind == "config" else Manifest((layer,))
    model = StoredModel(ModelName.parse("m"), manifest, tmp_path, "", lambda layer: blob, b"", 0.0)
    try:
        modelfile = model.modelfile()
    except EagleError:
        return
    assert isinstance(options_in(modelfile), dict)
    assert isinstance(model.draft_kind, str)


# Views of the store

NAMES = [
    "x-00001-of-00002.gguf", "x-00002-of-00002.gguf", "X-00002-of-00002.GGUF", "../x-00002-of-00002.gguf",
    "a/x-00002-of-00002.gguf", "..\\x-00002-of-00002.gguf", "/tmp/x-00002-of-00002.gguf", "", ".",
    "nul-00001-of-00001.gguf", "-00001-of-00002.gguf", "x-00001-of-99999.gguf", "x-00000-of-00000.gguf",
]  # fmt: skip
DIGESTS = ["sha256:" + digit * 64 for digit in "abc"]
KINDS = [IMAGE + kind for kind in ("model", "draft", "adapter", "projector", "params", "template")]
FILE_LAYERS = st.fixed_dictionaries(
    {
        "mediaType": st.sampled_from(KINDS[:1] * 3 + KINDS[1:]),
        "digest": st.sampled_from(DIGESTS),
        "size": st.just(1),
        "name": st.sampled_from(NAMES) | st.text(max_size=20),
    }
)


@given(st.lists(FILE_LAYERS, max_size=4))
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
