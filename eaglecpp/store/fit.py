# SPDX-License-Identifier: MIT
"""Does this drafter, or this LoRA, belong to this target? Asked of two files without loading weights.

`eaglecpp create` and `pull` ask before they bind the two together; the engine asks again when it loads them.
Sources of the rules: native/engine/models.cpp, native/engine/token_map.cpp, native/target/file_checks.cpp.
"""

from __future__ import annotations

from pathlib import Path

from eaglecpp.errors import MismatchError, UnsupportedError
from eaglecpp.store.facts import Facts, read_facts

__all__ = ["check_adapter", "check_fit", "fits"]

_NORMAL, _BYTE = 1, 6
_OTHER_METHODS = ("dflash",)
_ASSISTANT = "gemma4-assistant"


def check_fit(draft: Path, target: Facts) -> Facts:
    """The drafter's facts: an EAGLE drafter's, or a small model's of the target's family. Raises
    MismatchError naming both sides and everything that differs, UnsupportedError for what drafts in another
    way, and GgufError (or convert's) for a file that is no sound drafter.
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
    wrong += _token_differences(facts, target)
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


def fits(draft: Path, target: Facts) -> bool:
    """Whether `check_fit` finds nothing wrong with the pair."""
    try:
        check_fit(draft, target)
    except (MismatchError, UnsupportedError):
        return False
    return True


def _check_method(draft: Facts, target: Facts) -> None:
    """Whether what llama.cpp would run is of a kind that drafts here (native/engine/model_drafter.cpp)."""
    arch, path = draft.architecture, draft.file.path
    if arch in _OTHER_METHODS:
        raise UnsupportedError(
            f"{path}: drafters of architecture '{arch}' are not supported; llama.cpp runs it itself "
            f"(llama-server --spec-type draft-{arch} -md {path})"
        )
    expected = "gemma4" if arch == _ASSISTANT else arch
    if draft.is_head_alone:
        if target.architecture != expected:
            raise MismatchError(
                f"{path} cannot draft for {target.file.path}: its heads are those of a '{expected}', the "
                f"target is a '{target.architecture}'; use the heads of this very model"
            )
    elif any(name.startswith((f"{arch}.ssm.", f"{arch}.wkv.")) for name in draft.file.fields):
        raise UnsupportedError(
            f"{path} cannot draft: a model of architecture '{arch}' keeps a state from which rejected drafts "
            "cannot be taken back; use a small model with plain attention"
        )


def _check_small_model(small: Facts, target: Facts) -> None:
    """A small model must have the target's vocabulary; special tokens and padding at the end may differ."""
    ours, theirs = small.tokens, target.tokens
    ordinary = _ordinary(small) | _ordinary(target)
    n_tokens = max(len(ours), len(theirs))
    different = [i for i in range(n_tokens) if ours[i : i + 1] != theirs[i : i + 1] and i in ordinary]
    if not ours or different:
        first = different[0] if different else 0
        raise MismatchError(
            f"{small.file.path} cannot draft for {target.file.path}: a small model must have the target's "
            f"vocabulary, but {len(different)} tokens differ, the first is {first}: "
            f"{_shown(ours, first)} here, {_shown(theirs, first)} in the target; use a small model of the "
            "same family, or an EAGLE drafter for exactly this model"
        )


def _ordinary(facts: Facts) -> set[int]:
    """Ids of the tokens that stand for text."""
    types = facts.token_types
    return {i for i in range(len(facts.tokens)) if i >= len(types) or types[i] in (_NORMAL, _BYTE)}


def _shown(tokens: list[bytes], i: int) -> str:
    return repr(tokens[i].decode("utf-8", "replace")) if i < len(tokens) else "none"


def _token_differences(draft: Facts, target: Facts) -> list[str]:
    """Normal tokens must agree. Control and added ones are renamed by fine-tunes, which does no harm."""
    ours, theirs, types = draft.tokens, target.tokens, draft.token_types
    if len(ours) != len(theirs):
        return []  # said already, as vocabulary size
    is_normal = [kind == _NORMAL for kind in types] or [True] * len(ours)
    different = [i for i, normal in enumerate(is_normal) if normal and ours[i] != theirs[i]]
    return [
        f"tokenizer: {len(different)} tokens differ, the first is {i}: drafter {_shown(ours, i)}, target "
        f"{_shown(theirs, i)}"
        for i in different[:1]
    ]
