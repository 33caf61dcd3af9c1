# SPDX-License-Identifier: MIT
"""What the converter needs to know about a target: width, blocks, vocabulary, tokenizer, and a few rows of
its head.

Its tokenizer is copied byte for byte. Weights are optional and only sampled.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from .errors import EagleError, SourceError, TargetError
from .gguf_file import GgufFile, read_gguf, read_rows
from .gguf_head import Field
from .keys import ALL
from .vocab_map import HeadRows

# Targets whose feature n in llama.cpp is R_n; others hand out the state after the final norm, or none.
_STOCK_LAST_BOUNDARY = frozenset({"gpt-oss", "gpt_oss"})


@dataclass(frozen=True)
class TargetInfo:
    """A target. tokenizer: its `tokenizer.*` entries, ready to be written."""

    name: str
    path: Path
    architecture: str
    hidden_size: int
    block_count: int
    vocab_size: int
    tokenizer: tuple[Field, ...]
    head: HeadRows | None = None
    has_head: bool = False
    """Whether the file has a head next to its embeddings."""

    @property
    def stock_has_last_boundary(self) -> bool:
        """Whether llama.cpp's feature with id n is R_n on this target."""
        return self.architecture in _STOCK_LAST_BOUNDARY

    @property
    def eos_token_id(self) -> int | None:
        """The token that ends a text, where the tokenizer names one."""
        values = (field.value for field in self.tokenizer if field.name == "tokenizer.ggml.eos_token_id")
        return next((int(value) for value in values if isinstance(value, int)), None)


def open_target(target: str | Path) -> TargetInfo:
    """Open a target's GGUF. Raises SourceError, GgufError, TargetError."""
    path = Path(target)
    if path.is_dir():
        raise SourceError(
            f"{target}: expected the target as a GGUF file, which the drafter will serve, found a folder"
        )
    if not path.exists():
        raise SourceError(f"{target}: expected the target as a GGUF file, found nothing there")
    file = read_gguf(path)
    arch = file.architecture
    if not arch or arch in ALL or arch.startswith("eagle") or arch == "clip":
        raise TargetError(f"{file.path}: expected a target model, found architecture {arch or 'nothing'!r}")
    sizes = {key: file.integer(f"{arch}.{key}") for key in ("embedding_length", "block_count")}
    tokens = file.get("tokenizer.ggml.tokens")
    if not isinstance(tokens, list) or not tokens:
        raise TargetError(f"{file.path}: key tokenizer.ggml.tokens: expected the target's tokens, found none")
    for key, value in sizes.items():
        if value is None or value < 1:
            raise TargetError(f"{file.path}: key {arch}.{key}: expected a positive integer, found {value}")
    # Extra prediction layers are counted as blocks but never run as part of the target.
    blocks = (sizes["block_count"] or 0) - (file.integer(f"{arch}.nextn_predict_layers") or 0)
    return TargetInfo(
        name=file.text("general.name", file.path.stem),
        path=file.path,
        architecture=arch,
        hidden_size=sizes["embedding_length"] or 0,
        block_count=blocks,
        vocab_size=len(tokens),
        # An empty array cannot be written by the gguf package and means the same as none.
        tokenizer=tuple(f for f in file.fields.values() if f.name.startswith("tokenizer.") and f.value != []),
        head=_gguf_head(file, len(tokens)),
        has_head="output.weight" in file.tensors,
    )


def _gguf_head(file: GgufFile, vocab: int) -> HeadRows | None:
    """The head, or the embedding table of a model that shares it; None in a file without weights."""
    info = file.tensors.get("output.weight") or file.tensors.get("token_embd.weight")
    if info is None or len(info.shape) != 2 or info.shape[0] != vocab:
        return None
    name = info.name
    try:
        read_rows(file, name, 0, 1)
    except EagleError:  # the check is a bonus; without the library or the data there is none
        return None
    return HeadRows((vocab, info.shape[1]), lambda i: read_rows(file, name, i, i + 1)[0])
