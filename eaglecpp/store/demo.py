# SPDX-License-Identifier: MIT
"""The pair that comes with the package, `eaglecpp/demo/`, as the model `demo`: in no store, only read.

`demo_files` is what running it needs, at no cost; `demo_model` is the same as any stored model, for those
that list, show, copy or build on it, and reads the files for their digests. A stored model called demo goes
before it.
"""

from __future__ import annotations

import hashlib
from functools import cached_property
from pathlib import Path

from eaglecpp.errors import ModelNotFoundError
from eaglecpp.modelfile.names import ModelName

from .manifest import IMAGE, Config, Layer, Manifest
from .model import StoredModel
from .store import file_digest

__all__ = ["NAME", "demo_files", "demo_model", "is_demo"]

NAME = ModelName.parse("demo")
FOLDER = Path(__file__).parents[1] / "demo"


def is_demo(name: ModelName) -> bool:
    """Whether a name means the built-in model, unless a store has one of that name."""
    return name.same_as(NAME)


def demo_files() -> tuple[Path, Path]:
    """Target and drafter. Raises ModelNotFoundError where the package came without them."""
    target, draft = (sorted(FOLDER.glob(f"*{word}.gguf")) for word in ("target", "draft"))
    if not (target and draft):
        raise ModelNotFoundError(
            f"the demo model is not part of this installation: expected demo-target.gguf and "
            f"demo-draft.gguf in {FOLDER}; install eaglecpp from a release, or name another model"
        )
    return target[0], draft[0]


def demo_model() -> StoredModel | None:
    """The pair as a model; None where the package came without it."""
    try:
        files = demo_files()
    except ModelNotFoundError:
        return None
    layers = tuple(
        Layer(IMAGE + kind, file_digest(file), file.stat().st_size)
        for kind, file in zip(("model", "draft"), files, strict=True)
    )
    by_digest = {layer.digest: file for layer, file in zip(layers, files, strict=True)}
    return _Demo(NAME, Manifest(layers), files[0], FOLDER, False, lambda layer: by_digest[layer.digest])


class _Demo(StoredModel):
    """There is no manifest file, and no config: both are made up from the two files."""

    @property
    def keeper(self) -> str:
        return "eaglecpp"

    @cached_property
    def digest(self) -> str:
        return hashlib.sha256(self.manifest.to_bytes()).hexdigest()

    @cached_property
    def config(self) -> Config:
        target, draft = self.files("model")[0], self.files("draft")[0]
        return Config(
            {
                "model_format": "gguf",
                "model_family": _architecture(target),
                "draft": {"model_format": "gguf", "architecture": _architecture(draft)},
            }
        )


def _architecture(file: Path) -> str:
    """What a GGUF is; numpy is not loaded for it."""
    from eaglecpp.convert import read_keys

    return str(read_keys(file).get("general.architecture", ""))
