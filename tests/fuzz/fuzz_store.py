# SPDX-License-Identifier: MIT
"""Fuzzes what is read from a store: manifest, config, parameters, messages and pragmas.

Any bytes are a value, or refused with an error of ours.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import atheris

with atheris.instrument_imports(include=["eaglecpp"]):
    from atheris_target import fuzz

    from eaglecpp.errors import EagleError
    from eaglecpp.modelfile.names import ModelName
    from eaglecpp.store.manifest import CONFIG, IMAGE, PRAGMAS, Layer, Manifest
    from eaglecpp.store.model import StoredModel
    from eaglecpp.store.stored_modelfile import stored_modelfile

DIGEST = "sha256:" + "a" * 64
KINDS = (IMAGE + "params", IMAGE + "messages", PRAGMAS, IMAGE + "template", IMAGE + "license")
SEEDS = [
    f'0{{"layers":[{{"mediaType":"m","digest":"{DIGEST}","size":1}}],"config":{{"digest":"{DIGEST}","size":2}}}}',
    '0{"mediaType":"application/vnd.ollama.manifest.list.v2+json","manifests":[{"runner":"ollama","layers":[]}]}',
    '1{"model_format":"gguf","draft":{"architecture":"eagle3"},"renderer":"x"}',
    '2{"stop":["a"],"temperature":0.5,"use_mmap":true,"top_k":5,"mirostat":1,"x":null}',
    '3[{"role":"user","content":"hi"}]',
    '4[["strategy","chain:2"],["n_ctx","512"],["unknown","1"]]',
]
WORDS = [
    '"layers":',
    '"digest":',
    '"size":',
    '"config":',
    '"from":',
    "true",
    "null",
    "-1",
    "1e999",
    "[[",
    "{}",
]
FILE = Path(tempfile.mkdtemp()) / "blob"


def test_one(data: bytes) -> None:
    """The first byte says what the rest is."""
    kind, content = data[:1], data[1:]
    try:
        if kind == b"0":
            manifest = Manifest.from_bytes(content, "fuzz", lambda digest: content)
            assert Manifest.from_bytes(manifest.to_bytes(), "again") == manifest
            return
        FILE.write_bytes(content)
        read_model(kind)
    except EagleError:
        pass


def read_model(kind: bytes) -> None:
    number = kind[0] - ord("2") if kind and b"2" <= kind <= b"6" else -1
    layers = (Layer(KINDS[number], DIGEST, 1),) if number >= 0 else ()
    config = Layer(CONFIG, DIGEST, 1) if number < 0 else None
    name = ModelName.parse("fuzz")
    model = StoredModel(name, Manifest(layers, config), FILE, FILE.parent, True, lambda layer: FILE)
    stored_modelfile(model).engine_options()
    assert isinstance(model.config.draft_architecture, str)


if __name__ == "__main__":
    fuzz(test_one, SEEDS, WORDS)
