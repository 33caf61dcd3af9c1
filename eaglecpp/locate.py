# SPDX-License-Identifier: MIT
"""Finds the GGUF file a model reference names: a path, the name of a stored model, or `smollm2`.

Looks at this machine only, never at the network: `eaglecpp pull` fetches what is not here.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from eaglecpp.errors import EagleError, ModelNotFoundError

if TYPE_CHECKING:
    from eaglecpp.store.resolve import ResolvedModel

__all__ = ["find_model", "find_path", "find_stored"]


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


def find_stored(reference: str | os.PathLike[str], what: str = "target") -> ResolvedModel | None:
    """The model of that name on this machine; None for the path of a file.

    Raises `ModelNotFoundError` when it is neither.
    """
    if find_path(reference, what) is not None:
        return None
    from eaglecpp.store.resolve import resolve_model

    return resolve_model(reference)


def find_path(reference: str | os.PathLike[str], what: str = "model") -> Path | None:
    """The file at that path; None for a reference that may be a name.

    Raises `ModelNotFoundError` for what can only be meant as a path and is no file.
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
    is_hub = text.lower().startswith(("hf.co/", "huggingface.co/", "hf://"))
    if not is_hub and (path.suffix == ".gguf" or (path.parent != Path() and path.parent.is_dir())):
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
            "it looks like a Hugging Face checkpoint: make a GGUF of it first (a target with llama.cpp's "
            "convert_hf_to_gguf.py, a drafter with `eaglecpp convert`)"
        )
    return "give the path of a GGUF file"


def _neighbour_hint(path: Path) -> str:
    if not path.parent.is_dir():
        return f"the directory {str(path.parent)!r} does not exist either"
    found = sorted(entry.name for entry in path.parent.glob("*.gguf"))
    if found:
        return f"GGUF files beside it: {', '.join(found[:5])}"
    return "check the path"
