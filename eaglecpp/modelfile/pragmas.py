# SPDX-License-Identifier: MIT
"""What `#eaglecpp:` lines can say: the words Ollama has none for.

A pragma is a comment to Ollama, so one file works in both programs. Four names are ours alone (below); every
other name is an option of the engine, by its name or its long command-line flag, and is checked by the class
that declares it (`eaglecpp.options`). An unknown name is a notice, because a newer eaglecpp may know it; a
known name with a bad value is refused.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from eaglecpp.options import DraftOptions, ModelOptions, Option, SamplingOptions, Strategy, describe

from .errors import ModelfileError, Notice
from .parameters import parse_number
from .syntax import Command

__all__ = ["OWN_PRAGMAS", "Settings", "settings"]

OWN_PRAGMAS = {
    "draft": "the drafter: as DRAFT, but a stored name, a hub reference or a checkpoint is fine as well",
    "draft_type": "GGUF type of a drafter that is converted from a checkpoint",
    "strategy": "how to use the drafter: auto, off, chain:5, tree:k=4,depth=5,nodes=16",
    "chat_template": "which chat template: auto, modelfile, gguf, raw, or a family such as chatml",
}
_GROUPS = {"model": ModelOptions, "draft": DraftOptions, "sampling": SamplingOptions}


@dataclass(frozen=True)
class Settings:
    """The pragmas of a file, sorted out.

    draft:   the pragma that names a drafter, None when there is none
    options: engine options by "group.field", and "strategy"
    """

    draft: Command | None = None
    draft_type: str = ""
    chat_template: str = "auto"
    options: dict[str, Any] = field(default_factory=dict)
    notices: tuple[Notice, ...] = field(default=(), compare=False)


def settings(pragmas: Iterable[Command], file: str | None = None) -> Settings:
    """Checks every pragma; the last one of a name wins, lists of strings grow.

    Raises ModelfileError, with the line, for a value that its option refuses.
    """
    known = _known_options()
    own: dict[str, str] = {}
    draft: Command | None = None
    options: dict[str, Any] = {}
    notices: list[Notice] = []
    for pragma in pragmas:
        with _located(pragma, file):
            if pragma.name in OWN_PRAGMAS:
                own[pragma.name] = _own_value(pragma)
                draft = pragma if pragma.name == "draft" else draft
            elif pragma.name in known:
                _set_option(options, *known[pragma.name], pragma.args)
            else:
                notices.append(Notice(f"unknown pragma '{pragma.name}' ignored", pragma.line or None, file))
    if "strategy" in own:
        options["strategy"] = own["strategy"]
    choice = own.get("chat_template", "auto")
    return Settings(draft, own.get("draft_type", ""), choice, options, tuple(notices))


@contextmanager
def _located(pragma: Command, file: str | None) -> Iterator[None]:
    """Gives refusals of the option classes the line of the pragma."""
    try:
        yield
    except (ValueError, TypeError) as error:
        message = f"pragma {pragma.name}: {error}"
        raise ModelfileError(message, line=pragma.line or None, file=file) from None


def _known_options() -> dict[str, tuple[str, Option]]:
    """Engine options by name and by long flag in snake case (`cache_type_k` for --cache-type-k)."""
    known: dict[str, tuple[str, Option]] = {}
    for group, options in _GROUPS.items():
        for option in describe(options):
            if option.kind == "pairs":
                continue
            flags = [flag[2:].replace("-", "_") for flag in option.flags if flag.startswith("--")]
            for name in (option.name, *flags):
                known.setdefault(name, (group, option))
    return known


def _own_value(pragma: Command) -> str:
    value = pragma.args.strip()
    if not value:
        raise ValueError("needs a value")
    if pragma.name == "strategy":
        Strategy.parse(value)
    return value


def _set_option(options: dict[str, Any], group: str, option: Option, text: str) -> None:
    key = f"{group}.{option.name}"
    if option.kind == "strings":
        value: Any = (*options.get(key, ()), text)
    elif option.kind is str:
        value = text
    else:
        value = parse_number(option.kind.__name__ if isinstance(option.kind, type) else option.kind, text)
    _GROUPS[group](**{option.name: value})  # the class that declares the option checks it
    options[key] = value
