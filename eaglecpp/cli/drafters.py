# SPDX-License-Identifier: MIT
"""`eaglecpp drafters`: the drafters that are known, of one model or with a text in their names.

What `--draft auto` chooses from, and why it would choose the first. Reads the table that comes with the
package and, of a model on this machine, what its file says of itself; asks nobody.
"""

from __future__ import annotations

from typing import Any

import click

from eaglecpp.cli.table import table
from eaglecpp.cli.terminal import note, write, write_json
from eaglecpp.store.drafters import KnownDrafter, Match, find_drafters, known_drafters, search_drafters

__all__ = ["drafters"]


@click.command()
@click.argument("target", required=False)
@click.option("--json", "as_json", is_flag=True, help="Print {drafters: [...]}, with where each row is from.")
def drafters(target: str | None, as_json: bool) -> None:
    """List the drafters that are known: of TARGET (a file, a stored name, a name on the Hub), with
    TARGET in their names, or all.
    """
    matches = [] if target is None else _matches(target)
    rows = [match.drafter for match in matches]
    if not rows:
        rows = list(known_drafters()) if target is None else search_drafters(target)
    if as_json:
        write_json({"drafters": [_facts(row, matches) for row in rows]})
        return
    if not rows:
        note(f"no drafter is known for {target}; `eaglecpp train` makes one, `--draft text` needs none")
        return
    write(table(("DRAFTER", "TARGET", "LAYOUT", "NOTE"), [_columns(row) for row in rows]))
    chosen = next((match for match in matches if not match.drafter.refused), None)
    if chosen is not None:
        note(f"--draft auto takes {chosen.why}")
    if chosen is not None and chosen.warning:
        note(f"note: {chosen.warning}")


def _matches(target: str) -> list[Match]:
    """Of a model by name, or by what its file says of itself when it is here."""
    from eaglecpp.errors import EagleError
    from eaglecpp.opening.find import find_model
    from eaglecpp.store.facts import metadata, read_facts

    try:
        path = find_model(target, "target")
        facts = read_facts([path])
    except EagleError:  # not here: the name has to do
        return find_drafters([target], {})
    return find_drafters([target, path.name], metadata(facts.file))


def _columns(row: KnownDrafter) -> tuple[str, ...]:
    return row.repo, row.targets[0], row.family, f"cannot run: {row.refused}" if row.refused else ""


def _facts(row: KnownDrafter, matches: list[Match]) -> dict[str, Any]:
    match = next((match for match in matches if match.drafter == row), None)
    return {
        "repo": row.repo,
        "targets": list(row.targets),
        "family": row.family,
        "layer_ids": row.layer_ids,
        "source": row.source,
        "refused": row.refused or None,
        "matched": None if match is None else match.target,
        "of_base_model": match.is_base if match is not None else False,
    }
