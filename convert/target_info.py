# SPDX-License-Identifier: MIT
"""What the converter needs to know of a target: width, number of blocks, vocabulary, tokenizer. Never its
weights.

A target is a GGUF (its tokenizer is copied byte for byte) or a Hugging Face directory or hub id (the
tokenizer is built from tokenizer.json where llama.cpp knows its pre-tokenizer).
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from .config import integer, load_json
from .errors import SourceError, TargetError
from .gguf_file import Field, GgufFile, read_gguf
from .hf_tokenizer import build_tokenizer
from .hub import fetch_target, is_hub_id

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

    @property
    def stock_has_last_boundary(self) -> bool:
        """Whether llama.cpp's feature with id n is R_n on this target."""
        return self.architecture in _STOCK_LAST_BOUNDARY


def open_target(target: str | Path) -> TargetInfo:
    """Open a target. Raises SourceError, GgufError, TargetError, TokenizerError."""
    path = Path(target)
    if path.is_file():
        return _from_gguf(read_gguf(path))
    if path.is_dir():
        return _from_directory(path, path.resolve().name)
    if is_hub_id(str(target)):
        return _from_directory(fetch_target(str(target)), str(target))
    raise SourceError(
        f"{target}: expected the target as a GGUF file, a Hugging Face directory or a hub id owner/name"
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
    # An empty array cannot be written by the gguf package and means the same as none.
    tokenizer = tuple(f for f in file.fields.values() if f.name.startswith("tokenizer.") and f.value != [])
    name = file.text("general.name", file.path.stem)
    return TargetInfo(
        name, file.path, arch, sizes["embedding_length"] or 0, blocks, len(tokens), tokenizer, (file.path,)
    )


def _from_directory(directory: Path, name: str) -> TargetInfo:
    config = load_json(directory / "config.json")
    if isinstance(config.get("text_config"), dict):
        config = {**config, **config["text_config"]}
    where = f"{directory / 'config.json'}: "
    vocab = integer(config, "vocab_size", where=where)
    return TargetInfo(
        name=name,
        path=directory,
        architecture=str(config.get("model_type", "")),
        hidden_size=integer(config, "hidden_size", where=where),
        block_count=integer(config, "num_hidden_layers", where=where),
        vocab_size=vocab,
        tokenizer=build_tokenizer(directory, vocab),
        files=tuple(directory.glob("*.safetensors")),
    )
