# SPDX-License-Identifier: MIT
"""Facts from the header of a GGUF, for config blobs, `show`, drafter checks and `create -q TYPE`.

This module imports numpy and gguf (through `eaglecpp.convert`), so commands that must start fast do not
import it.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gguf import LlamaFileType

from eaglecpp.convert import GgufFile, inspection, read_gguf
from eaglecpp.convert import keys as of_convert
from eaglecpp.errors import EagleError, InvalidValueError, MismatchError, UnsupportedError

_NORMAL = 1

FILE_TYPES = {type.name.removeprefix("MOSTLY_").removeprefix("ALL_"): type.value for type in LlamaFileType}
"""llama.cpp's numbers of file types by name, such as Q4_K_M."""


@dataclass(frozen=True)
class Facts:
    """The header of one GGUF. For a split file, this is the header of the first part, with the tensors of all
    parts.

    block_count: layers without the prediction layers, which llama.cpp does not run as part of the target
    """

    file: GgufFile
    architecture: str
    n_parameters: int
    file_type: str
    context_length: int | None
    hidden_size: int | None
    block_count: int | None

    @property
    def is_drafter(self) -> bool:
        """True for a drafter that reads the target's hidden states, that is, an EAGLE or block drafter."""
        return self.architecture in of_convert.ALL

    @property
    def draft_kind(self) -> str:
        """The drafter's kind: DFlash, DSpark or DFlash2 for a block drafter (all three have the same
        architecture), otherwise the architecture.
        """
        block = inspection.block_of(self.file)
        return self.architecture if block is None else block["kind"]

    @property
    def has_head(self) -> bool:
        """True if the file has a multi-token prediction (MTP) head that can draft for the model in the same
        file.
        """
        from eaglecpp._extension import core

        if self.architecture not in core.head_architectures() or self.block_count is None:
            return False
        trunk, head = "blk.0.attn_norm.weight", f"blk.{self.block_count}.nextn.eh_proj.weight"
        return trunk in self.file.tensors and head in self.file.tensors

    @property
    def tokens(self) -> list[bytes]:
        """Texts of the vocabulary's tokens, which are empty if the file has no vocabulary."""
        return list(self.file.get("tokenizer.ggml.tokens") or [])

    def config(self) -> dict[str, Any]:
        """Returns the entries of a config blob that describe the weights, with Ollama's keys."""
        return {
            "model_format": "gguf",
            "model_family": self.architecture,
            "model_families": [self.architecture],
            "model_type": human_number(self.n_parameters),
            "file_type": self.file_type,
            "architecture": "amd64",
            "os": "linux",
            **({"context_length": self.context_length} if self.context_length else {}),
            **({"embedding_length": self.hidden_size} if self.hidden_size else {}),
        }


def read_facts(files: Sequence[Path]) -> Facts:
    """Reads the headers of a GGUF's parts, first part first. Raises `eaglecpp.convert.errors.GgufError`."""
    head = read_gguf(files[0])
    parts = (head, *map(read_gguf, files[1:]))
    n_parameters = sum(tensor.n_elements for file in parts for tensor in file.tensors.values())
    arch = head.architecture
    blocks = head.integer(f"{arch}.block_count")
    if blocks is not None:
        blocks -= head.integer(f"{arch}.nextn_predict_layers") or 0
    n_ctx, n_embd = (head.integer(f"{arch}.{key}") for key in ("context_length", "embedding_length"))
    return Facts(head, arch, n_parameters, _file_type(head), n_ctx, n_embd, blocks)


def metadata(file: GgufFile) -> dict[str, Any]:
    """Returns the keys of a GGUF as JSON-ready data. Arrays, such as vocabularies, are None, as in Ollama."""
    known = {name: field.value for name, field in sorted(file.fields.items())}
    texts = {key: v.decode("utf-8", "replace") for key, v in known.items() if isinstance(v, bytes)}
    return known | texts | {key: None for key, v in known.items() if isinstance(v, list)}


def human_number(number: int) -> str:
    """Formats a parameter count as Ollama does (ollama/ollama: format/format.go): 3.2B, 137M, 12.50M, 40K."""
    for unit, size, digits in (("B", 10**9, 1), ("M", 10**6, 2)):
        if number >= size:
            return f"{number / size:.0f}{unit}" if number % size == 0 else f"{number / size:.{digits}f}{unit}"
    return f"{number / 1000:.0f}K" if number >= 1000 else str(number)


def _file_type(file: GgufFile) -> str:
    """Returns the file type, such as Q4_K_M. If the file does not state its type, returns the tensor type
    with the most bytes.
    """
    names: dict[int, str] = {number: name for name, number in FILE_TYPES.items()}
    usual = next(iter(inspection.types_of(file)), "unknown")
    return names.get(file.integer("general.file_type") or -1, usual)


def check_fit(draft: Path, target: Facts) -> Facts:
    """Checks that a drafter fits the target and returns the drafter's facts. Raises MismatchError, which
    names both models and every difference, and GgufError or an error of `eaglecpp.convert` for an invalid
    file. For a small model or a bare head, the engine decides whether it fits the target, because the engine
    loads it together with the target. Source of the rules: native/engine/models.cpp.
    """
    from eaglecpp._extension import core

    facts, path = read_facts([draft]), target.file.path
    if draft.samefile(path):
        raise MismatchError(f"{draft} is both target and drafter; name a smaller model, or an EAGLE drafter")
    if not facts.is_drafter:
        return facts
    info, ours, theirs = core.DraftFile(str(draft)).info, facts.tokens, target.tokens
    compared: list[tuple[str, Any, Any]] = [
        ("hidden size", info["n_embd_target"], target.hidden_size),
        ("vocabulary size", info["n_vocab"], len(theirs)),
        ("number of layers", info["n_layer_target"] or target.block_count, target.block_count),
    ]
    if len(ours) == len(theirs):
        # Control tokens and added tokens are not compared. Fine-tunes rename these tokens, which does no
        # harm.
        types = facts.file.get("tokenizer.ggml.token_type") or []  # type 1 means an ordinary token
        normal = [i for i, kind in enumerate(types) if kind == _NORMAL] or range(len(ours))
        compared += [(f"token {i}", ours[i], theirs[i]) for i in normal if ours[i] != theirs[i]][:1]
    if wrong := [
        f"{what}: the drafter has {one}, the target {other}" for what, one, other in compared if one != other
    ]:
        raise MismatchError(
            f"the drafter {draft} was not made for the target {path}: {'; '.join(wrong)}; use a drafter for "
            "exactly this model, or make a drafter with `eaglecpp convert` or `eaglecpp train`"
        )
    return facts


def quantize_target(files: Sequence[Path], facts: Facts, type: str, out: Path) -> None:
    """Writes an F32, F16 or BF16 target to `out` in another type, with llama.cpp's quantiser.

    Raises ValueError for an unknown type, UnsupportedError for a split or quantised file, OSError if the disk
    is full, EagleError if llama.cpp fails.
    """
    import llama_cpp

    from eaglecpp._extension import core
    from eaglecpp.log import drain

    core.system_info()  # takes back llama.cpp's log, which the import of llama_cpp has redirected

    source, number = files[0], FILE_TYPES.get(type.upper())
    if number is None:
        raise InvalidValueError(f"expected a type of {', '.join(sorted(FILE_TYPES))}, found {type!r}")
    if len(files) > 1:
        raise UnsupportedError(f"{source} is a split GGUF; merge it first (llama-gguf-split --merge)")
    if facts.file_type not in ("F32", "F16", "BF16"):
        raise UnsupportedError(f"{source} is already {facts.file_type}; start from F32 or F16")
    params = llama_cpp.llama_model_quantize_default_params()
    params.ftype = number
    out.touch(0o644)  # gives the file permissions that do not depend on the umask
    try:
        failed = llama_cpp.llama_model_quantize(str(source).encode(), str(out).encode(), ctypes.byref(params))
    finally:
        errors = drain()
    if failed:
        with out.open("ab") as stream:  # Unlike llama.cpp, this write raises an error if the disk is full
            stream.write(bytes(1 << 20))
        raise EagleError(f"{source}: llama.cpp could not quantise it: {''.join(errors[-1:]).strip()}")
