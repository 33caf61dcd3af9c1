# SPDX-License-Identifier: MIT
"""What the converter needs to know about a target: width, blocks, vocabulary, tokenizer, and a few rows of
its head.

A target is a GGUF (its tokenizer is copied byte for byte) or a Hugging Face directory (the tokenizer is built
from tokenizer.json where llama.cpp knows its pre-tokenizer). Weights are optional and only sampled.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType

from . import ggml_lib, safetensors_file
from .config import integer, load_json
from .errors import CheckpointError, QuantTypeError, SourceError, TargetError
from .gguf_file import Field, GgufFile, TensorInfo, read_gguf
from .head_check import HeadRows
from .hf_tokenizer import build_tokenizer
from .tensor import TensorSource

__all__ = ["TargetInfo", "open_target"]

# Targets whose feature n in llama.cpp is R_n; others hand out the state after the final norm, or none.
_STOCK_LAST_BOUNDARY = frozenset({"gpt-oss", "gpt_oss"})


@dataclass(frozen=True)
class TargetInfo:
    """A target. tokenizer: its `tokenizer.*` entries, ready to be written. files: never to be overwritten."""

    name: str
    path: Path
    architecture: str
    hidden_size: int
    block_count: int
    vocab_size: int
    tokenizer: tuple[Field, ...]
    files: tuple[Path, ...]
    head: HeadRows | None = None

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
    """Open a target. Raises SourceError, GgufError, TargetError, TokenizerError."""
    path = Path(target)
    if path.is_file():
        return _from_gguf(read_gguf(path))
    if path.is_dir():
        return _from_directory(path, path.resolve().name)
    raise SourceError(
        f"{target}: expected the target as a GGUF file or a Hugging Face directory, found nothing there"
    )


def _from_gguf(file: GgufFile) -> TargetInfo:
    arch = file.architecture
    if not arch or arch.startswith("eagle") or arch == "clip":
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
        files=(file.path,),
        head=_gguf_head(file, len(tokens)),
    )


def _from_directory(directory: Path, name: str) -> TargetInfo:
    config = load_json(directory / "config.json")
    if isinstance(config.get("text_config"), dict):
        config = {**config, **config["text_config"]}
    where = f"{directory / 'config.json'}: "
    vocab = integer(config, "vocab_size", where=where)
    weights = tuple(sorted(directory.glob("*.safetensors")))
    return TargetInfo(
        name=name,
        path=directory,
        architecture=str(config.get("model_type", "")),
        hidden_size=integer(config, "hidden_size", where=where),
        block_count=integer(config, "num_hidden_layers", where=where),
        vocab_size=vocab,
        tokenizer=build_tokenizer(directory, vocab),
        files=weights,
        head=_directory_head(weights, vocab),
    )


def _gguf_head(file: GgufFile, vocab: int) -> HeadRows | None:
    """The head, or the embedding table of a model that shares it; None in a file without weights."""
    info = file.tensors.get("output.weight") or file.tensors.get("token_embd.weight")
    if info is None or len(info.shape) != 2 or info.shape[0] != vocab:
        return None
    head: TensorInfo = info
    kinds = {int(kind): kind for kind in GGMLQuantizationType}
    if head.type not in kinds:
        return None
    kind, width = kinds[head.type], head.shape[1]
    block, block_bytes = GGML_QUANT_SIZES[kind]
    row_bytes = width // block * block_bytes

    def row(i: int) -> npt.NDArray[np.float32]:
        with file.path.open("rb") as data:
            data.seek(head.offset + i * row_bytes)
            raw = np.frombuffer(data.read(row_bytes), np.uint8).reshape(1, -1)
        rows: npt.NDArray[np.float32] = (
            raw.view("<f4")
            if kind is GGMLQuantizationType.F32
            else ggml_lib.dequantize_rows(raw, kind, width)
        )
        return np.asarray(rows[0], dtype=np.float32)

    try:
        row(0)
    except (OSError, QuantTypeError):  # the check is a bonus; without the library or the data there is none
        return None
    return HeadRows((vocab, width), row)


def _directory_head(weights: Iterable[Path], vocab: int) -> HeadRows | None:
    found: dict[str, TensorSource] = {}
    try:
        for path in weights:
            found |= safetensors_file.read_index(path)
    except CheckpointError:  # a target may come in dtypes no drafter has; only the comparison is lost
        return None
    names = ("lm_head.weight", "model.embed_tokens.weight", "model.language_model.embed_tokens.weight")
    head = next((found[name] for name in names if name in found), None)
    if head is None or len(head.shape) != 2 or head.shape[0] != vocab or not head.is_float:
        return None
    source = head
    return HeadRows((vocab, source.shape[1]), lambda i: source.read_rows(i, i + 1)[0])
