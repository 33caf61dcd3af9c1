# SPDX-License-Identifier: MIT
"""What a checkpoint does not say about itself: the choices it leaves, and the reading that was taken.

Trainers and engines disagree about some files: a theta that the trainer ignored, ids that count from another
side, a norm that is applied twice. No field tells, and a wrong reading shows only as poor acceptance. So a
dialect names each such choice with its values and the reason; one value is the default, or the choice is
open. Whoever converts can fix a value. Which one drafts best can only be measured with the target at work,
which is not this package's business.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from .errors import ConfigError, ConvertError, InvalidValueError, LayerIdError
from .rope import rope_kind, stated_theta
from .tensor import TensorSource

__all__ = [
    "KNOWN",
    "Choice",
    "checked_readings",
    "feature_norm",
    "feed",
    "ignored_theta",
    "read_as",
    "recorded",
    "settle",
    "unread_notes",
]

KNOWN: Mapping[str, tuple[str, ...]] = {
    "layer_ids": ("boundary", "post"),
    "rope_theta": (),
    "rope_scaling": ("config", "none"),
    "feed": ("pre", "post"),
    "feature_norm": ("once", "twice"),
    "head_norm": ("yes", "no"),
}
"""Every reading by name and its values; () = a positive number."""


@dataclass(frozen=True)
class Choice:
    """One thing that the checkpoint leaves open.

    values: the default first. why: what speaks for the others, a sentence's second half. is_open: there is no
    default, it has to be given.
    """

    name: str
    values: tuple[str, ...]
    why: str
    is_open: bool = False

    def __post_init__(self) -> None:
        assert self.name in KNOWN and len(self.values) > 1, self


def checked_readings(given: Mapping[str, Any]) -> dict[str, str]:
    """Given readings as they are written: values as texts. Raises ValueError for unknown names and values."""
    found = {}
    for name, value in given.items():
        if name not in KNOWN:
            raise InvalidValueError(f"reading {name!r}: expected one of {', '.join(KNOWN)}")
        text = plain_number(value) if name == "rope_theta" else str(value)
        if KNOWN[name] and text not in KNOWN[name]:
            raise InvalidValueError(f"reading {name}: expected {' or '.join(KNOWN[name])}, found {value!r}")
        found[name] = text
    return found


def plain_number(value: Any) -> str:
    """A theta, such as 500000. Raises ValueError when it is not a positive number."""
    try:
        theta = float(value)
    except (TypeError, ValueError):
        theta = 0.0
    if not 0.0 < theta < float("inf"):
        raise InvalidValueError(f"reading rope_theta: expected a positive number, found {value!r}")
    return str(int(theta)) if theta.is_integer() else repr(theta)


def settle(choices: Sequence[Choice], given: Mapping[str, str]) -> dict[str, str]:
    """The value of every reading: as given, else the default of its choice. Raises for an open one."""
    readings = dict(given)
    for choice in choices:
        if choice.name in given:
            continue
        if choice.is_open:
            kind: type[ConvertError] = LayerIdError if choice.name == "layer_ids" else ConfigError
            options = " or ".join(f"--reading {choice.name}={value}" for value in choice.values)
            raise kind(
                f"{choice.why}, and a wrong guess would show only as poor acceptance. Look up how the "
                f"drafter was trained and pass {options}; with the target's GGUF as --target, `eaglecpp "
                "convert` measures which of them drafts better"
            )
        readings[choice.name] = choice.values[0]
    return readings


def recorded(
    choices: Sequence[Choice], given: Mapping[str, str], reasons: Mapping[str, str]
) -> tuple[str, ...]:
    """What is written into the file: `name=value (reason)`, of every choice and of every given reading."""
    settled = {choice.name: choice.values[0] for choice in choices if not choice.is_open} | dict(given)
    return tuple(
        f"{name}={value} ({reasons.get(name) or ('given' if name in given else 'default, not measured')})"
        for name, value in settled.items()
    )


def unread_notes(choices: Sequence[Choice], given: Mapping[str, str]) -> tuple[str, ...]:
    """For people: which other readings there are."""
    return tuple(
        f"{choice.name}: read as {choice.values[0]}; {' or '.join(choice.values[1:])} is possible, because "
        f"{choice.why}. Not tried; --reading {choice.name}={choice.values[1]} takes it"
        for choice in choices
        if choice.name not in given
    )


def ignored_theta(
    config: Mapping[str, Any], who: str, kinds: Sequence[str], *, is_open: bool = False
) -> tuple[Choice, ...]:
    """The choice of a trainer that rotates with base 10000 whatever the config says.

    kinds: rope types for which it does. is_open: its own inference does so as well.
    """
    theta = stated_theta(config)
    if theta == 10000.0 or rope_kind(config) not in kinds:
        return ()
    why = f"{who} with theta 10000 whatever the config says, and engines use rope_theta {plain_number(theta)}"
    return (Choice("rope_theta", (plain_number(theta), "10000"), why, is_open),)


def feed(default: str, why: str) -> Choice:
    """Which state goes into the next step."""
    return Choice("feed", (default, "pre" if default == "post" else "post"), why)


def feature_norm(default: str, why: str) -> Choice:
    """How often the feature is normed before the first attention."""
    return Choice("feature_norm", (default, "once" if default == "twice" else "twice"), why)


def read_as(sources: Mapping[str, TensorSource], readings: Mapping[str, str]) -> dict[str, TensorSource]:
    """The tensors that a reading leaves. sources: by canonical name."""
    found = dict(sources)
    if readings.get("head_norm") == "no":
        found.pop("norm.weight", None)
    first, second = "layers.0.input_layernorm.weight", "layers.0.hidden_norm.weight"
    if readings.get("feature_norm") == "twice" and first in found and second in found:
        norm = found[second]
        found[second] = _TwoNorms(norm.name, norm.shape, norm.dtype, norm.path, norm.offset, found[first])
    return found


@dataclass(frozen=True)
class _TwoNorms(TensorSource):
    """A norm behind another one, as one: `w2 * w1 / rms(w1)`.

    Of the first norm only its weights remain, since the second scales the whole row again:
    `w2 * w1 * x / rms(w1 * x)`. Their product is in the weights; that `rms(w1 * x)` is not exactly
    `rms(w1) * rms(x)` remains as a factor of each row that is near 1.
    """

    first: TensorSource

    def read_rows(self, start: int, stop: int) -> npt.NDArray[Any]:
        w1 = np.asarray(self.first.read(), np.float64)
        rms = float(np.sqrt(np.mean(w1**2)))
        if not rms > 0.0:
            raise ConfigError(f"tensor {self.first.name}: expected weights of a norm, found zeros only")
        found = np.asarray(super().read_rows(start, stop), np.float64) * w1[start:stop] / rms
        return found.astype(np.float32)
