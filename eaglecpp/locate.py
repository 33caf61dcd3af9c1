# SPDX-License-Identifier: MIT
"""Finds the GGUF file a model reference names.

For now a reference is a path; stored names and hub references are refused with that reason. Looks at the file
system only, never at the file's content and never at the network.
"""

from __future__ import annotations

import os
from pathlib import Path

from eaglecpp.errors import ModelNotFoundError

__all__ = ["find_model"]


def find_model(reference: str | os.PathLike[str], what: str = "model") -> Path:
    """The file `reference` names; `what` ("target", "drafter") is used in messages.

    Raises `ModelNotFoundError` when there is none, saying what was looked for and what would do.
    """
    text = os.fspath(reference)
    path = Path(text).expanduser()
    if path.is_file():
        return path
    if path.is_dir():
        raise ModelNotFoundError(f"{what} {text!r} is a directory; {_directory_hint(path)}")
    if path.exists():
        raise ModelNotFoundError(f"{what} {text!r} is not a regular file; give the path of a GGUF file")
    if path.suffix == ".gguf" or (path.parent != Path() and path.parent.is_dir()):
        raise ModelNotFoundError(f"{what} {text!r}: no such file; {_neighbour_hint(path)}")
    raise ModelNotFoundError(
        f"{what} {text!r}: no such file. Model names and hub references are not resolved yet; "
        "give the path of a GGUF file"
    )


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
