# SPDX-License-Identifier: MIT
"""`eaglecpp drafters`: lists all known drafters, the drafters for one model, or the drafters whose names
contain a text.

`--draft auto` chooses among these drafters. The command reads the packaged table and, for a model on this
machine, the metadata of the model's file. It makes no network request.
"""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import TYPE_CHECKING

import click
from msgspec.structs import asdict

from eaglecpp.cli.command import command, complete_model, json_option
from eaglecpp.cli.terminal import note, table, write, write_json
from eaglecpp.errors import EagleError
from eaglecpp.opening.find import find_target
from eaglecpp.references import read_name
from eaglecpp.store import Stores
from eaglecpp.store.drafters import (
    KnownDrafter,
    find_drafters,
    first_runnable,
    known_drafters,
    search_drafters,
)

if TYPE_CHECKING:
    from eaglecpp.store.facts import Facts


@command(
    ("eaglecpp drafters llama3.1:8b", "drafters for one model"),
    ("eaglecpp drafters qwen", "drafters with a word in their names"),
)
@click.argument("target", required=False, shell_complete=complete_model)
@json_option("{own, drafters: [...]}, with the source of each row")
def drafters(target: str | None, as_json: bool) -> None:
    """List known drafters: all, or those for TARGET (a file, a stored name, a name on the Hub), or those with
    TARGET in their names.
    """
    own, whose, matches, facts = (None, "", [], None) if target is None else _matches(target)
    rows = matches
    if not rows and own is None:
        rows = list(known_drafters()) if target is None else search_drafters(target)
    if as_json:
        known = [
            asdict(row) | {"refused": row.refused or None, "matched": row.matched or None} for row in rows
        ]
        write_json({"own": own and str(own), "drafters": known})
        return
    if own is not None:
        write(f"{target} {whose}: {own}\n")
    none = f"no drafter is known for {target}"
    if not rows and own is None:
        head = "use its own head (`--draft mtp`), " if facts is not None and facts.has_head else ""
        near = "" if facts is not None else Stores.open().near(target or "", n_listed=0)
        way = f": {head}make a drafter with `eaglecpp train`, or use `--draft text`"
        note(f"{none}{near or way}")
        return
    if rows:
        shown = []
        for row in rows:
            why = f"cannot run: {row.refused}" if row.refused else row.file and "comes with eaglecpp"
            shown.append((row.repo, row.targets[0], why))
        is_noted = any(why for _, _, why in shown)
        write(table(("DRAFTER", "TARGET", "NOTE" if is_noted else ""), shown))
    chosen = first_runnable(matches)
    if chosen is not None and own is None:
        note(f"--draft auto uses {chosen.why}")
    # With a colon, the text names a model and is not a word to search for.
    elif not matches and own is None and ":" in (target or ""):
        note(f"{none} itself; these drafters have it in their names")


def _matches(target: str) -> tuple[Path | None, str, list[KnownDrafter], Facts | None]:
    """Looks up the drafters of a model. Returns four values: the model's own drafter, or the drafter of the
    model from which it was copied; a text that says which of the two drafters it is; the drafters that are
    known by the model's name or by its file's metadata; and the facts of the model's file.
    """
    from eaglecpp.store.facts import metadata, read_facts

    try:
        model = find_target(target)
        facts = read_facts([model.target])
    except EagleError:  # without a file on this machine, only the model's name is known
        names = [target]
        with contextlib.suppress(EagleError):
            names.append(str(read_name(target)))  # the full name of the model, including the tag
        return None, "", find_drafters(names), None
    own, whose = model.draft, "has a drafter of its own, which is used"
    if own is None and (original := Stores.open().original_of(model.target)) is not None:
        own = original.draft_file()
        whose = f"is a copy of {original.short_name}; --draft {original.short_name} uses its drafter"
    return own, whose, find_drafters([target, model.target.name], metadata(facts.file)), facts
