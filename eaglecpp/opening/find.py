# SPDX-License-Identifier: MIT
"""Finds the files that a reference names on this machine, and never uses the network: `eaglecpp pull`, or
`fetch`, downloads what is missing.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from eaglecpp.errors import EagleError, ModelNotFoundError
from eaglecpp.modelfile.model import Modelfile
from eaglecpp.modelfile.syntax import Command
from eaglecpp.options import TEXT
from eaglecpp.references.parts import part_paths
from eaglecpp.references.reference import is_hub_text, is_path_text

if TYPE_CHECKING:
    from eaglecpp.store.resolve import ResolvedModel

__all__ = ["Found", "find_here", "find_model", "find_path", "find_target", "with_own_draft"]


@dataclass(frozen=True)
class Found:
    """The files of a model.

    draft, draft_origin: the drafter's file and how it came to be the one; None and "" without one
    drafts_text: drafts from the text itself were asked for, in place of a drafter
    draft_asked: a drafter was named, and is not just what came with the model
    notices:     what looking for them brought to light
    offer:       a drafter that could be had
    """

    model: ResolvedModel
    draft: Path | None = None
    draft_origin: str = ""
    drafts_text: bool = False
    draft_asked: bool = False
    notices: tuple[str, ...] = ()
    offer: str = ""

    @property
    def reference(self) -> str:
        """What finds the model again: a name, or the path of the target."""
        return self.model.reference

    @property
    def target(self) -> Path:
        """The target's GGUF, of a split one the first part."""
        return self.model.target

    @property
    def files(self) -> list[Path]:
        """Everything that is loaded: target in all its parts, drafter, adapters."""
        draft = [] if self.draft is None else [self.draft]
        return [*part_paths(self.target), *draft, *self.model.adapters]

    @property
    def n_weight_bytes(self) -> int:
        """Bytes of all of it, as far as it is there."""
        return sum(path.stat().st_size for path in self.files if path.is_file())

    @property
    def is_file(self) -> bool:
        """Whether the reference is the path of the target, not a name."""
        return self.model.name is None

    @property
    def name(self) -> str:
        """What to call the model in one word."""
        return self.target.stem if self.is_file else self.reference

    @property
    def modelfile(self) -> Modelfile:
        """What is said of the model; of a file, that it is the target."""
        return self.model.modelfile or Modelfile(from_=(Command("model", str(self.target)),))

    def absolute(self) -> Found:
        """The same, whatever the current folder will be."""
        model = self.model
        target = model.target.absolute()
        reference = str(target) if model.name is None else str(model.name)
        draft = None if self.draft is None else self.draft.absolute()
        return replace(self, model=replace(model, reference=reference, target=target), draft=draft)

    @property
    def target_origin(self) -> str:
        """Where the target is from."""
        model = self.model
        kinds = {"path": "a file", "store": "stored", "ollama": "Ollama's store", "package": "a package"}
        return kinds[model.kind] if model.name is None else f"{kinds[model.kind]}: {model.name}"


def find_here(
    reference: str | os.PathLike[str],
    draft: str | os.PathLike[str] | None = None,
    *,
    wants_draft: bool = True,
) -> Found:
    """The files of a model and of its drafter, which is the model's own unless `draft` names another.

    wants_draft: False when nothing will be drafted, so that the model's own is left out
    Raises `ModelNotFoundError` when one of them is not on this machine.
    """
    model = find_target(reference)
    if draft == TEXT:
        return Found(model, drafts_text=True)
    if draft is None or draft == "auto":
        if draft == "auto" and wants_draft and model.draft is None:
            raise ModelNotFoundError(
                f"drafter 'auto': {model.reference} has none on this machine; to get one: eaglecpp pull "
                f"{model.reference} --draft auto"
            )
        return with_own_draft(model) if wants_draft else Found(model)
    return Found(model, find_model(draft, "drafter"), "asked for", draft_asked=True)


def with_own_draft(model: ResolvedModel) -> Found:
    """A model with the drafter it brings, if it brings one."""
    name = model.reference if model.name is None else model.name
    return Found(model, model.draft, "" if model.draft is None else f"comes with {name}")


def find_target(reference: str | os.PathLike[str]) -> ResolvedModel:
    """The model of a path or a name. Raises `ModelNotFoundError`."""
    from eaglecpp.store.resolve import ResolvedModel, resolve_model

    path = find_path(reference, "target")
    if path is not None:
        return ResolvedModel(os.fspath(reference), "path", path)
    return resolve_model(reference)


def find_model(reference: str | os.PathLike[str], what: str = "model") -> Path:
    """The file `reference` names; `what` ("target", "drafter") is used in messages. A drafter's name is that
    of a stored drafter, or of a stored model that has one.

    Raises `ModelNotFoundError` when there is none, saying what was looked for and what would do.
    """
    path = find_path(reference, what)
    if path is not None:
        return path
    from eaglecpp.store.resolve import resolve_draft, resolve_model

    return resolve_draft(reference) if what == "drafter" else resolve_model(reference).target


def find_path(reference: str | os.PathLike[str], what: str = "model") -> Path | None:
    """The file at that path; None for a reference that may be a name.

    Raises `ModelNotFoundError` for what can only be meant as a path and is not a file.
    """
    text = os.fspath(reference)
    path = Path(text).expanduser()
    if path.is_file():
        return path
    if path.is_dir():
        if path.parent == Path() and _is_stored(text):
            return None
        raise ModelNotFoundError(f"{what} {text!r} is a directory; {_directory_hint(path)}")
    if path.exists():
        raise ModelNotFoundError(f"{what} {text!r} is not a regular file; give the path of a GGUF file")
    in_a_folder = path.parent != Path() and path.parent.is_dir() and not is_hub_text(text)
    if (path.suffix == ".gguf" and is_path_text(text)) or in_a_folder:
        raise ModelNotFoundError(f"{what} {text!r}: no such file; {_neighbour_hint(path)}")
    return None


def _is_stored(text: str) -> bool:
    """Whether a word that happens to be the name of a folder as well is the name of a model."""
    from eaglecpp.store.resolve import resolve_model

    try:
        return bool(resolve_model(text))
    except EagleError:
        return False


def _directory_hint(path: Path) -> str:
    found = sorted(entry.name for entry in path.glob("*.gguf"))
    if found:
        return f"give one of its GGUF files: {', '.join(found[:5])}"
    if (path / "config.json").is_file():
        return (
            "it looks like a Hugging Face checkpoint: convert it to GGUF first (a target with llama.cpp's "
            "convert_hf_to_gguf.py, a drafter with `eaglecpp convert`)"
        )
    return "give the path of a GGUF file"


def _neighbour_hint(path: Path) -> str:
    if not path.parent.is_dir():
        return f"the directory {str(path.parent)!r} does not exist either"
    found = sorted(entry.name for entry in path.parent.glob("*.gguf"))
    if found:
        return f"GGUF files next to it: {', '.join(found[:5])}"
    return "check the path"
