# SPDX-License-Identifier: MIT
"""Every `PARAMETER`: the options of `eaglecpp.options` that have one, with Ollama's defaults.

The Modelfile, `/set parameter` and the `options` of an HTTP request read this table. Types and defaults are
Ollama's (ollama/ollama: api/types.go). Ollama checks no ranges and one file must work in both programs, so a
value outside the range is moved to its nearest end, with a notice.
"""

from __future__ import annotations

import contextlib
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass

from eaglecpp.errors import InvalidValueError
from eaglecpp.options import LARGEST_INT, ModelOptions, SamplingOptions, describe

ParameterValue = int | float | bool | tuple[str, ...]

_INT = re.compile(r"[+-]?[0-9]{1,4000}")
_FLOAT = re.compile(
    r"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?|[+-]?inf(?:inity)?|nan", re.IGNORECASE
)
_HEX = re.compile(r"[+-]?0x(?:[0-9a-f]+\.?[0-9a-f]*|\.[0-9a-f]+)p[+-]?[0-9]{1,6}", re.IGNORECASE)
_BOOLS = dict.fromkeys(("1", "t", "T", "TRUE", "true", "True"), True) | dict.fromkeys(
    ("0", "f", "F", "FALSE", "false", "False"), False
)
_FLOAT32_LIMIT = (2 - 2**-24) * 2.0**127  # from here on a number rounds to infinity in single precision


class ParameterError(InvalidValueError):
    """A parameter that does not exist or a value that it cannot have; the text is Ollama's."""


@dataclass(frozen=True)
class Parameter:
    """One `PARAMETER`.

    kind:      "int", "float", "bool" or "strings" (repeatable)
    default:   Ollama's; None where the engine decides
    option:    "group.field" of eaglecpp.options that it sets, "strategy", or "" where the engine has none
    low, high: the range the engine takes, ends included; None = open
    """

    name: str
    kind: str
    default: ParameterValue | None
    option: str
    help: str
    low: float | None = None
    high: float | None = None

    def fitted(self, value: ParameterValue) -> ParameterValue:
        """The value, or the end of the range that is nearest to it."""
        if isinstance(value, tuple | bool):
            return value
        high = LARGEST_INT if self.high is None and self.kind == "int" else self.high
        if self.low is not None and not value >= self.low:
            return type(value)(self.low)
        if high is not None and not value <= high:
            return type(value)(high)
        return value

    @property
    def range(self) -> str:
        """`0 to 1`, `-1 and up`, or the empty string for an open range."""
        if self.low in (None, -math.inf):
            return ""
        return f"{self.low} and up" if self.high is None else f"{self.low} to {self.high}"


_DECIDED_BY_ENGINE = ("num_batch", "main_gpu", "use_mmap")
_DEFAULTS = {"seed": -1, "top_p": 0.9, "min_p": 0.0, **dict.fromkeys(_DECIDED_BY_ENGINE)}
"""Ollama's, where they are not the option's own; None where the engine decides."""


def _declared(group: str, options: type) -> list[Parameter]:
    """What the options of a group say of themselves."""
    return [
        Parameter(
            option.parameter,
            option.kind if isinstance(option.kind, str) else option.kind.__name__,
            _DEFAULTS.get(option.parameter, option.default),
            f"{group}.{option.name}",
            option.help,
            option.minimum,
            option.maximum,
        )
        for option in describe(options)
        if option.parameter not in ("", "num_ctx")
    ]


PARAMETERS: Mapping[str, Parameter] = {
    parameter.name: parameter
    for parameter in (
        # the option's -1 is all that a model was trained for, which no Modelfile may ask for
        Parameter("num_ctx", "int", None, "model.n_ctx", "context length in tokens; 0 = automatic", 0),
        *_declared("model", ModelOptions),
        Parameter("draft_num_predict", "int", None, "strategy", "draft depth per round; 0 = none", 0, 1024),
        Parameter("num_keep", "int", 4, "", "tokens that stay at the beginning of a prompt that is cut", -1),
        *_declared("sampling", SamplingOptions),
    )
}

DEPRECATED = frozenset((
    "penalize_newline", "low_vram", "f16_kv", "logits_all", "vocab_only", "use_mlock", "mirostat",
    "mirostat_tau", "mirostat_eta", "numa", "num_gqa", "tfs_z", "rope_frequency_base", "rope_frequency_scale",
    "embedding_only",
))  # fmt: skip
"""In old Modelfiles: ignored with a notice. Ollama does the same with the first nine and refuses the others.
"""


def engine_options(parameters: Mapping[str, ParameterValue]) -> dict[str, ParameterValue | str]:
    """What the engine is to be told, by option name ("model.n_ctx", "sampling.top_p", "strategy").

    Ollama's defaults stand in for what `parameters` leaves out, values are fitted to their range, and
    `draft_num_predict` becomes a chain of that depth, or "off" when it is 0. Absent: what the engine decides.
    """
    options: dict[str, ParameterValue | str] = {}
    for parameter in PARAMETERS.values():
        value = parameters.get(parameter.name, parameter.default)
        if value is None or not parameter.option:
            continue
        value = parameter.fitted(value)
        if parameter.option == "strategy":
            options["strategy"] = f"chain:{value}" if value else "off"
        else:
            options[parameter.option] = value
    return options


def parse_value(name: str, text: str) -> ParameterValue:
    """The value that `PARAMETER name text` stands for; a one-element tuple for a repeatable one.

    Raises ParameterError for an unknown name or a text of the wrong type.
    """
    parameter = PARAMETERS.get(name)
    if parameter is None:
        raise ParameterError(f"unknown parameter '{name}'")
    return (text,) if parameter.kind == "strings" else parse_number(parameter.kind, text)


def parse_number(kind: str, text: str) -> int | float | bool:
    """Reads an "int", "float" or "bool" of Ollama's range. Raises ParameterError."""
    if kind == "bool" and text in _BOOLS:
        return _BOOLS[text]
    if kind == "int" and _INT.fullmatch(text) and -(2**63) <= int(text) < 2**63:
        return int(text)
    if kind == "float" and (_FLOAT.fullmatch(text) or _HEX.fullmatch(text)):
        is_named = "n" in text.lower()  # inf and nan are legal, what overflows is not
        with contextlib.suppress(OverflowError):
            number = float.fromhex(text) if _HEX.fullmatch(text) else float(text)
            if abs(number) < _FLOAT32_LIMIT or is_named:
                return number
    raise ParameterError(f"invalid {kind} value [{text}]")


def value_text(value: int | float | bool | str) -> str:
    """One value as Ollama prints it: `true`, `0.6`, and `1` for the float 1."""
    if isinstance(value, bool):
        return str(value).lower()
    return str(value).removesuffix(".0") if isinstance(value, float) else str(value)


def from_json(name: str, value: object) -> ParameterValue:
    """The value of one key of a request's `options` object. Raises ParameterError as `parse_value` does."""
    parameter = PARAMETERS.get(name)
    if parameter is None:
        raise ParameterError(f"unknown parameter '{name}'")
    if parameter.kind == "strings":
        texts = [value] if isinstance(value, str) else value
        if isinstance(texts, list) and all(isinstance(text, str) for text in texts):
            return tuple(texts)
        raise ParameterError(f'option "{name}" must be of type array of strings')
    if isinstance(value, bool):
        if parameter.kind == "bool":
            return value
    elif isinstance(value, int | float) and parameter.kind != "bool":
        if parameter.kind == "float":
            return float(value)
        if math.isfinite(value):
            return int(value)
    type_name = {"int": "integer", "float": "float32", "bool": "boolean"}[parameter.kind]
    raise ParameterError(f'option "{name}" must be of type {type_name}')
