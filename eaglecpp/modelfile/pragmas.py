# SPDX-License-Identifier: MIT
"""`#eaglecpp:` lines: settings for which Ollama has no instruction.

A pragma is a comment to Ollama, so one file works in Ollama and in eaglecpp. Three pragmas are not engine
options (`OWN_PRAGMAS`). Every other pragma sets an engine option, given by the option's name or its long
command-line flag. The class that declares the option checks the value (`eaglecpp.options`). Unknown names and
invalid values are errors. A stored model may come from a newer eaglecpp, so unknown pragmas of stored models
are dropped before the check (`is_known`).

An untrusted model may only set harmless options. `Option.untrusted` declares which options are harmless, and
`without_untrusted` removes all other pragmas.
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
_FOR_UNTRUSTED = ("strategy", "chat_template")
_MAX_UNTRUSTED_DEPTH, _MAX_UNTRUSTED_NODES = 16, 64
_OWNER_ONLY = "only this machine's owner may set it"


@dataclass(frozen=True)
class Pragmas:
    """The checked pragmas of a Modelfile.

    draft: the pragma that names a drafter, or None
    options: engine options by "group.field", and "strategy"
    """

    draft: Command | None = None
    chat_template: str = "auto"
    options: dict[str, Any] = field(default_factory=dict)


def settings(pragmas: Iterable[Command]) -> Pragmas:
    """Checks every pragma of a Modelfile. If a name occurs more than once, the last value counts. If the
    option is a list of strings, the values accumulate.

    Raises ModelfileError, with the line, for an unknown name or an invalid value.
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
    return Pragmas(own.get("draft"), texts.get("chat_template", "auto"), options)


def is_known(name: str) -> bool:
    return name in OWN_PRAGMAS or name in _known()


def without_untrusted(
    parameters: Mapping[str, ParameterValue], pragmas: Iterable[Command]
) -> tuple[dict[str, ParameterValue], tuple[Command, ...], list[str]]:
    """Returns the parameters and pragmas that an untrusted model may set, and a sentence for each other
    setting. A parameter above its limit is lowered to the limit.

    Raises ModelfileError for an invalid value.
    """
    set_parameters: dict[str, ParameterValue] = {}
    set_pragmas, left_out = [], []
    for name, value in parameters.items():
        option = PARAMETERS[name].key.rpartition(".")[2]
        limit = (
            _MAX_UNTRUSTED_DEPTH if option == "strategy" else _known()[option].untrusted if option else True
        )
        if limit is False:
            left_out.append(f"parameter {name} {_text(value)} is ignored: {_OWNER_ONLY}")
            continue
        if limit is not True and isinstance(value, int | float) and value > limit:
            left_out.append(f"parameter {name} {_text(value)} is lowered to {limit}")
            value = limit
        set_parameters[name] = value
    for pragma in _few(pragmas):
        if why := _why_not(pragma):
            left_out.append(f"pragma {pragma.name} {pragma.args[:60]} is ignored: {why}")
        else:
            set_pragmas.append(pragma)
    return set_parameters, tuple(set_pragmas), left_out


def _few(pragmas: Iterable[Command]) -> tuple[Command, ...]:
    """Limits the number of pragmas, because checking a list again after each pragma takes quadratic time."""
    pragmas = tuple(pragmas)
    if (n := len(pragmas)) > _MAX_PRAGMAS:
        raise pragmas[-1].error(f"found {n} #eaglecpp: lines; the maximum is {_MAX_PRAGMAS}")
    return pragmas


def _text(value: ParameterValue) -> str:
    return ", ".join(value) if isinstance(value, tuple) else value_text(value)


def _why_not(pragma: Command) -> str:
    """Returns the reason why an untrusted model may not set an option to a value, or ""."""
    if not is_known(pragma.name):
        return "unknown"
    parsed = settings([pragma])
    if pragma.name in OWN_PRAGMAS:
        if pragma.name not in _FOR_UNTRUSTED:
            return "it names a file or model"
        strategy = Strategy.parse(parsed.options.get("strategy", "auto"))
        size = max(strategy.nodes, strategy.k)
        too_much = strategy.depth > _MAX_UNTRUSTED_DEPTH or size > _MAX_UNTRUSTED_NODES
        return (
            f"deeper than {_MAX_UNTRUSTED_DEPTH} or more than {_MAX_UNTRUSTED_NODES} nodes"
            if too_much
            else ""
        )
    option = _known()[pragma.name]
    if isinstance(option.untrusted, bool):
        return "" if option.untrusted else _OWNER_ONLY
    is_small = 0 <= parsed.options[option.key] <= option.untrusted
    return "" if is_small else f"the maximum is {option.untrusted}"


@cache
def _known() -> dict[str, Option]:
    """Returns the engine options by name and by long flag in snake case, such as `cache_type_k`."""
    known: dict[str, Option] = {}
    for option in (one for cls in GROUPS.values() for one in describe(cls) if one.kind != "pairs"):
        for flag in (option.name, *option.flags):
            known.setdefault(flag.removeprefix("--").replace("-", "_"), option)
    return known


def _check_own(pragma: Command) -> None:
    if not pragma.args.strip():
        raise ValueError("expected a value, found nothing")
    if pragma.name == "chat_template" and pragma.args.strip() not in _TEMPLATES:
        raise ValueError(f"expected one of {', '.join(_TEMPLATES)}, found '{pragma.args.strip()}'")
    if pragma.name == "strategy":
        Strategy.parse(pragma.args)


def _set_option(options: dict[str, Any], option: Option, text: str) -> None:
    value: Any = text
    if option.kind == "strings":
        value = (*options.get(option.key, ()), text)
    elif option.kind not in (str, "numbers"):
        value = parse_number(option.kind_name, text)
    # the constructor raises an error for an invalid value
    GROUPS[option.key.partition(".")[0]](**{option.name: value})
    options[option.key] = value
