# SPDX-License-Identifier: MIT
"""Writes embedding models as GGUF, like llama.cpp's converter for BERT. A model is either tiny with random
weights, with any pooling and with or without a reranker's head, or a conversion of a sentence transformer's
directory (BERT, safetensors).
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from numpy.typing import NDArray

from helpers.gguf_writer import finish
from helpers.tiny_tokenizer import WORDS

Array = NDArray[np.float32]
_SPECIALS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
_XLM_SPECIALS = ("<s>", "<pad>", "</s>", "<unk>")
_POOLINGS = ("none", "mean", "cls", "last", "rank")


@dataclass(frozen=True)
class BertSpec:
    """Shape of an embedding model. n_labels: number of labels of a classification head, 0 = no head. pooling:
    kind of pooling, "" = leave the key out.
    """

    n_layers: int = 2
    n_embd: int = 64
    n_heads: int = 4
    n_ff: int = 128
    n_ctx: int = 128
    epsilon: float = 1e-12
    pooling: str = "mean"
    n_labels: int = 0


def make_bert(path: Path, spec: BertSpec = BertSpec(), *, tokenizer: str = "bert", **keys: Any) -> Path:
    """Writes an embedding model with random weights. tokenizer: "bert" (WordPiece) or "t5" (XLM-RoBERTa's).
    keys: tokenizer keys that replace the defaults; None leaves a key out.
    """
    tokens = _word_pieces() if tokenizer == "bert" else _unigrams()
    return write_bert(path, spec, tokens, _weights(spec, len(tokens)), tokenizer, keys)


def write_bert(
    path: Path,
    spec: BertSpec,
    tokens: Sequence[str],
    weights: Mapping[str, Array],
    tokenizer: str = "bert",
    keys: Mapping[str, Any] | None = None,
) -> Path:
    """Writes an embedding model as GGUF. weights: tensors by GGUF name. Norms, biases and embedding tables
    are written in F32, and all other tensors in F16.
    """
    writer = gguf.GGUFWriter(path, "bert")
    writer.add_name("tiny-bert")
    writer.add_context_length(spec.n_ctx)
    writer.add_embedding_length(spec.n_embd)
    writer.add_block_count(spec.n_layers)
    writer.add_feed_forward_length(spec.n_ff)
    writer.add_head_count(spec.n_heads)
    writer.add_layer_norm_eps(spec.epsilon)
    writer.add_causal_attention(False)
    writer.add_token_type_count(2)
    writer.add_file_type(int(gguf.LlamaFileType.MOSTLY_F16))
    if spec.pooling:
        writer.add_pooling_type(gguf.PoolingType(_POOLINGS.index(spec.pooling)))
    if spec.n_labels > 1:
        writer.add_classifier_output_labels([f"label {i}" for i in range(spec.n_labels)])
    writer.add_tokenizer_model(tokenizer)
    writer.add_tokenizer_pre("default")
    writer.add_token_list(list(tokens))
    names = _SPECIALS if tokenizer == "bert" else _XLM_SPECIALS
    writer.add_token_types(
        [int(gguf.TokenType.CONTROL if t in names else gguf.TokenType.NORMAL) for t in tokens]
    )
    borders = {"bos": names[2], "seperator": "[SEP]", "unknown": "[UNK]", "padding": "[PAD]"}
    if tokenizer == "t5":
        writer.add_token_scores([0.0 if t in names else -1.0 / len(t) for t in tokens])
        writer.add_add_bos_token(True)
        writer.add_add_eos_token(True)
        borders = {"bos": "<s>", "eos": "</s>", "seperator": "</s>", "unknown": "<unk>", "padding": "<pad>"}
    ids = {name: tokens.index(text) for name, text in borders.items()} | dict(keys or {})
    for name, value in ids.items():
        if value is not None:
            writer.add_uint32(f"tokenizer.ggml.{name}_token_id", value)
    for name, value in weights.items():
        is_matrix = value.ndim > 1 and name not in ("position_embd.weight", "token_types.weight")
        writer.add_tensor(name, value.astype(np.float16 if is_matrix else np.float32))
    finish(writer)
    return path


def _word_pieces() -> list[str]:
    """Returns word pieces in llama.cpp's form: a piece at the start of a word begins with U+2581, and all
    other pieces do not.
    """
    letters = [chr(code) for code in range(ord("a"), ord("z") + 1)]
    signs = list(".,:;!?()0123456789")
    words = sorted({word.strip().lower() for word in WORDS if len(word.strip()) > 1})
    begins = [f"\u2581{text}" for text in (*letters, *signs, *words)]
    return [*_SPECIALS, *begins, *letters, *signs[-10:]]


def _unigrams() -> list[str]:
    letters = [chr(code) for code in range(ord("!"), ord("~") + 1)]
    words = sorted({word.strip() for word in WORDS if len(word.strip()) > 1})
    return [*_XLM_SPECIALS, "\u2581", *letters, *(f"\u2581{text}" for text in words)]


def _weights(spec: BertSpec, n_vocab: int) -> dict[str, Array]:
    rng = np.random.default_rng(7)

    def normal(*shape: int) -> Array:
        return rng.normal(0.0, 1.0 / shape[-1] ** 0.5, shape).astype(np.float32)

    def norm(name: str) -> dict[str, Array]:
        one = 1.0 + 0.1 * rng.normal(size=spec.n_embd)
        return {f"{name}.weight": one.astype(np.float32), f"{name}.bias": normal(spec.n_embd)}

    wide = spec.n_embd
    out = {"token_embd.weight": normal(n_vocab, wide), "position_embd.weight": normal(spec.n_ctx, wide),
           "token_types.weight": normal(2, wide), **norm("token_embd_norm")}  # fmt: skip
    for i in range(spec.n_layers):
        for name in ("attn_q", "attn_k", "attn_v", "attn_output"):
            out |= {f"blk.{i}.{name}.weight": normal(wide, wide), f"blk.{i}.{name}.bias": normal(wide)}
        out |= {f"blk.{i}.ffn_up.weight": normal(spec.n_ff, wide), f"blk.{i}.ffn_up.bias": normal(spec.n_ff)}
        out |= {f"blk.{i}.ffn_down.weight": normal(wide, spec.n_ff), f"blk.{i}.ffn_down.bias": normal(wide)}
        out |= norm(f"blk.{i}.attn_output_norm") | norm(f"blk.{i}.layer_output_norm")
    if spec.n_labels:
        out |= {"cls.weight": normal(wide, wide), "cls.bias": normal(wide)}
        out |= {"cls.output.weight": normal(spec.n_labels, wide), "cls.output.bias": normal(spec.n_labels)}
    return out


_NAMES = {
    "attention.self.query": "attn_q", "attention.self.key": "attn_k", "attention.self.value": "attn_v",
    "attention.output.dense": "attn_output", "attention.output.LayerNorm": "attn_output_norm",
    "intermediate.dense": "ffn_up", "output.dense": "ffn_down", "output.LayerNorm": "layer_output_norm",
    "embeddings.word_embeddings": "token_embd", "embeddings.position_embeddings": "position_embd",
    "embeddings.token_type_embeddings": "token_types", "embeddings.LayerNorm": "token_embd_norm",
}  # fmt: skip


def convert_bert(directory: Path, out: Path) -> Path:
    """Converts the directory of a sentence transformer (BERT with mean pooling) to GGUF."""
    from safetensors.numpy import load_file

    config = json.loads((directory / "config.json").read_text())
    vocab = json.loads((directory / "tokenizer.json").read_text())["model"]["vocab"]
    sizes = ("num_hidden_layers", "hidden_size", "num_attention_heads", "intermediate_size",
             "max_position_embeddings", "layer_norm_eps")  # fmt: skip
    spec = BertSpec(*(config[name] for name in sizes))
    weights = {}
    for name, value in load_file(directory / "model.safetensors").items():
        head, _, rest = name.removeprefix("encoder.layer.").partition(".")
        stem, _, kind = (rest if head.isdigit() else name).rpartition(".")
        if stem in _NAMES:
            weights[f"blk.{head}.{_NAMES[stem]}.{kind}" if head.isdigit() else f"{_NAMES[stem]}.{kind}"] = (
                value
            )
    tokens = [text for text, _ in sorted(vocab.items(), key=lambda entry: entry[1])]
    texts = [t if t in _SPECIALS else t[2:] if t.startswith("##") else f"\u2581{t}" for t in tokens]
    return write_bert(out, spec, texts, weights)
