# SPDX-License-Identifier: MIT
"""`eaglecpp convert`: a drafter checkpoint to GGUF. Options and report are those of `convert`'s own command;
here its two arguments may be any reference that eaglecpp understands, and files on the Hub are downloaded.
"""

from __future__ import annotations

import importlib
from typing import Any

import click

from eaglecpp.cli.progress import Bars
from eaglecpp.opening.checkpoint import local_checkpoint, local_target

__all__ = ["convert"]

_plain: Any = importlib.import_module("eaglecpp.convert.cli")


def _run(src: str, target: str, **options: Any) -> None:
    with (
        Bars() as bars,
        local_checkpoint(src, bars) as checkpoint,
        local_target(target, bars) as model,
    ):
        _plain.run(checkpoint.path, model.path, hub_id=checkpoint.hub_id, target_id=model.hub_id, **options)


convert = click.Command(
    "convert",
    params=_plain.convert.params,
    callback=_run,
    help="Convert an EAGLE drafter checkpoint to GGUF. SRC is a checkpoint folder, a weight file, a "
    "drafter's GGUF, or hf.co/owner/name.",
)
