# SPDX-License-Identifier: MIT
"""A Hugging Face tokenizer.json as `tokenizer.*` GGUF entries, for the kinds llama.cpp runs the same way.

Byte-level BPE only, and only with a pre-tokenizer pattern llama.cpp implements (ggml-org/llama.cpp:
src/llama-vocab.cpp). Everything else (SentencePiece, WordPiece, unknown patterns) is refused with the
advice to give the target's GGUF, whose tokenizer can be copied unchanged.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import gguf
from gguf import GGUFValueType, TokenType

from .config import load_json
from .errors import TokenizerError
from .gguf_file import Field, field_of

__all__ = ["build_tokenizer"]

_ADVICE = "give the target as a GGUF file instead (--target model.gguf); its tokenizer is copied unchanged"

_CONTRACTIONS = "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_TAIL = r"\s*[\r\n]+|\s+(?!\S)|\s+"
_LLAMA3 = (
    rf"{_CONTRACTIONS}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}{{1,3}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|{_TAIL}"
)
_UPPER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]"
_LOWER = r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_CASED = rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}*{_LOWER}+%s|[^\r\n\p{{L}}\p{{N}}]?{_UPPER}+{_LOWER}*%s"
_GPT4O = (
    _CASED % (f"{_CONTRACTIONS}?", f"{_CONTRACTIONS}?")
) + rf"|\p{{N}}{{1,3}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*|{_TAIL}"

# Split patterns in order -> llama.cpp's name. The name also decides ignore_merges: llama 3's has two.
_PATTERNS: dict[tuple[str, ...], str] = {
    ("ByteLevel",): "gpt-2",
    ("Digits", "ByteLevel"): "starcoder",
    (_LLAMA3,): "smaug-bpe",
    (_LLAMA3.replace(r"\p{N}{1,3}", r"\p{N}"),): "qwen2",
    (
        _LLAMA3.replace(r"\p{N}{1,3}", r"\p{N}")
        .replace(r"?\p{L}+", r"?[\p{L}\p{M}]+")
        .replace(r"[^\s\p{L}\p{N}]", r"[^\s\p{L}\p{M}\p{N}]"),
    ): "qwen35",
    (_GPT4O,): "gpt-4o",
    ((_CASED % ("", "")) + rf"|\p{{N}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*|{_TAIL}",): "tekken",
}


def build_tokenizer(directory: Path, vocab_size: int) -> tuple[Field, ...]:
    """The entries llama.cpp's converter would write for this directory.

    vocab_size: rows of the target's embedding. Raises TokenizerError.
    """
    path = directory / "tokenizer.json"
    if not path.is_file():
        raise TokenizerError(f"{path}: not found; {_ADVICE}")
    try:
        return (*_vocabulary(path, load_json(path), vocab_size), *_special(directory, vocab_size))
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise TokenizerError(f"{path}: malformed: {type(error).__name__}: {error}; {_ADVICE}") from error


def _vocabulary(path: Path, data: Mapping[str, Any], vocab_size: int) -> list[Field]:
    model = data.get("model")
    if not isinstance(model, dict) or model.get("type") != "BPE" or model.get("byte_fallback"):
        kind = model.get("type") if isinstance(model, dict) else None
        raise TokenizerError(f"{path}: expected a byte-level BPE tokenizer, found {kind}; {_ADVICE}")
    pre = _pre_tokenizer(path, data, bool(model.get("ignore_merges")))
    tokens, types = _tokens(path, data, model, vocab_size)
    return [
        Field("tokenizer.ggml.model", GGUFValueType.STRING, None, b"gpt2"),
        Field("tokenizer.ggml.pre", GGUFValueType.STRING, None, pre.encode()),
        Field("tokenizer.ggml.tokens", GGUFValueType.ARRAY, GGUFValueType.STRING, tokens),
        Field("tokenizer.ggml.token_type", GGUFValueType.ARRAY, GGUFValueType.INT32, types),
    ]


def _pre_tokenizer(path: Path, data: Mapping[str, Any], ignore_merges: bool) -> str:
    normalizer = data.get("normalizer")
    if (
        normalizer is not None and normalizer.get("type") != "NFC"
    ):  # llama.cpp skips NFC for the models that have it
        raise TokenizerError(f"{path}: normalizer {normalizer.get('type')!r} is not supported; {_ADVICE}")
    steps = _steps(data.get("pre_tokenizer"))
    name = _PATTERNS.get(steps)
    if name is None:
        raise TokenizerError(f"{path}: unknown pre-tokenizer {list(steps)}; {_ADVICE}")
    return "llama-bpe" if name == "smaug-bpe" and ignore_merges else name


def _steps(node: Any) -> tuple[str, ...]:
    """The splitting steps; a ByteLevel that only encodes bytes (use_regex false) is not one."""
    if not isinstance(node, dict):
        return ()
    kind = node.get("type")
    if kind == "Sequence":
        return tuple(step for child in node.get("pretokenizers", []) for step in _steps(child))
    if kind == "ByteLevel":
        if node.get("add_prefix_space"):
            return ("ByteLevel with add_prefix_space",)
        return ("ByteLevel",) if node.get("use_regex", True) else ()
    if kind == "Digits":
        return ("Digits",) if node.get("individual_digits") else ("Digits in groups",)
    if kind == "Split" and isinstance(node.get("pattern"), dict):
        return (str(node["pattern"].get("Regex", node["pattern"].get("String"))),)
    return (str(kind),)


def _tokens(
    path: Path, data: Mapping[str, Any], model: Mapping[str, Any], vocab_size: int
) -> tuple[list[bytes], list[int]]:
    """Token texts and types by id; ids without a token are padding, as llama.cpp's converter writes them."""
    tokens = [f"[PAD{i}]".encode() for i in range(vocab_size)]
    types = [int(TokenType.UNUSED)] * vocab_size
    entries = [(text, i, TokenType.NORMAL) for text, i in model.get("vocab", {}).items()]
    for added in data.get("added_tokens", []):
        text = str(added["content"])
        control = added.get("special") or (text.startswith("<|") and text.endswith("|>"))
        entries.append((text, added["id"], TokenType.CONTROL if control else TokenType.USER_DEFINED))
    for text, i, kind in entries:
        if not isinstance(i, int) or not 0 <= i < vocab_size:
            raise TokenizerError(
                f"{path}: token {text!r} has id {i}, but the target's vocab_size is {vocab_size}"
            )
        tokens[i], types[i] = text.encode("utf-8", errors="surrogatepass"), int(kind)
    return tokens, types


def _special(directory: Path, vocab_size: int) -> tuple[Field, ...]:
    """Merges, special ids and the chat template, read by the gguf package."""
    logging.getLogger("gguf").setLevel(logging.ERROR)
    vocab = gguf.SpecialVocab(directory, load_merges=True, n_vocab=vocab_size)
    writer = gguf.GGUFWriter(None, "llama")
    vocab.add_to_gguf(writer, quiet=True)
    return tuple(
        field_of(name, entry) for name, entry in writer.kv_data[0].items() if name.startswith("tokenizer.")
    )
