# SPDX-License-Identifier: MIT
"""Which target layers the features come from: turns the ids of a checkpoint into boundary ids.

Boundary id k is `R_k`, the residual stream entering 0-based block k (k = n: the last block's output before
the final norm). Trainers disagree: some write k, some the block after which they captured (k - 1). A wrong
guess does not crash, it only costs acceptance, so an ambiguous list is refused. Rules in order:

1. no ids: `R_2, R_n//2, R_n-3`, on which all trainers agree;
2. ids equal to the post-layer form of that default: add 1; equal to the default itself: boundary ids;
3. an id equal to n: boundary ids (no block comes after the last one);
4. the family's convention, where it has one;
5. otherwise `--layer-ids` or `--aux-layers` must say.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from .errors import LayerIdError

__all__ = ["Convention", "LayerIds", "resolve_layer_ids"]

Convention = Literal["boundary", "post"]


@dataclass(frozen=True)
class LayerIds:
    """rule: default, boundary, post+1 or given; final: of EAGLE-1 and 2, which have no choice."""

    ids: tuple[int, ...]
    rule: str
    notes: tuple[str, ...] = ()


def resolve_layer_ids(
    ids: Sequence[int] | None,
    n_blocks: int,
    n_aux: int,
    *,
    family: str = "this family",
    convention: Convention | None = None,
    given: Sequence[int] | None = None,
    forced: Convention | None = None,
) -> LayerIds:
    """Boundary ids of the features.

    ids: as in the checkpoint, or None. n_blocks: decoder blocks of the target. n_aux: features fc expects.
    convention: the family's. given, forced: the options --aux-layers and --layer-ids. Raises LayerIdError.
    """
    if given is not None:
        shift = 1 if forced == "post" else 0
        return _checked(LayerIds(tuple(k + shift for k in given), "given"), n_blocks, n_aux)
    if not ids:
        return _checked(_default(n_blocks, n_aux, forced), n_blocks, n_aux)
    return _checked(_interpret(tuple(ids), n_blocks, family, convention, forced), n_blocks, n_aux)


def _default(n_blocks: int, n_aux: int, forced: Convention | None) -> LayerIds:
    if n_aux != 3:
        raise LayerIdError(
            f"the checkpoint names no aux layers and fc expects {n_aux} features; the default exists only "
            "for 3. "
            "Give them: --aux-layers 2,16,29"
        )
    note = ("the checkpoint names no aux layers, so --layer-ids has no effect",) if forced else ()
    return LayerIds((2, n_blocks // 2, n_blocks - 3), "default", note)


def _interpret(
    ids: tuple[int, ...], n_blocks: int, family: str, convention: Convention | None, forced: Convention | None
) -> LayerIds:
    post = LayerIds(tuple(k + 1 for k in ids), "post+1")
    boundary = LayerIds(ids, "boundary")
    if forced is not None:
        return post if forced == "post" else boundary
    if ids == (1, n_blocks // 2 - 1, n_blocks - 4):
        return _noting(post, convention, "boundary", "they equal the post-layer default")
    if ids == (2, n_blocks // 2, n_blocks - 3):
        return _noting(boundary, convention, "post", "they equal the default boundary ids")
    if n_blocks in ids:
        return _noting(boundary, convention, "post", f"{n_blocks} is only possible as a boundary id")
    if convention is not None:
        return post if convention == "post" else boundary
    raise LayerIdError(
        f"aux layer ids {list(ids)} of a {n_blocks}-block target are ambiguous for {family}: they may be "
        f"boundary ids (R_{ids[0]}, ...) or post-layer ids (R_{ids[0] + 1}, ...), and a wrong guess would "
        "show only as poor acceptance. Look up how the drafter was trained and pass --layer-ids boundary or "
        "--layer-ids post"
    )


def _noting(chosen: LayerIds, convention: Convention | None, against: Convention, why: str) -> LayerIds:
    if convention != against:
        return chosen
    return LayerIds(chosen.ids, chosen.rule, (f"aux layer ids read as {list(chosen.ids)} because {why}",))


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
