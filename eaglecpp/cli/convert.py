# SPDX-License-Identifier: MIT
"""`eaglecpp convert`: a drafter checkpoint to GGUF. The command is `convert`'s own; here its two references
are read as everywhere in eaglecpp, and what is on the Hub is fetched.
"""

from __future__ import annotations

import importlib
from typing import Any

import click

from eaglecpp.errors import ModelNotFoundError
from eaglecpp.references.names import ModelNameError
from eaglecpp.references.paths import FileSearchError
from eaglecpp.references.reference import Reference, read_reference

__all__ = ["convert"]

with_files: click.Command = importlib.import_module("eaglecpp.convert.cli").convert


def _run(src: str, target: str, **options: Any) -> None:
    run = with_files.callback
    assert run is not None
    run(src=_checkpoint(src), target=_target(target), **options)


def _checkpoint(text: str) -> str:
    """What the converter is to read."""
    reference = _read(text, "checkpoint")
    if reference.kind == "hub":
        return _hub_id(reference)
    if reference.paths:
        return text
    raise ModelNotFoundError(
        f"checkpoint {text!r}: no such file or folder; a repository of the Hub is written hf.co/{text}"
        if text.count("/") == 1
        else f"checkpoint {text!r}: no such file or folder"
    )


def _target(text: str) -> str:
    """A GGUF, a folder, or what the Hub has of a target besides its weights; stored models by name."""
    from eaglecpp.opening.find import find_model

    reference = _read(text, "target")
    if reference.kind == "hub":
        return _hub_id(reference)
    if reference.paths:
        return text
    try:
        return str(find_model(text, "target"))
    except ModelNotFoundError as error:
        if text.count("/") == 1:
            raise ModelNotFoundError(f"{error}; a repository of the Hub is written hf.co/{text}") from None
        raise


def _read(text: str, what: str) -> Reference:
    try:
        return read_reference(text)
    except (FileSearchError, OSError, ModelNameError) as error:
        raise ModelNotFoundError(f"{what} {text!r}: {error}") from None


def _hub_id(reference: Reference) -> str:
    revision = f"@{reference.revision}" if reference.revision else ""
    return f"{reference.repository}{revision}"


convert = click.Command("convert", params=with_files.params, callback=_run, help=with_files.help)
