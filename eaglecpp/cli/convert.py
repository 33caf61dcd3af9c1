# SPDX-License-Identifier: MIT
"""`eaglecpp convert`: a drafter checkpoint to GGUF. Options and report are those of `convert`'s own command;
here its two arguments may be any reference that eaglecpp understands, files on the Hub are downloaded, and
where a checkpoint can be read in several ways, these are measured.
"""

from __future__ import annotations

import importlib
import shlex
from functools import partial
from typing import Any

import click

from eaglecpp.cli.terminal import note
from eaglecpp.opening.fetch import local_checkpoint
from eaglecpp.opening.find import find_target
from eaglecpp.store.progress import Bars

_plain: Any = importlib.import_module("eaglecpp.convert.cli")


def _run(src: str, target: str, **options: Any) -> None:
    from eaglecpp.readings import convert_measured

    file = find_target(target).target
    with Bars() as bars, local_checkpoint(src, bars) as (path, hub_id):
        report = _plain.run(path, file, hub_id=hub_id, by=partial(convert_measured, say=note), **options)
    note(f"to use it: `eaglecpp run {shlex.quote(target)} --draft {shlex.quote(str(report.out))}`")


convert = click.Command(
    "convert",
    params=_plain.convert.params,
    callback=_run,
    help="Convert a checkpoint of an EAGLE or block drafter to GGUF. SRC is a folder, a weight file, a "
    "drafter's GGUF, or hf.co/owner/name. Where a checkpoint can be read in several "
    "ways, the target writes a few texts, and the reading that drafts them best is taken.",
)
