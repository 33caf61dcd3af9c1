# SPDX-License-Identifier: MIT
"""Tests the paths of model names, which are as in Ollama, and the choice between several things with the same
name. Manifests are validated when they are read, and written byte for byte like Ollama's.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest

from eaglecpp.opening.find import find_drafter, find_target
from eaglecpp.references import ModelName, canonical
from eaglecpp.store import StoreError, Stores
from eaglecpp.store.layout import (
    blob_path,
    child,
    default_root,
    find_manifest,
    is_file_name,
    manifest_path,
    manifests,
)
from eaglecpp.store.manifest import CONFIG, IMAGE, Layer, Manifest
from eaglecpp.store.remote.pull import pull
from helpers.hub_server import HubServer
from helpers.stores import OllamaModel, Tiny, make_model


@pytest.mark.parametrize(
    ("text", "path", "shown"),
    [
        ("llama3.2", "registry.ollama.ai/library/llama3.2/latest", "llama3.2:latest"),
        ("me/m", "registry.ollama.ai/me/m/latest", "me/m:latest"),
        ("qwen3:4b:local", "registry.ollama.ai/library/qwen3/4b", "qwen3:4b"),
        ("hf.co/b/L-3B-GGUF:Q4_K_M", "hf.co/b/L-3B-GGUF/Q4_K_M", "hf.co/b/L-3B-GGUF:Q4_K_M"),
        ("huggingface.co/u/r:file.gguf", "hf.co/u/r/file.gguf", "huggingface.co/u/r:file.gguf"),
        ("ollama.com/library/m:t", "registry.ollama.ai/library/m/t", "ollama.com/library/m:t"),
        ("http://localhost:5000/ns/m:t", "localhost:5000/ns/m/t", "http://localhost:5000/ns/m:t"),
    ],
)
def test_a_name_is_a_path_and_the_path_is_the_name(text: str, path: str, shown: str, tmp_path: Path) -> None:
    name = ModelName.parse(text)
    assert str(name) == shown and ModelName.parse(shown) == name
    file = manifest_path(tmp_path, name)
    assert file == tmp_path / "manifests" / path
    file.parent.mkdir(parents=True)
    for other in (file, file.with_name(".latest.abc.tmp"), file.with_name("-x")):
        other.touch()
    assert find_manifest(tmp_path, name) == file
    assert [found.parts for found, _ in manifests(tmp_path)] == [canonical(name).parts]
    assert find_manifest(tmp_path, ModelName.parse("absent:t")) is None


def test_case_on_disk_does_not_matter_and_is_kept(tmp_path: Path) -> None:
    file = tmp_path / "manifests" / "registry.ollama.ai" / "Library" / "LLaMA3.2" / "3B"
    file.parent.mkdir(parents=True)
    file.touch()
    assert find_manifest(tmp_path, ModelName.parse("llama3.2:3b")) == file
    assert [str(name) for name, _ in manifests(tmp_path)] == ["Library/LLaMA3.2:3B"]


def test_digests_are_checked_before_they_become_paths(tmp_path: Path) -> None:
    assert blob_path(tmp_path, "sha256:" + "A" * 64) == tmp_path / "blobs" / f"sha256-{'a' * 64}"
    for bad in ("sha256:../../etc/passwd", "sha256:" + "a" * 63, "md5:" + "a" * 64, ""):
        with pytest.raises(StoreError, match="is not a digest"):
            blob_path(tmp_path, bad)


def test_the_store_is_in_the_users_folder(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert default_root() == home / ".local" / "share" / "eaglecpp" / "models"
    monkeypatch.setenv("EAGLECPP_MODELS", "~/with blanks")
    assert default_root() == home / "with blanks"


def test_a_file_comes_before_a_name_and_ours_before_ollamas(
    tiny: Tiny, stores: Stores, ollama: OllamaModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    ollama("library/m/latest", {"model": tiny.target.read_bytes()})
    assert find_target("m").kind == "ollama"
    # a small model can also be a drafter
    assert find_drafter("m").read_bytes() == tiny.target.read_bytes()
    make_model(stores, f"FROM {tiny.target}\nDRAFT {tiny.draft}\nSYSTEM s\n")
    resolved = find_target("m")
    assert (resolved.kind, resolved.modelfile.system, str(resolved.name)) == ("store", "s", "m:latest")
    assert [(str(model.name), model.own) for model in Stores.open().models()] == [("m:latest", True)]
    assert find_drafter("m").read_bytes() == tiny.draft.read_bytes()
    Path("m").write_bytes(b"a file of that name")
    assert (find_target("m").kind, find_target("m").target) == ("path", Path("m").absolute())


# A file name from an untrusted source must be a plain name. No file may be written outside its folder.

BAD = [
    "", ".", "..", "../x-00001-of-00002.gguf", "a/b", "/etc/passwd", "a\\b", "..\\..\\x", "C:x",
    "x.gguf:stream", "nul", "CON.gguf", "com1.tar.gz", "LPT9 .txt", "x.", "x ", ".hidden", "x\0y", "x\ny",
    "x" * 300, None, 7,
]  # fmt: skip


@pytest.mark.parametrize("name", BAD)
def test_a_file_name_with_a_path_is_refused(name: Any, tmp_path: Path) -> None:
    assert not is_file_name(name)
    with pytest.raises(StoreError, match="bare file name"):
        child(tmp_path, name)


def test_a_repository_of_the_hub_cannot_name_files_elsewhere(hub: HubServer, tiny: Tiny) -> None:
    data = tiny.target.read_bytes()
    hub.add("user/evil", {f"..\\..\\x-Q4_K_M-0000{i}-of-00002.gguf": data + bytes([i]) for i in (1, 2)})
    with pytest.raises(StoreError, match="bare file name"):
        pull(ModelName.parse("hf.co/user/evil:Q4_K_M"))


# Manifests


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
