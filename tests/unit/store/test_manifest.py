# SPDX-License-Identifier: MIT
"""Tests that manifests are validated when they are read, and written byte for byte like Ollama's."""

from __future__ import annotations

import hashlib
import json
from typing import Any

import pytest

from eaglecpp.store import StoreError
from eaglecpp.store.manifest import CONFIG, IMAGE, Layer, Manifest

A, B = "sha256:" + "a" * 64, "sha256:" + "b" * 64


def test_bytes_equal_ollamas() -> None:
    manifest = Manifest(
        (Layer(IMAGE + "model", A, 7, origin="llama3.2:3b"), Layer(IMAGE + "draft", B, 3)),
        Layer(CONFIG, B, 3),
    )
    assert manifest.to_bytes().decode() == (
        '{"schemaVersion":2,"mediaType":"application/vnd.docker.distribution.manifest.v2+json",'
        f'"config":{{"mediaType":"application/vnd.docker.container.image.v1+json","digest":"{B}","size":3}},'
        f'"layers":[{{"mediaType":"application/vnd.ollama.image.model","digest":"{A}","size":7,'
        f'"from":"llama3.2:3b"}},'
        f'{{"mediaType":"application/vnd.ollama.image.draft","digest":"{B}","size":3}}]}}\n'
    )
    assert Manifest.from_bytes(manifest.to_bytes(), "x") == manifest
    assert manifest.n_bytes("") == 10  # both layers have the same digest, so they count as one blob


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (b"{", "expected JSON"),
        (b"[" * 100_000, "expected JSON"),
        ({"layers": {}}, "Expected `array`, got `object`"),
        ({"layers": [{"mediaType": "m", "digest": "sha256:../x", "size": 1}]}, "digest: expected sha256:"),
        ({"layers": [{"mediaType": "m", "digest": A, "size": -1}]}, "Expected `int` >= 0"),
        (
            {"layers": [{"mediaType": IMAGE + "model", "digest": A, "size": 1, "name": "../x"}]},
            "bare file name",
        ),
        ({"layers": [], "config": {"digest": "x"}}, "config"),
        ({"mediaType": "application/vnd.ollama.manifest.list.v2+json", "manifests": 7}, "no variant"),
    ],
)
def test_a_bad_manifest_is_refused_with_the_position(value: Any, text: str) -> None:
    data = value if isinstance(value, bytes) else json.dumps(value).encode()
    with pytest.raises(StoreError, match=f"^here: .*{text}"):
        Manifest.from_bytes(data, "here")


def test_the_variant_for_llama_cpp_is_chosen_from_a_list() -> None:
    def child(runner: str, digest: str) -> dict[str, Any]:
        return {"runner": runner, "layers": [{"mediaType": "m", "digest": digest, "size": 1}], "config": {}}

    kind = "application/vnd.ollama.manifest.list.v2+json"
    both = {"mediaType": kind, "manifests": [child("mlx", A), child("ollama", B)]}
    assert Manifest.from_bytes(json.dumps(both).encode(), "x").layers[0].digest == B
    stored = json.dumps(child("", A)).encode()
    digest = f"sha256:{hashlib.sha256(stored).hexdigest()}"
    referring = {"mediaType": kind, "manifests": [{"runner": "llamacpp", "digest": digest}]}
    found = Manifest.from_bytes(json.dumps(referring).encode(), "x", {digest: stored}.__getitem__)
    assert found.layers[0].digest == A
    only_mlx = {"mediaType": kind, "manifests": [child("mlx", A)]}
    with pytest.raises(StoreError, match=r"no variant for llama.cpp; the model has variants for: mlx"):
        Manifest.from_bytes(json.dumps(only_mlx).encode(), "x")
