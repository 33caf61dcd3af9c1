# SPDX-License-Identifier: MIT
"""Which target layers the features come from: turns the ids of a checkpoint into boundary ids.

Boundary id k is `R_k`, the residual stream entering 0-based block k (k = n: the last block's output before
the final norm). Trainers disagree: some write k, some the block after which they captured (k - 1). A wrong
guess does not crash, it only costs acceptance, so an ambiguous list is a choice (`readings.py`). Rules in
order:

1. no ids: `R_2, R_n//2, R_n-3`, on which all trainers agree;
2. an id equal to n: boundary ids (no block comes after the last one);
3. ids equal to the default itself: boundary ids;
4. the family's convention, where it has one;
5. ids equal to the post-layer form of the default: post-layer ids;
6. otherwise `--layer-ids` or `--aux-layers` must say, or the acceptance of both.

Ids that equal the default in the form that the family does not use leave a choice: somebody who counts
otherwise may have written them.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from .errors import LayerIdError
from .readings import Choice

__all__ = ["Convention", "LayerIds", "layer_ids_choice", "resolve_layer_ids"]

Convention = Literal["boundary", "post"]


@dataclass(frozen=True)
class LayerIds:
    """rule: default, boundary, post+1 or given; final: of EAGLE-1 and 2, which have no choice."""

    ids: tuple[int, ...]
    rule: str
    notes: tuple[str, ...] = ()


def layer_ids_choice(
    ids: Sequence[int] | None, n_blocks: int, family: str, convention: Convention | None
) -> tuple[Choice, ...]:
    """The choice that explicit ids leave; () where they can mean one thing only. Arguments as below."""
    if not ids or n_blocks in ids:
        return ()
    looks: Convention | None = None
    if tuple(ids) == (1, n_blocks // 2 - 1, n_blocks - 4):
        looks = "post"
    elif tuple(ids) == (2, n_blocks // 2, n_blocks - 3):
        looks = "boundary"
    told = f"aux layer ids {list(ids)} of a {n_blocks}-block target"
    if looks is None and convention is None:
        why = (
            f"{told} are ambiguous for {family}: they may be boundary ids (R_{ids[0]}, ...) or post-layer "
            f"ids (R_{ids[0] + 1}, ...)"
        )
        return (Choice("layer_ids", ("boundary", "post"), why, is_open=True),)
    if looks in (None, convention) or (looks == "boundary" and convention is None):
        return ()
    why = f"{told} equal the default in the form of {'post-layer' if looks == 'post' else 'boundary'} ids, "
    why += f"which {family} writes otherwise" if convention else f"but {family} does not say how it counts"
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
    """Boundary ids of the features.

    ids: as in the checkpoint, or None. n_blocks: decoder blocks of the target. n_aux: features fc expects.
    convention: the family's. forced: the reading that was taken of a choice, or the option --layer-ids.
    given: the option --aux-layers, which --layer-ids is about then. Raises LayerIdError.
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
            notes = (
                f"aux layer ids read as {list(ids)} because {n_blocks} is only possible as a boundary id",
            )
    if (forced or convention) == "post":
        return _checked(LayerIds(tuple(k + 1 for k in ids), "post+1", notes), n_blocks, n_aux)
    return _checked(LayerIds(tuple(ids), "boundary", notes), n_blocks, n_aux)


def _default(n_blocks: int, n_aux: int, forced: Convention | None) -> LayerIds:
    if n_aux != 3:
        raise LayerIdError(
            f"the checkpoint names no aux layers and fc expects {n_aux} features; the default exists only "
            "for 3. "
            "Give them: --aux-layers 2,16,29"
        )
    note = ("the checkpoint names no aux layers, so --layer-ids has no effect",) if forced else ()
    return LayerIds((2, n_blocks // 2, n_blocks - 3), "default", note)


def _checked(layer_ids: LayerIds, n_blocks: int, n_aux: int) -> LayerIds:
    ids = layer_ids.ids
    where = f"aux layers {list(ids)} (rule: {layer_ids.rule})"
    if len(ids) != n_aux:
        raise LayerIdError(f"{where}: expected {n_aux}, one per feature of fc.weight, found {len(ids)}")
    if any(b <= a for a, b in itertools.pairwise(ids)):
        raise LayerIdError(f"{where}: expected distinct ascending ids; give the right ones with --aux-layers")
    if ids[0] < 0 or ids[-1] > n_blocks:
        raise LayerIdError(f"{where}: expected ids from 0 to {n_blocks}, the target's number of blocks")
    return layer_ids
