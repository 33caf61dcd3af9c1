# SPDX-License-Identifier: MIT
"""`#eaglecpp:` lines: settings for which Ollama has no instruction.

A pragma is a comment to Ollama, so one file works in both programs. Three names are ours alone (below); every
other name is an option of the engine, by its name or its long command-line flag, and is checked by the class
that declares it (`eaglecpp.options`). A known name with a bad value is refused. So is an unknown
name; of a stored model, which a newer eaglecpp may have made, it is left out before (`is_known`).

A model that was not made here may set only what can do no harm: `without_untrusted` leaves out the rest, by
the list that the options themselves keep (`Option.untrusted`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Any

from eaglecpp.options import GROUPS, Option, Strategy, describe

from .parameters import PARAMETERS, ParameterValue, parse_number, value_text
from .syntax import Command

OWN_PRAGMAS = ("draft", "strategy", "chat_template")
_MAX_PRAGMAS = 1000
_TEMPLATES = ("auto", "modelfile", "gguf", "stored", "raw", "chatml")
_FOR_STRANGERS = ("strategy", "chat_template")
_STRANGE_DEPTH, _STRANGE_NODES = 16, 64
_OWNERS = "only this machine's owner may set it"


@dataclass(frozen=True)
class Settings:
    """The pragmas of a file, sorted out.

    draft:   the pragma that names a drafter, None when there is none
    options: engine options by "group.field", and "strategy"
    """

    draft: Command | None = None
    chat_template: str = "auto"
    options: dict[str, Any] = field(default_factory=dict)


def settings(pragmas: Iterable[Command]) -> Settings:
    """Checks every pragma; the last one of a name wins, lists of strings grow.

    Raises ModelfileError, with the line, for an unknown name, or a value that its option refuses.
    """
    own: dict[str, Command] = {}
    options: dict[str, Any] = {}
    for pragma in _few(pragmas):
        try:
            if pragma.name in OWN_PRAGMAS:
                _check_own(pragma)
                own[pragma.name] = pragma
            elif pragma.name in _known():
                _set_option(options, _known()[pragma.name], pragma.args)
            else:
                raise ValueError("unknown name")
        except (ValueError, TypeError) as error:
            raise pragma.error(f"pragma {pragma.name}: {error}") from None
    texts = {name: pragma.args.strip() for name, pragma in own.items()}
    options |= {"strategy": texts["strategy"]} if "strategy" in texts else {}
    return Settings(own.get("draft"), texts.get("chat_template", "auto"), options)


def is_known(name: str) -> bool:
    return name in OWN_PRAGMAS or name in _known()


def without_untrusted(
    parameters: Mapping[str, ParameterValue], pragmas: Iterable[Command]
) -> tuple[dict[str, ParameterValue], tuple[Command, ...], list[str]]:
    """Which of its parameters and pragmas a model of unknown origin may set, and what is left out, as
    "parameter NAME VALUE: why". A parameter that is only too large is lowered.

    Raises ModelfileError for a value that its option refuses.
    """
    set_parameters: dict[str, ParameterValue] = {}
    set_pragmas, left_out = [], []
    for name, value in parameters.items():
        option = PARAMETERS[name].key.rpartition(".")[2]
        limit = _STRANGE_DEPTH if option == "strategy" else _known()[option].untrusted if option else True
        if limit is False:
            left_out.append(f"parameter {name} {_text(value)}: {_OWNERS}")
            continue
        if limit is not True and isinstance(value, int | float) and value > limit:
            left_out.append(f"parameter {name} {_text(value)}: using {limit}")
            value = limit
        set_parameters[name] = value
    for pragma in _few(pragmas):
        if why := _why_not(pragma):
            left_out.append(f"pragma {pragma.name} {pragma.args[:60]}: {why}")
        else:
            set_pragmas.append(pragma)
    return set_parameters, tuple(set_pragmas), left_out


def _few(pragmas: Iterable[Command]) -> tuple[Command, ...]:
    """Each of them is checked by itself, and a list is checked again with each of its values."""
    pragmas = tuple(pragmas)
    if (n := len(pragmas)) > _MAX_PRAGMAS:
        raise pragmas[-1].error(f"{n} lines of #eaglecpp:, at most {_MAX_PRAGMAS} are read")
    return pragmas


def _text(value: ParameterValue) -> str:
    return ", ".join(value) if isinstance(value, tuple) else value_text(value)


def _why_not(pragma: Command) -> str:
    """Why an untrusted model may not say this; "" when it may."""
    if not is_known(pragma.name):
        return "unknown"
    found = settings([pragma])
    if pragma.name in OWN_PRAGMAS:
        if pragma.name not in _FOR_STRANGERS:
            return "it names a file or model"
        asked = Strategy.parse(found.options.get("strategy", "auto"))
        too_much = asked.depth > _STRANGE_DEPTH or max(asked.nodes, asked.k) > _STRANGE_NODES
        return f"deeper than {_STRANGE_DEPTH} or more than {_STRANGE_NODES} nodes" if too_much else ""
    option = _known()[pragma.name]
    if isinstance(option.untrusted, bool):
        return "" if option.untrusted else _OWNERS
    is_small = 0 <= found.options[option.key] <= option.untrusted
    return "" if is_small else f"at most {option.untrusted}"


@cache
def _known() -> dict[str, Option]:
    """Engine options by name and by long flag in snake case (`cache_type_k` for --cache-type-k)."""
    known: dict[str, Option] = {}
    for option in (one for cls in GROUPS.values() for one in describe(cls) if one.kind != "pairs"):
        for flag in (option.name, *option.flags):
            known.setdefault(flag.removeprefix("--").replace("-", "_"), option)
    return known


def _check_own(pragma: Command) -> None:
    if not pragma.args.strip():
        raise ValueError("needs a value")
    if pragma.name == "chat_template" and pragma.args.strip() not in _TEMPLATES:
        raise ValueError(f"unknown template '{pragma.args.strip()}'; expected one of {', '.join(_TEMPLATES)}")
    if pragma.name == "strategy":
        Strategy.parse(pragma.args)


def _set_option(options: dict[str, Any], option: Option, text: str) -> None:
    value: Any = text
    if option.kind == "strings":
        value = (*options.get(option.key, ()), text)
    elif option.kind not in (str, "numbers"):
        value = parse_number(option.kind_name, text)
    GROUPS[option.key.partition(".")[0]](**{option.name: value})  # the class checks it
    options[option.key] = value
