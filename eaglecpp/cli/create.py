# SPDX-License-Identifier: MIT
"""`eaglecpp create`: a Modelfile to a stored model."""

from __future__ import annotations

from pathlib import Path

import click

from eaglecpp.cli.command import command, json_option, option
from eaglecpp.cli.options import read_input, stored_name
from eaglecpp.cli.terminal import note, write_json
from eaglecpp.store import Stores
from eaglecpp.store.model import Made
from eaglecpp.store.progress import Bars


@command(("eaglecpp create my-model -f Modelfile", "from a Modelfile"))
@click.argument("name")
@option("-f", "--file", "file", default="Modelfile", show_default=True, help="The Modelfile; - is stdin.")
@option("-q", "--quantize", metavar="TYPE", default="", help="Quantise an F32 or F16 target to this type.")
@option("--draft-quantize", metavar="TYPE", default="", help="Type of a converted drafter.  [default: Q8_0]")
@option("--no-draft", is_flag=True, help="Leave the drafter out.")
@json_option("{name, digest, size, draft} at the end")
def create(name: str, file: str, quantize: str, draft_quantize: str, no_draft: bool, as_json: bool) -> None:
    """Create the model NAME from a Modelfile."""
    from eaglecpp.modelfile import Modelfile
    from eaglecpp.store.create import create_model

    modelfile = Modelfile.from_text(read_input(file), file=None if file == "-" else file)
    directory = Path.cwd() if file == "-" else Path(file).absolute().parent
    stores = Stores.open()
    with Bars() as bars:
        created = create_model(
            stores, stored_name(name), modelfile, directory,
            quantize=quantize, draft_type=draft_quantize, use_draft=not no_draft, report=bars,
        )  # fmt: skip
    say_made(created, as_json)


def say_made(made: Made, as_json: bool) -> None:
    """What `create` and `pull` say at their ends."""
    from eaglecpp.store.describe import list_entry

    for notice in made.notices:
        note(f"note: {notice}")
    if as_json:
        entry = list_entry(made.model)
        write_json({key: entry[key] for key in ("name", "digest", "size", "draft")})
