# SPDX-License-Identifier: MIT
"""Facts about a target for the converter: width, blocks, vocabulary, tokenizer, and a few rows of its head.

The target's tokenizer is copied byte for byte. The file may lack the target's weights, of which only a few
rows are read.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from .errors import EagleError, SourceError, TargetError
from .gguf_file import GgufFile, read_gguf, read_rows
from .gguf_head import Field
from .keys import ALL
from .vocab_map import HeadRows

# For targets of these architectures, llama.cpp returns R_n as feature n (n = number of blocks). For other
# targets, llama.cpp returns the state after the final norm, or no state.
STOCK_LAST_BOUNDARY = frozenset({"gpt-oss", "gpt_oss"})


@dataclass(frozen=True)
class TargetInfo:
    """Facts about a target's GGUF. tokenizer: the `tokenizer.*` entries, ready for writing."""

    name: str
    path: Path
    architecture: str
    hidden_size: int
    block_count: int
    vocab_size: int
    tokenizer: tuple[Field, ...]
    head: HeadRows | None = None
    has_head: bool = False
    """True if the file has a head in addition to its embeddings."""

    @property
    def eos_token_id(self) -> int | None:
        """The end-of-sequence token; None if the tokenizer does not name it."""
        values = (field.value for field in self.tokenizer if field.name == "tokenizer.ggml.eos_token_id")
        return next((int(value) for value in values if isinstance(value, int)), None)


def open_target(target: str | Path) -> TargetInfo:
    """Opens a target's GGUF. Raises SourceError, GgufError, TargetError."""
    path = Path(target)
    if path.is_dir():
        raise SourceError(f"{target}: expected the target's GGUF file, found a folder")
    if not path.exists():
        raise SourceError(f"{target}: expected the target's GGUF file, found no such file")
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
    # block_count includes the multi-token prediction layers, which do not run as part of the target.
    blocks = (sizes["block_count"] or 0) - (file.integer(f"{arch}.nextn_predict_layers") or 0)
    return TargetInfo(
        name=file.text("general.name", file.path.stem),
        path=file.path,
        architecture=arch,
        hidden_size=sizes["embedding_length"] or 0,
        block_count=blocks,
        vocab_size=len(tokens),
        # The gguf package cannot write empty arrays, so they are left out. Readers treat a missing array as
        # an empty array.
        tokenizer=tuple(f for f in file.fields.values() if f.name.startswith("tokenizer.") and f.value != []),
        head=_gguf_head(file, len(tokens)),
        has_head="output.weight" in file.tensors,
    )


def _gguf_head(file: GgufFile, vocab: int) -> HeadRows | None:
    """Returns the target's output head. Returns the embedding table if the target uses this table as its
    head, and None for a file without weights.
    """
    info = file.tensors.get("output.weight") or file.tensors.get("token_embd.weight")
    if info is None or len(info.shape) != 2 or info.shape[0] != vocab:
        return None
    name = info.name
    try:
        read_rows(file, name, 0, 1)
    # Without ggml's library or without the data, the optional similarity check is skipped.
    except EagleError:
        return None
    return HeadRows((vocab, info.shape[1]), lambda i: read_rows(file, name, i, i + 1)[0])
