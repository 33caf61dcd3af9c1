# SPDX-License-Identifier: MIT
"""Ambiguities of a checkpoint, and the readings that resolve them.

Trainers and inference engines disagree about some files: the trainer ignored the config's theta, layer ids
have another convention, or a norm is applied twice. No field shows which reading is right, and the only sign
of a wrong reading is poor acceptance. So a dialect returns each ambiguity as a `Choice` with its possible
values and the reason. The first value is the default, unless the choice is open. The caller can set another
value. `eaglecpp.readings` measures with the target which value drafts best.

One such choice is the convention of layer ids. Boundary id k is `R_k`, the residual stream that enters
0-based block k (k = n: the last block's output before the final norm). Some trainers write k. Others write k
- 1, the number of the block whose output they captured. These rules apply in order:

1. no ids: `R_2, R_n//2, R_n-3`, on which all trainers agree;
2. an id equal to n: boundary ids (no block comes after the last one);
3. ids equal to the default itself: boundary ids;
4. the family's convention, if the family has one; 5. ids equal to the post-layer form of the default:
post-layer ids; 6. otherwise the reading `layer_ids` or `--aux-layers` must decide, or both readings are
measured by their acceptance.

If ids equal the default in the convention that the family does not use, they remain a choice, because a tool
with the other convention may have written them.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, TypedDict

import numpy as np
import numpy.typing as npt

from .errors import ConfigError, ConvertError, InvalidValueError, LayerIdError
from .rope import WITHOUT_SCALING, partial_rotary, rope_kind, stated_theta
from .tensor import TensorSource, computed

KNOWN: Mapping[str, tuple[str, ...]] = {
    "layer_ids": ("boundary", "post"),
    "rope_theta": (),
    "rope_scaling": ("config", "none"),
    "feed": ("pre", "post"),
    "feature_norm": ("once", "twice"),
    "head_norm": ("yes", "no"),
    "slots": ("in-place", "anchor-first"),
    "block_size": (),
    "partial_rotary": ("ignored", "applied"),
    "head": ("target", "embeddings"),
}
"""Values of every reading by name; () = a positive number."""


@dataclass(frozen=True)
class Choice:
    """An ambiguity of the checkpoint.

    values: the possible values, the default first. why: why the other values are possible, as the second half
        of a sentence. is_open: True if there is no default, so the caller must set a value.
    """

    name: str
    values: tuple[str, ...]
    why: str
    is_open: bool = False

    def __post_init__(self) -> None:
        assert self.name in KNOWN and len(self.values) > 1, self


class Reading(TypedDict, total=False):
    """The caller's values for a checkpoint's ambiguities, as keyword arguments.

    aux_layers: boundary ids R_k (with the reading layer_ids=post: block numbers). readings: values by name of
        the reading (`KNOWN`); reasons: reasons for the values by name, which are recorded in the file.
    """

    aux_layers: Sequence[int] | None
    readings: Mapping[str, Any] | None
    reasons: Mapping[str, str] | None


@dataclass(frozen=True)
class Options:
    """A checked `Reading`."""

    aux_layers: tuple[int, ...] | None = None
    readings: Mapping[str, str] = field(default_factory=dict)
    reasons: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def of(
        cls,
        aux_layers: Sequence[int] | None = None,
        readings: Mapping[str, Any] | None = None,
        reasons: Mapping[str, str] | None = None,
    ) -> Options:
        """Returns the checked arguments of `Reading`. Raises InvalidValueError for an unknown reading or
        value.
        """
        layers = None if aux_layers is None else tuple(aux_layers)
        return cls(layers, checked_readings(readings or {}), dict(reasons or {}))


def checked_readings(given: Mapping[str, Any]) -> dict[str, str]:
    """Returns the readings with their values as text. Raises ValueError for an unknown name or value."""
    readings = {}
    for name, value in given.items():
        if name not in KNOWN:
            raise InvalidValueError(f"reading {name!r}: expected one of {', '.join(KNOWN)}")
        text = str(value) if KNOWN[name] else plain_number(value, name)
        if KNOWN[name] and text not in KNOWN[name]:
            raise InvalidValueError(f"reading {name}: expected {' or '.join(KNOWN[name])}, found {value!r}")
        readings[name] = text
    return readings


def plain_number(value: Any, name: str = "rope_theta") -> str:
    """Formats a number, such as a theta of 500000. Raises ValueError unless it is positive."""
    try:
        theta = float(value)
    except (TypeError, ValueError):
        theta = 0.0
    if not 0.0 < theta < float("inf"):
        raise InvalidValueError(f"reading {name}: expected a positive number, found {value!r}")
    return str(int(theta)) if theta.is_integer() else repr(theta)


def settle(choices: Sequence[Choice], given: Mapping[str, str]) -> dict[str, str]:
    """Returns the value of every choice: the caller's value, or the default of the choice. Raises an error if
    the caller sets no value for an open choice.
    """
    readings = dict(given)
    for choice in choices:
        if choice.name in given:
            continue
        if choice.is_open:
            kind: type[ConvertError] = LayerIdError if choice.name == "layer_ids" else ConfigError
            options = " or ".join(f"--reading {choice.name}={value}" for value in choice.values)
            raise kind(
                f"{choice.why}. A wrong guess shows only as poor acceptance. Look up how the drafter was "
                f"trained, and pass {options}. With the target's GGUF as --target, `eaglecpp convert` "
                "measures which value drafts better"
            )
        readings[choice.name] = choice.values[0]
    return readings


def recorded(
    choices: Sequence[Choice], given: Mapping[str, str], reasons: Mapping[str, str]
) -> tuple[str, ...]:
    """Returns texts that are recorded in the file, `name=value (reason)`, one for every choice and every
    reading that the caller set.
    """
    settled = {choice.name: choice.values[0] for choice in choices if not choice.is_open} | dict(given)
    return tuple(
        f"{name}={value} ({reasons.get(name) or ('given' if name in given else 'default, not measured')})"
        for name, value in settled.items()
    )


def unread_notes(choices: Sequence[Choice], given: Mapping[str, str]) -> tuple[str, ...]:
    """Returns a note for the user for each choice whose other readings were not used."""
    return tuple(
        f"{choice.name}: read as {choice.values[0]}, but {' or '.join(choice.values[1:])} is also possible, "
        f"because {choice.why}. To change it, pass --reading {choice.name}={choice.values[1]}"
        for choice in choices
        if choice.name not in given
    )


def ignored_theta(
    config: Mapping[str, Any], who: str, kinds: Sequence[str], *, is_open: bool = False
) -> tuple[Choice, ...]:
    """Returns the choice of theta for a trainer that always used a theta of 10000.

    kinds: rope types for which the trainer ignored the config's theta. is_open: True if the trainer's
        inference code uses 10000 too, so that there is no default.
    """
    theta = stated_theta(config)
    if theta == 10000.0 or rope_kind(config) not in kinds:
        return ()
    why = f"{who} theta 10000 and ignores the config, but engines use its rope_theta {plain_number(theta)}"
    return (Choice("rope_theta", (plain_number(theta), "10000"), why, is_open),)


def ignored_part(config: Mapping[str, Any]) -> tuple[Choice, ...]:
    """Returns the choice for a config with partly rotated heads, if the drafter's class rotates heads
    fully.
    """
    part = partial_rotary(config)
    if part == 1.0 or rope_kind(config) not in WITHOUT_SCALING:
        return ()
    why = (
        f"partial_rotary_factor {part:g} is often copied from the target. Trainers use Qwen3's layer of "
        "transformers, which rotates whole heads; vLLM and llama.cpp follow the config"
    )
    return (Choice("partial_rotary", ("ignored", "applied"), why),)


def read_as(sources: Mapping[str, TensorSource], readings: Mapping[str, str]) -> dict[str, TensorSource]:
    """Applies the readings that change tensors. sources: tensors by canonical name."""
    result = dict(sources)
    if readings.get("head") == "target":
        result.pop("lm_head.weight", None)
    if readings.get("head_norm") == "no":
        result.pop("norm.weight", None)
    first, second = "layers.0.input_layernorm.weight", "layers.0.hidden_norm.weight"
    if readings.get("feature_norm") == "twice" and first in result and second in result:
        result[second] = _one_norm(result[first], result[second])
    return result


def _one_norm(first: TensorSource, second: TensorSource) -> TensorSource:
    """Returns the weights of one norm that replaces two consecutive norms: `w2 * w1 / rms(w1)`.

    Of the first norm, only the weights matter, because the second norm scales the whole row again: `w2 * w1 *
    x / rms(w1 * x)`. The result uses `rms(w1) * rms(x)` instead of `rms(w1 * x)`, which changes each row by a
    factor near 1.
    """

    def rows(start: int, stop: int) -> npt.NDArray[Any]:
        w1 = np.asarray(first.read(), np.float64)
        rms = float(np.sqrt(np.mean(w1**2)))
        if not rms > 0.0:
            raise ConfigError(f"tensor {first.name}: expected weights of a norm, found only zeros")
        w2 = np.asarray(second.read_rows(start, stop), np.float64)
        return (w2 * w1[start:stop] / rms).astype(np.float32)

    return computed(second, rows)


Convention = Literal["boundary", "post"]


@dataclass(frozen=True)
class LayerIds:
    """Boundary ids of the layers that a drafter reads. rule: how the ids were found: default, boundary,
    post+1 or given; "final" for EAGLE-1 and 2, whose feature is fixed.
    """

    ids: tuple[int, ...]
    rule: str
    notes: tuple[str, ...] = ()


def layer_ids_choice(
    ids: Sequence[int] | None, n_blocks: int, family: str, convention: Convention | None
) -> tuple[Choice, ...]:
    """Returns the choice of the convention for explicit layer ids; () if the ids are unambiguous. Takes the
    arguments of `resolve_layer_ids`.
    """
    if not ids or n_blocks in ids:
        return ()
    looks: Convention | None = None
    if tuple(ids) == (1, n_blocks // 2 - 1, n_blocks - 4):
        looks = "post"
    elif tuple(ids) == (2, n_blocks // 2, n_blocks - 3):
        looks = "boundary"
    stated = f"aux layer ids {list(ids)} of a {n_blocks}-block target"
    if looks is None and convention is None:
        why = (
            f"{stated} are ambiguous for {family}: they may be boundary ids (R_{ids[0]}, ...) or post-layer "
            f"ids (R_{ids[0] + 1}, ...)"
        )
        return (Choice("layer_ids", ("boundary", "post"), why, is_open=True),)
    if looks in (None, convention) or (looks == "boundary" and convention is None):
        return ()
    why = f"{stated} equal the default as {'post-layer' if looks == 'post' else 'boundary'} ids, but "
    why += f"{family} counts differently" if convention else f"{family} does not say how it counts layers"
    return (Choice("layer_ids", ("boundary", "post") if convention else ("post", "boundary"), why),)


def resolve_layer_ids(
    ids: Sequence[int] | None,
    n_blocks: int,
    n_aux: int,
    *,
    convention: Convention | None = None,
    forced: Convention | None = None,
    given: Sequence[int] | None = None,
) -> LayerIds:
    """Returns the boundary ids of the layers that the drafter reads.

    ids: the ids in the checkpoint, or None. n_blocks: decoder blocks of the target. n_aux: features that fc
    expects. convention: the convention of the checkpoint's family. given: the option --aux-layers. forced:
    the reading layer_ids, which applies to `given` if `given` is set, else to `ids`. Raises LayerIdError.
    """
    if given is not None:
        shift = 1 if forced == "post" else 0
        return _checked(LayerIds(tuple(k + shift for k in given), "given"), n_blocks, n_aux)
    if not ids:
        return _checked(_default(n_blocks, n_aux, forced), n_blocks, n_aux)
    notes: tuple[str, ...] = ()
    if forced is None and n_blocks in ids:
        forced = "boundary"
        if convention == "post":
            notes = (f"aux layer ids read as {list(ids)}: {n_blocks} is only possible as a boundary id",)
    if (forced or convention) == "post":
        return _checked(LayerIds(tuple(k + 1 for k in ids), "post+1", notes), n_blocks, n_aux)
    return _checked(LayerIds(tuple(ids), "boundary", notes), n_blocks, n_aux)


def _default(n_blocks: int, n_aux: int, forced: Convention | None) -> LayerIds:
    if n_aux != 3:
        raise LayerIdError(
            f"the checkpoint names no aux layers, and fc.weight reads {n_aux} hidden states; the default has "
            "3 layers. Set the layers, such as --aux-layers 2,16,29"
        )
    note = ("the checkpoint names no aux layers, so the reading layer_ids has no effect",) if forced else ()
    return LayerIds((2, n_blocks // 2, n_blocks - 3), "default", note)


def _checked(layer_ids: LayerIds, n_blocks: int, n_aux: int) -> LayerIds:
    ids = layer_ids.ids
    where = f"aux layers {list(ids)} (rule: {layer_ids.rule})"
    if len(ids) != n_aux:
        raise LayerIdError(
            f"{where}: expected {n_aux} ids, as fc.weight reads {n_aux} states, found {len(ids)}"
        )
    if any(b <= a for a, b in itertools.pairwise(ids)):
        raise LayerIdError(
            f"{where}: expected distinct ascending ids, the order of the columns of fc.weight; other orders "
            "are not supported"
        )
    if ids[0] < 0 or ids[-1] > n_blocks:
        raise LayerIdError(f"{where}: expected ids from 0 to {n_blocks}, the target's number of layers")
    return layer_ids
