# SPDX-License-Identifier: MIT
"""Model names on the command line: what is no name is wrong usage."""

from __future__ import annotations

import click

from eaglecpp.modelfile.names import ModelName, ModelNameError
from eaglecpp.store.layout import canonical

__all__ = ["stored_name"]


def stored_name(text: str) -> ModelName:
    """The name that `text` is. Raises click.UsageError."""
    text = f"hf.co/{text[5:]}" if text.startswith("hf://") else text
    try:
        return canonical(ModelName.parse(text))
    except ModelNameError as error:
        raise click.UsageError(str(error)) from None
