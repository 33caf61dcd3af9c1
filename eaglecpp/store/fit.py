# SPDX-License-Identifier: MIT
"""Does this drafter belong to this target? The engine's rule, asked of two files without loading weights.

`eaglecpp create` and `pull` ask before they bind the two together; the engine asks again when it loads them.
Source of the rule: native/engine/fit.cpp.
"""

from __future__ import annotations

from pathlib import Path

from eaglecpp.errors import MismatchError

from .facts import Facts, read_facts

__all__ = ["check_fit", "fits"]

_NORMAL = 1


def check_fit(draft: Path, target: Facts) -> Facts:
    """The drafter's facts. Raises MismatchError naming both sides and everything that differs, and GgufError
    (or convert's) for a file that is no sound drafter.
    """
    from eaglecpp._extension import core

    info = core.DraftFile(str(draft)).info
    facts = read_facts([draft])
    wrong = [
        f"{what}: drafter {ours}, target {theirs}"
        for what, ours, theirs in (
            ("hidden size", info["n_embd_target"], target.hidden_size),
            ("vocabulary size", info["n_vocab"], len(target.tokens)),
            ("number of blocks", info["n_layer_target"] or target.block_count, target.block_count),
        )
        if ours != theirs
    ]
    highest = max(info["target_layers"])
    if target.block_count is not None and highest > target.block_count:
        wrong.append(f"layer id {highest}: the target has only {target.block_count} blocks")
    wrong += _token_differences(facts, target)
    if wrong:
        raise MismatchError(
            f"the drafter {draft} was not made for the target {target.file.path}: {'; '.join(wrong)}; use "
            "the drafter of this very model, or make one with `eaglecpp convert` or `eaglecpp train`"
        )
    return facts


def fits(draft: Path, target: Facts) -> bool:
    """Whether `check_fit` finds nothing wrong with the pair."""
    try:
        check_fit(draft, target)
    except MismatchError:
        return False
    return True


def _token_differences(draft: Facts, target: Facts) -> list[str]:
    """Normal tokens must agree. Control and added ones are renamed by fine-tunes, which does no harm."""
    ours, theirs, types = draft.tokens, target.tokens, draft.token_types
    if len(ours) != len(theirs):
        return []  # said already, as vocabulary size
    different = [
        i
        for i, (a, b) in enumerate(zip(ours, theirs, strict=True))
        if a != b and (not types or types[i] == _NORMAL)
    ]
    if not different:
        return []
    first = different[0]
    return [
        f"tokenizer: {len(different)} tokens differ, the first is {first}: drafter "
        f"{ours[first].decode('utf-8', 'replace')!r}, target {theirs[first].decode('utf-8', 'replace')!r}"
    ]
