# SPDX-License-Identifier: MIT
"""Does this drafter, or this LoRA, belong to this target? Asked of two files without loading weights.

`eaglecpp create` and `pull` ask before they bind the two together; the engine asks again when it loads them.
Sources of the rules: models.cpp and model_drafter.cpp in native/engine, native/target/file_checks.cpp.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from eaglecpp.errors import MismatchError, UnsupportedError
from eaglecpp.store.facts import Facts, read_facts

_NORMAL, _BYTE = 1, 6


def check_fit(draft: Path, target: Facts) -> Facts:
    """The drafter's facts: of one that reads the target's features, or of a small model of its family. Raises
    MismatchError naming both sides and everything that differs, UnsupportedError for what cannot draft, and
    GgufError (or convert's) for a file that is no sound drafter.
    """
    from eaglecpp._extension import core

    facts = read_facts([draft])
    if not facts.is_drafter:
        if draft.samefile(target.file.path):
            raise MismatchError(
                f"{draft} is both target and drafter: a model that drafts for itself saves nothing; give a "
                "smaller one, or an EAGLE drafter"
            )
        _check_method(facts, target)
        _check_small_model(facts, target)
        return facts
    info = core.DraftFile(str(draft)).info
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
    # EAGLE-1 and 2 read what the last block and the final norm leave
    if target.block_count is not None and highest > target.block_count + info["fuses_embedding"]:
        wrong.append(f"layer id {highest}: the target has only {target.block_count} blocks")
    if len(facts.tokens) == len(target.tokens):
        # control and added ones are renamed by fine-tunes, which does no harm
        normal = [i for i, kind in enumerate(facts.token_types) if kind == _NORMAL]
        different = _different(facts, target, normal or range(len(facts.tokens)))
        wrong += [f"tokenizer: {different}"] if different else []
    if wrong:
        raise MismatchError(
            f"the drafter {draft} was not made for the target {target.file.path}: {'; '.join(wrong)}; use "
            "a drafter for exactly this model, or make one with `eaglecpp convert` or `eaglecpp train`"
        )
    return facts


def check_adapter(adapter: Path, target: Path) -> None:
    """Raises MismatchError or GgufError, naming the tensor, for a GGUF that is not a LoRA, or not one for
    this model. target: its first part, the others next to it.
    """
    from eaglecpp._extension import core

    core.check_lora(str(adapter), str(target))


def _check_method(draft: Facts, target: Facts) -> None:
    """Whether what llama.cpp would run is of a kind that drafts here (native/engine/model_drafter.cpp)."""
    arch, path = draft.architecture, draft.file.path
    if arch == "gemma4-assistant":
        raise UnsupportedError(f"{path}: assistants do not draft here; use an EAGLE or a block drafter")
    if draft.is_head_alone:
        if target.architecture != arch:
            raise MismatchError(
                f"{path} cannot draft for {target.file.path}: its heads are those of a '{arch}', the "
                f"target is a '{target.architecture}'; use the heads of this very model"
            )
    elif any(name.startswith((f"{arch}.ssm.", f"{arch}.wkv.")) for name in draft.file.fields):
        raise UnsupportedError(
            f"{path} cannot draft: a model of architecture '{arch}' keeps a state from which rejected drafts "
            "cannot be taken back; use a small model with plain attention"
        )


def _check_small_model(small: Facts, target: Facts) -> None:
    """A small model must have the target's vocabulary; special tokens and padding at the end may differ."""
    ordinary = sorted(_ordinary(small) | _ordinary(target))
    different = _different(small, target, ordinary) if small.tokens else "it has none"
    if different:
        raise MismatchError(
            f"{small.file.path} cannot draft for {target.file.path}: a small model must have the target's "
            f"vocabulary, but {different}; use a small model of the same family, or an EAGLE drafter for "
            "exactly this model"
        )


def _ordinary(facts: Facts) -> set[int]:
    """Ids of the tokens that stand for text."""
    types = facts.token_types
    return {i for i in range(len(facts.tokens)) if i >= len(types) or types[i] in (_NORMAL, _BYTE)}


def _different(draft: Facts, target: Facts, ids: Iterable[int]) -> str:
    """What of these tokens is another one in the target; "" when nothing is."""
    ours, theirs = draft.tokens, target.tokens
    different = [i for i in ids if ours[i : i + 1] != theirs[i : i + 1]]
    if not different:
        return ""
    first = different[0]
    shown = [repr(b"".join(one[first : first + 1]).decode("utf-8", "replace")) for one in (ours, theirs)]
    return f"{len(different)} tokens differ, the first is {first}: drafter {shown[0]}, target {shown[1]}"
