# SPDX-License-Identifier: MIT
"""Model names on the command line: what is no name is wrong usage."""

from __future__ import annotations

import click

from eaglecpp.references.names import ModelName, ModelNameError
from eaglecpp.references.reference import read_name

__all__ = ["stored_name"]


def stored_name(text: str) -> ModelName:
    """The name that `text` is. Raises click.UsageError."""
    try:
        return read_name(text)
    except ModelNameError as error:
        raise click.UsageError(str(error)) from None
