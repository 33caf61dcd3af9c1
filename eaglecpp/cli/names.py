# SPDX-License-Identifier: MIT
"""Model names on the command line; an invalid one is a usage error."""

from __future__ import annotations

import click

from eaglecpp.references.names import ModelName, ModelNameError
from eaglecpp.references.reference import read_name

__all__ = ["stored_name"]


def stored_name(text: str) -> ModelName:
    """`text` as a model name. Raises click.UsageError."""
    try:
        return read_name(text)
    except ModelNameError as error:
        raise click.UsageError(str(error)) from None
