# SPDX-License-Identifier: MIT
"""Model names on the command line: what is no name is wrong usage."""

from __future__ import annotations

import click

from eaglecpp.modelfile.names import ModelName, ModelNameError
from eaglecpp.store.layout import canonical

__all__ = ["stored_name"]


def stored_name(text: str, *, on_hub: bool = False) -> ModelName:
    """The name that `text` is. on_hub: it is `user/repo[:quant]`, as behind llama.cpp's -hf.

    Raises click.UsageError.
    """
    text = f"hf.co/{text[5:]}" if text.startswith("hf://") else text
    if on_hub and not text.lower().startswith(("hf.co/", "huggingface.co/")):
        text = f"hf.co/{text}"
    try:
        return canonical(ModelName.parse(text))
    except ModelNameError as error:
        raise click.UsageError(str(error)) from None
