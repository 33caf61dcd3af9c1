# SPDX-License-Identifier: MIT
"""`eaglecpp check`: reads a Modelfile as `create` or Ollama would, without making a model.

Only files on this machine are opened; names and Hub references are parsed but not looked up.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from eaglecpp.cli.command import Command, option
from eaglecpp.cli.options import read_input
from eaglecpp.cli.terminal import write, write_json
from eaglecpp.errors import EagleError
from eaglecpp.modelfile import Modelfile, ollama_problems, require_ollama

if TYPE_CHECKING:
    from eaglecpp.modelfile.resolve import Plan

__all__ = ["check"]


@click.command(
    cls=Command,
    examples=[
        ("eaglecpp check Modelfile --ollama", "would Ollama take it?"),
    ],
)
@click.argument("file", default="Modelfile", metavar="[MODELFILE]")
@option("--ollama", is_flag=True, help="Report what would keep it from working in Ollama.")
@option("--strict", is_flag=True, help="Refuse what Ollama refuses; treat pragmas as comments.")
@option("--json", "as_json", is_flag=True, help="Print {problems, notices} instead.")
def check(file: str, ollama: bool, strict: bool, as_json: bool) -> None:
    """Check MODELFILE (default: ./Modelfile; - is stdin) without making a model."""
    text = read_input(file)
    directory = Path.cwd() if file == "-" else Path(file).absolute().parent
    name = None if file == "-" else file
    notices: list[str] = []
    if ollama:
        problems = ollama_problems(text, directory, file=name)
    else:
        problems, notices = _problems(text, directory, name, strict)
    if as_json:
        write_json({"problems": problems, "notices": notices})
    else:
        lines = [*(f"problem: {one}" for one in problems), *(f"note: {one}" for one in notices)]
        write("".join(f"{line}\n" for line in lines) or "no problems\n")
    if problems:
        raise click.exceptions.Exit(1)


def _problems(text: bytes, directory: Path, file: str | None, strict: bool) -> tuple[list[str], list[str]]:
    """What `create` would refuse, and its notices."""
    from eaglecpp.chat.template import ChatTemplate
    from eaglecpp.modelfile.resolve import resolve

    notices: list[str] = []
    try:
        modelfile = Modelfile.from_text(text, file=file, strict=strict)
        notices += [str(notice) for notice in modelfile.notices]
        if strict:
            require_ollama(modelfile, directory)
        if modelfile.template:
            ChatTemplate.choose(modelfile=modelfile.template).check()
        plan = resolve(modelfile, directory)
        notices += [str(notice) for notice in plan.notices]
        _check_files(plan)
    except (EagleError, OSError) as error:
        return [str(error)], notices
    return [], notices


def _check_files(plan: Plan) -> None:
    """Raises what `create` raises for a drafter or an adapter that does not fit a target on this machine."""
    from eaglecpp.store.facts import read_facts
    from eaglecpp.store.fit import check_adapter, check_fit

    if plan.target.kind != "path":
        return
    facts = read_facts(plan.target.paths)
    for adapter in plan.adapters:
        check_adapter(adapter, facts)
    if plan.draft is not None and plan.draft.kind == "path":
        check_fit(plan.draft.path, facts)
