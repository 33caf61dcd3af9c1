# SPDX-License-Identifier: MIT
"""Table of all `PARAMETER`s: the options of `eaglecpp.options` that have a name in Modelfiles, with Ollama's
defaults.

The Modelfile, `/set parameter` and the `options` of an HTTP request read this table. Types and defaults are
Ollama's (ollama/ollama: api/types.go). Ollama checks no ranges, and a file must work in both programs, so a
value outside the range is clamped, with a notice.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Mapping
from dataclasses import replace

from eaglecpp.errors import InvalidValueError
from eaglecpp.options import ModelOptions, Option, SamplingOptions, describe
from eaglecpp.options.checked import FLOAT32_LIMIT

ParameterValue = int | float | bool | tuple[str, ...]

_INT = re.compile(r"[+-]?[0-9]{1,4000}")
_FLOAT = re.compile(r"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?")
_HEX = re.compile(r"[+-]?0x(?:[0-9a-f]+\.?[0-9a-f]*|\.[0-9a-f]+)p[+-]?[0-9]{1,6}", re.IGNORECASE)
_BOOLS = dict.fromkeys(("1", "t", "T", "TRUE", "true", "True"), True) | dict.fromkeys(
    ("0", "f", "F", "FALSE", "false", "False"), False
)


class ParameterError(InvalidValueError):
    """An unknown parameter or an invalid value; the wording is Ollama's."""


_DECIDED_BY_ENGINE = ("num_batch", "main_gpu", "use_mmap")
_DEFAULTS = {"seed": -1, "top_p": 0.9, "min_p": 0.0, **dict.fromkeys(_DECIDED_BY_ENGINE)}
"""Ollama's defaults that differ from the option's default; None if the engine decides."""


def _of_group(cls: type) -> list[Option]:
    """Returns the options of a group that a Modelfile can set, with Ollama's names and defaults."""
    named = [one for one in describe(cls) if one.parameter not in ("", "num_ctx")]
    return [replace(o, name=o.parameter, default=_DEFAULTS.get(o.parameter, o.default)) for o in named]


PARAMETERS: Mapping[str, Option] = {
    one.name: one
    for one in (
        # The engine's option also accepts -1 (the trained context length). A Modelfile may not set -1.
        Option("num_ctx", int, None, "context length in tokens; 0 = automatic", 0, key="model.n_ctx"),
        *_of_group(ModelOptions),
        Option("draft_num_predict", int, None, "draft depth per round; 0 = none", 0, 1024, key="strategy"),
        Option("num_keep", int, 4, "tokens kept from the start of a prompt that is truncated", -1),
        *_of_group(SamplingOptions),
    )
}
"""Parameters by Ollama's name. `key`: "group.field" of the engine's option, "strategy", or "" for a parameter
without effect.
"""

DEPRECATED = frozenset((
    "penalize_newline", "low_vram", "f16_kv", "logits_all", "vocab_only", "use_mlock", "mirostat",
    "mirostat_tau", "mirostat_eta", "numa", "num_gqa", "tfs_z", "rope_frequency_base", "rope_frequency_scale",
    "embedding_only",
))  # fmt: skip
"""Old parameters, which are ignored with a notice. Ollama ignores the first nine and rejects the others."""


def parameter_options(parameters: Mapping[str, ParameterValue]) -> dict[str, ParameterValue | str]:
    """Returns engine options by name ("model.n_ctx", "sampling.top_p", "strategy").

    Missing parameters get Ollama's defaults, values are clamped to their range, and `draft_num_predict`
    becomes a chain of that depth, or "off" for 0. Options that the engine decides itself are left out.
    """
    options: dict[str, ParameterValue | str] = {}
    for one in PARAMETERS.values():
        value = parameters.get(one.name, one.default)
        if value is not None and one.key:
            options[one.key] = value = one.fitted(value)
            if one.key == "strategy":
                options["strategy"] = f"chain:{value}" if value else "off"
    return options


def parse_value(name: str, text: str) -> ParameterValue:
    """Returns the value of `PARAMETER name text`; a one-element tuple for a repeatable parameter.

    Raises ParameterError for an unknown name or a text of the wrong type.
    """
    parameter = PARAMETERS.get(name)
    if parameter is None:
        raise ParameterError(f"unknown parameter '{name}'")
    return (text,) if parameter.kind == "strings" else parse_number(parameter.kind_name, text)


def parse_number(kind: str, text: str) -> int | float | bool:
    """Parses an "int", "float" or "bool" within the range of Ollama's type. Raises ParameterError, also for
    NaN and infinity, which Ollama accepts.
    """
    if kind == "bool" and text in _BOOLS:
        return _BOOLS[text]
    if kind == "int" and _INT.fullmatch(text) and -(2**63) <= int(text) < 2**63:
        return int(text)
    if kind == "float" and (_FLOAT.fullmatch(text) or _HEX.fullmatch(text)):
        with contextlib.suppress(OverflowError):
            number = float.fromhex(text) if _HEX.fullmatch(text) else float(text)
            if abs(number) < FLOAT32_LIMIT:
                return number
    raise ParameterError(f"invalid {kind} value [{text}]")


def value_text(value: int | float | bool | str) -> str:
    """Formats a parameter's value as Ollama prints it: `true`, `0.6`, and `1` for the float 1."""
    if isinstance(value, bool):
        return str(value).lower()
    return str(value).removesuffix(".0") if isinstance(value, float) else str(value)


def from_json(name: str, value: object) -> ParameterValue:
    """Returns the value of a parameter that a request sets in its `options`. Raises ParameterError as
    `parse_value` does.
    """
    parameter = PARAMETERS.get(name)
    if parameter is None:
        raise ParameterError(f"unknown parameter '{name}'")
    if parameter.kind == "strings":
        texts = [value] if isinstance(value, str) else value
        if isinstance(texts, list) and all(isinstance(text, str) for text in texts):
            return tuple(texts)
        raise ParameterError(f'option "{name}" must be of type array of strings')
    if isinstance(value, bool):
        if parameter.kind is bool:
            return value
    elif isinstance(value, int | float) and parameter.kind is not bool and abs(value) < FLOAT32_LIMIT:
        return parameter.kind(value)  # type: ignore[no-any-return, operator]
    type_name = {int: "integer", float: "float32", bool: "boolean"}[parameter.kind]  # type: ignore[index]
    raise ParameterError(f'option "{name}" must be of type {type_name}')
