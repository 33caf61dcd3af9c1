# SPDX-License-Identifier: MIT
"""Does this drafter, or this LoRA, belong to this target? Asked of two files without loading weights.

`eaglecpp create` and `pull` ask before they bind the two together; the engine asks again when it loads them.
Sources of the rules: native/engine/models.cpp, native/engine/token_map.cpp, ggml-org/llama.cpp:
src/llama-adapter.cpp.
"""

from __future__ import annotations

from pathlib import Path

from eaglecpp.convert import read_gguf
from eaglecpp.errors import MismatchError, UnsupportedError
from eaglecpp.store.facts import Facts, read_facts

__all__ = ["check_adapter", "check_fit", "fits"]

_NORMAL, _BYTE = 1, 6
_OTHER_METHODS = ("dflash",)
_ASSISTANT = "gemma4-assistant"
_EMBEDDING = "token_embd.weight"  # its factors lie the other way round


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


def check_adapter(adapter: Path, target: Facts) -> None:
    """Raises MismatchError for a GGUF that is not a LoRA, or not one for this model."""
    file = read_gguf(adapter)
    kind = file.text("general.type", "") or "model"
    if kind != "adapter" or file.text("adapter.type", "") != "lora":
        raise MismatchError(f"ADAPTER {adapter}: expected a LoRA (general.type adapter), found a {kind}")
    if file.architecture != target.architecture:
        raise MismatchError(
            f"ADAPTER {adapter}: made for architecture '{file.architecture}', the target "
            f"{target.file.path} is '{target.architecture}'"
        )
    is_split = (target.file.integer("split.count") or 1) > 1  # only the tensors of its first part are known
    for name, tensor in file.tensors.items():
        base, _, side = name.rpartition(".")
        if side not in ("lora_a", "lora_b") or (is_split and base not in target.file.tensors):
            continue
        weight = target.file.tensors.get(base)
        n_factor = tensor.shape[-1] if side == "lora_a" else tensor.shape[0]
        n_weight = None if weight is None else weight.shape[-1] if side == "lora_a" else weight.shape[0]
        if n_factor != n_weight and base != _EMBEDDING:
            found = "the target has no such tensor" if n_weight is None else f"the target's has {n_weight}"
            raise MismatchError(
                f"ADAPTER {adapter} was not made for the target {target.file.path}: {name} is for {n_factor} "
                f"{'inputs' if side == 'lora_a' else 'outputs'}, {found}"
            )


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
    own_types, their_types = small.token_types, target.token_types

    def is_ordinary(types: list[int], tokens: list[bytes], i: int) -> bool:
        return i < len(tokens) and (i >= len(types) or types[i] in (_NORMAL, _BYTE))

    different = [
        i
        for i in range(max(len(ours), len(theirs)))
        if ours[i : i + 1] != theirs[i : i + 1]
        and (is_ordinary(own_types, ours, i) or is_ordinary(their_types, theirs, i))
    ]
    if not ours or different:
        first = different[0] if different else 0
        raise MismatchError(
            f"{small.file.path} cannot draft for {target.file.path}: a small model must have the target's "
            f"vocabulary, but {len(different)} tokens differ, the first is {first}: "
            f"{_shown(ours, first)} here, {_shown(theirs, first)} in the target; use a small model of the "
            "same family, or an EAGLE drafter for exactly this model"
        )


def _shown(tokens: list[bytes], i: int) -> str:
    return repr(tokens[i].decode("utf-8", "replace")) if i < len(tokens) else "none"


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
