# SPDX-License-Identifier: MIT
"""Fuzzes what is read from a store: manifest, config, parameters, messages and pragmas.

Any bytes, and any JSON of the right keys and wrong values, are a value, or refused with an error of ours.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import atheris
from atheris_target import fuzz, instrumented

with instrumented():
    from eaglecpp.errors import EagleError
    from eaglecpp.references.names import ModelName
    from eaglecpp.store.manifest import CONFIG, IMAGE, PRAGMAS, Layer, Manifest
    from eaglecpp.store.model import StoredModel
    from eaglecpp.store.stored_modelfile import stored_modelfile

DIGEST = "sha256:" + "a" * 64
KINDS = (IMAGE + "params", IMAGE + "messages", PRAGMAS, IMAGE + "template", IMAGE + "license")
SEEDS = [
    "J\0\5\1\2\0abcdefgh",
    f'0{{"layers":[{{"mediaType":"m","digest":"{DIGEST}","size":1}}],"config":{{"digest":"{DIGEST}","size":2}}}}',
    '0{"mediaType":"application/vnd.ollama.manifest.list.v2+json","manifests":[{"runner":"ollama","layers":[]}]}',
    '1{"model_format":"gguf","draft":{"architecture":"eagle3"},"renderer":"x"}',
    '2{"stop":["a"],"temperature":0.5,"use_mmap":true,"top_k":5,"mirostat":1,"x":null}',
    '3[{"role":"user","content":"hi"}]',
    '4[["strategy","chain:2"],["n_ctx","512"],["unknown","1"]]',
]
KEYS = (
    "layers", "config", "mediaType", "digest", "size", "from", "name", "manifests", "runner", "model_format",
    "draft", "architecture", "stop", "temperature", "top_k", "use_mmap", "role", "content",
    "decidedHere",
)  # fmt: skip
LEAVES = (None, True, 0, 1, -1, 1e300, "", "x", DIGEST, "user", "settings", "strategy", "chain:2", "ollama")
LIST = "application/vnd.ollama.manifest.list.v2+json"
WORDS = [
    '"layers":', '"digest":', '"size":', '"config":', '"from":', "true", "null", "-1", "1e999", "[[", "{}",
    "[]", "[1]", '""',
]  # fmt: skip


class Blob:
    """A blob in memory: opening a file takes longer than reading all the rest."""

    content = b""

    def read_bytes(self) -> bytes:
        return self.content


BLOB = Blob()


def test_one(data: bytes) -> None:
    """The first byte says what the rest is; behind a J, the rest chooses what JSON to make."""
    kind, content = data[:1], data[1:]
    if kind == b"J":
        choices = atheris.FuzzedDataProvider(content)
        kind = b"%d" % choices.ConsumeIntInRange(0, 6)
        content = json.dumps(value(choices, 3)).encode()
    try:
        if kind == b"0":
            manifest = Manifest.from_bytes(content, "fuzz", lambda digest: content)
            assert Manifest.from_bytes(manifest.to_bytes(), "again") == manifest
            return
        BLOB.content = content
        read_model(kind)
    except EagleError:
        pass


def value(choices: Any, depth: int) -> Any:
    """A JSON value. choices: FuzzedDataProvider"""
    shape = choices.ConsumeIntInRange(0, 5 if depth else 1)
    if shape < 2:
        return choices.PickValueInList([*LEAVES, LIST])
    n = choices.ConsumeIntInRange(0, 4)
    if shape < 4:
        return [value(choices, depth - 1) for _ in range(n)]
    return {choices.PickValueInList(list(KEYS)): value(choices, depth - 1) for _ in range(n)}


def read_model(kind: bytes) -> None:
    number = kind[0] - ord("2") if kind and b"2" <= kind <= b"6" else -1
    layers = (Layer(KINDS[number], DIGEST, 1),) if number >= 0 else ()
    config = Layer(CONFIG, DIGEST, 1) if number < 0 else None
    name = ModelName.parse("fuzz")
    manifest = Manifest(layers, config)
    model = StoredModel(name, manifest, Path("m"), Path(), "", lambda layer: BLOB, b"", 0.0)  # type: ignore
    stored_modelfile(model).engine_options()
    assert isinstance(model.draft_architecture, str)


if __name__ == "__main__":
    fuzz(test_one, SEEDS, WORDS)
