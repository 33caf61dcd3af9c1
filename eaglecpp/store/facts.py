# SPDX-License-Identifier: MIT
"""Facts from the header of a GGUF, in the terms of stores: for config blobs, `show`, and checking a drafter.

Loads numpy and gguf (through `eaglecpp.convert`), so nothing that has to be fast imports this.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gguf import LlamaFileType

from eaglecpp.convert import GgufFile, read_gguf, type_name
from eaglecpp.convert import keys as of_convert

FILE_TYPES = {one.name.removeprefix("MOSTLY_").removeprefix("ALL_"): one.value for one in LlamaFileType}
"""llama.cpp's number of every type that a whole file can have, by name (Q4_K_M ...)."""


@dataclass(frozen=True)
class Facts:
    """The head of one GGUF; of a split file, of its first part, with the tensors of all parts counted.

    block_count: without prediction layers, which llama.cpp does not run as part of the target
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
        """Whether it is a drafter that reads the target's features: EAGLE or a block drafter."""
        return self.architecture in of_convert.ALL

    @property
    def has_head(self) -> bool:
        """Whether the file brings a head for further tokens (MTP) that can draft for it."""
        from eaglecpp._extension import core

        if self.architecture not in core.head_architectures() or self.block_count is None:
            return False
        trunk, head = "blk.0.attn_norm.weight", f"blk.{self.block_count}.nextn.eh_proj.weight"
        return trunk in self.file.tensors and head in self.file.tensors

    @property
    def is_head_alone(self) -> bool:
        """Whether the file holds heads for further tokens without the model that they draft for."""
        has_heads = (self.file.integer(f"{self.architecture}.nextn_predict_layers") or 0) > 0
        return has_heads and "blk.0.attn_norm.weight" not in self.file.tensors

    @property
    def tokens(self) -> list[bytes]:
        """Texts of the vocabulary; empty when the file has none."""
        return list(self.file.get("tokenizer.ggml.tokens") or [])

    @property
    def token_types(self) -> list[int]:
        """Kinds of the tokens; 1 is a normal one. Empty when the file does not say."""
        return list(self.file.get("tokenizer.ggml.token_type") or [])

    def config(self) -> dict[str, Any]:
        """The config blob's part about the weights, with Ollama's keys."""
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
    """Reads the heads of a GGUF's parts, first part first. Raises `eaglecpp.convert.errors.GgufError`."""
    head = read_gguf(files[0])
    n_parameters = sum(
        tensor.n_elements for file in (head, *map(read_gguf, files[1:])) for tensor in file.tensors.values()
    )
    arch = head.architecture
    blocks = head.integer(f"{arch}.block_count")
    if blocks is not None:
        blocks -= head.integer(f"{arch}.nextn_predict_layers") or 0
    return Facts(
        file=head,
        architecture=arch,
        n_parameters=n_parameters,
        file_type=_file_type(head),
        context_length=head.integer(f"{arch}.context_length"),
        hidden_size=head.integer(f"{arch}.embedding_length"),
        block_count=blocks,
    )


def metadata(file: GgufFile, *, arrays: bool = False) -> dict[str, Any]:
    """The keys of a GGUF, JSON-ready; arrays (vocabularies) are None unless asked for, as in Ollama."""

    def plain(value: Any) -> Any:
        return value.decode("utf-8", "replace") if isinstance(value, bytes) else value

    return {
        name: (list(map(plain, field.value)) if arrays else None)
        if isinstance(field.value, list)
        else plain(field.value)
        for name, field in sorted(file.fields.items())
    }


def human_number(number: int) -> str:
    """3.2B, 137M, 12.50M, 40K: as Ollama writes parameter counts (ollama/ollama: format/format.go)."""
    for unit, size, digits in (("B", 10**9, 1), ("M", 10**6, 2)):
        if number >= size:
            return f"{number / size:.0f}{unit}" if number % size == 0 else f"{number / size:.{digits}f}{unit}"
    return f"{number / 1000:.0f}K" if number >= 1000 else str(number)


def _file_type(file: GgufFile) -> str:
    """Q4_K_M and the like; without the key, the type of most bytes."""
    number = file.integer("general.file_type")
    name = next((name for name, known in FILE_TYPES.items() if known == number), None)
    sizes: Counter[str] = Counter()
    for tensor in file.tensors.values():
        sizes[type_name(tensor.type)] += tensor.n_bytes
    return name or max(sizes, key=sizes.__getitem__, default="unknown")
