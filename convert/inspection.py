# SPDX-License-Identifier: MIT
"""`inspect_file`: returns the kind of a GGUF (drafter, target or other), its switches and sizes, and the
programs and models that it is compatible with.

This module reads only the head of the file. The result is JSON-ready data, which the command line prints.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from .errors import GgufError
from .gguf_file import GgufFile, read_gguf, type_name
from .keys import ALL, BLOCKS, DFLASH, EAGLE3, KEYS

SWITCHES = ("fc_norm", "norm_output", "norm_before_fc", "norm_before_residual")


def inspect_file(path: str | Path) -> dict[str, Any]:
    """Returns facts about a GGUF file, as JSON-ready data. Raises GgufError for a broken file and for a file
    that is not a GGUF.

    The result always has: path, kind (`drafter`, `target`, `other`), architecture, name, size, n_tensors,
    n_parameters, types (tensors and bytes by type), tokenizer. For a drafter, it also has sizes, switches,
    aux_layers, rope, source and `fits`. For a target, it also has sizes and `fits`. Facts that the file lacks
    are null.
    """
    file = read_gguf(Path(path))
    arch = file.architecture
    kind = "drafter" if arch in ALL else "target" if _key(file, "block_count") else "other"
    tokenizer = _tokenizer(file)
    facts: dict[str, Any] = {
        "path": str(path),
        "kind": kind,
        "architecture": arch,
        "name": file.text("general.name", "") or None,
        "license": file.text("general.license", "") or None,
        "size": file.size,
        "n_tensors": len(file.tensors),
        "n_parameters": sum(tensor.n_elements for tensor in file.tensors.values()),
        "types": types_of(file),
        "tokenizer": tokenizer,
    }
    details = {"drafter": _drafter, "target": _target}.get(kind)
    return facts | (details(file, tokenizer) if details else {})


def _key(file: GgufFile, name: str) -> Any:
    """Returns the value of the key `<architecture>.<name>` as JSON-ready data; None if the key is absent."""
    value = file.get(f"{file.architecture}.{name}")
    return value.decode("utf-8", errors="replace") if isinstance(value, bytes) else value


def types_of(file: GgufFile) -> dict[str, dict[str, int]]:
    """Returns the number of tensors and bytes for each tensor type. The type with the most bytes comes
    first.
    """
    types: dict[str, dict[str, int]] = {}
    for tensor in file.tensors.values():
        entry = types.setdefault(type_name(tensor.type), {"tensors": 0, "bytes": 0})
        entry["tensors"] += 1
        entry["bytes"] += tensor.n_bytes
    return dict(sorted(types.items(), key=lambda item: -item[1]["bytes"]))


def _tokenizer(file: GgufFile) -> dict[str, Any] | None:
    tokens = file.get("tokenizer.ggml.tokens")
    if not isinstance(tokens, list) or not all(isinstance(token, bytes) for token in tokens):
        return None
    return {
        "model": file.text("tokenizer.ggml.model", "") or None,
        "pre": file.text("tokenizer.ggml.pre", "") or None,
        "n_tokens": len(tokens),
        "tokens_sha256": _fingerprint(tokens),
        "chat_template": "tokenizer.chat_template" in file.fields,
    }


def _fingerprint(tokens: Iterable[bytes]) -> str:
    """Returns a short hash of all token texts of a vocabulary, for comparing two files by eye. The length of
    each text is hashed too.
    """
    digest = hashlib.sha256()
    for token in tokens:
        digest.update(struct.pack("<I", len(token)) + token)
    return digest.hexdigest()


def _drafter(file: GgufFile, tokenizer: dict[str, Any] | None) -> dict[str, Any]:
    missing = [
        name
        for key in KEYS
        if key.presence == "required" and file.architecture in key.archs
        and not (file.architecture == DFLASH and key.stock_default)
        and (name := key.name.replace("{arch}", file.architecture)) not in file.fields
    ]  # fmt: skip
    if missing:
        raise GgufError(f"{file.path}: a {file.architecture} file needs the keys {', '.join(missing)}")
    vocab = _key(file, "vocab_size") or (tokenizer or {}).get("n_tokens")
    d2t = file.tensors.get("d2t")
    return {
        "hidden_size": _key(file, "embedding_length"),
        "n_layers": _key(file, "block_count"),
        "n_heads": _key(file, "attention.head_count"),
        "n_kv_heads": _key(file, "attention.head_count_kv"),
        "head_dim": _key(file, "attention.key_length"),
        "feed_forward": _key(file, "feed_forward_length"),
        "context_length": _key(file, "context_length"),
        "vocab_size": vocab,
        "draft_vocab_size": d2t.shape[0] if d2t else vocab,
        "aux_layers": _key(file, "target_layers"),
        "layer_ids": file.text("eaglecpp.layer_ids", "") or None,
        "readings": _texts(file, "eaglecpp.readings"),
        "latent_attention": _latent(file),
        "block": block_of(file),
        "switches": {name: bool(_key(file, name)) for name in SWITCHES}
        | {
            "qk_norm": any(n.endswith(("attn_q_norm.weight", "attn_k_norm.weight")) for n in file.tensors),
            "bias": any(n.endswith(".bias") for n in file.tensors if n != "conf_proj.bias"),
        },
        "sliding_window": _key(file, "attention.sliding_window"),
        "rope": _rope(file),
        "own_embeddings": "token_embd.weight" in file.tensors,
        "own_head": "output.weight" in file.tensors,
        "runs_in_llama_cpp": file.architecture in (EAGLE3, DFLASH),
        "family": file.text("eaglecpp.family", "") or None,
        "source": file.text("eaglecpp.source", "") or None,
        "source_sha256": file.text("eaglecpp.source.sha256", "") or None,
        "fits": {
            "model": file.text("general.base_model.0.name", "") or None,
            "hidden_size": _key(file, "target_hidden_size") or _key(file, "embedding_length"),
            "n_layers": file.get("eaglecpp.target.block_count"),
            "vocab_size": vocab,
            "tokens_sha256": (tokenizer or {}).get("tokens_sha256"),
        },
    }


def _texts(file: GgufFile, name: str) -> list[str] | None:
    value = file.get(name)
    if not isinstance(value, list) or not all(isinstance(one, bytes) for one in value):
        return None
    return [one.decode("utf-8", errors="replace") for one in value]


def _latent(file: GgufFile) -> dict[str, Any] | None:
    if _key(file, "attention.kv_lora_rank") is None:
        return None
    return {
        "kv_rank": _key(file, "attention.kv_lora_rank"),
        "q_rank": _key(file, "attention.q_lora_rank"),
        "key_length": _key(file, "attention.key_length_mla"),
        "value_length": _key(file, "attention.value_length_mla"),
    }


def block_of(file: GgufFile) -> dict[str, Any] | None:
    """Returns a block drafter's kind (DFlash, DSpark, DFlash2) and settings, as JSON-ready data; None if the
    file is not a block drafter.
    """
    if file.architecture not in BLOCKS:
        return None
    markov = file.tensors.get("markov_w1.weight")
    return {
        "kind": "DFlash2" if _key(file, "selector_rank") else "DSpark" if markov else "DFlash",
        "size": _key(file, "block_size") or 16,
        "anchor_first": file.get(f"{file.architecture}.sample_from_anchor", markov is not None),
        "markov_rank": markov.shape[-1] if markov else None,
        "selector_rank": _key(file, "selector_rank"),
        "confidence": "conf_proj.weight" in file.tensors,
    }


def _rope(file: GgufFile) -> dict[str, Any]:
    scaling = _key(file, "rope.scaling.type") or ("llama3" if "rope_freqs.weight" in file.tensors else "none")
    return {
        "freq_base": _key(file, "rope.freq_base"),
        "type": _key(file, "rope.type") or ("neox" if file.architecture in BLOCKS else "norm"),
        "scaling": scaling,
        "factor": _key(file, "rope.scaling.factor"),
    }


def _target(file: GgufFile, tokenizer: dict[str, Any] | None) -> dict[str, Any]:
    hidden, vocab = _key(file, "embedding_length"), (tokenizer or {}).get("n_tokens")
    arch = file.architecture
    return {
        "hidden_size": hidden,
        # Multi-token prediction layers do not run as part of the target, so they are not counted.
        "n_layers": (file.integer(f"{arch}.block_count") or 0)
        - (file.integer(f"{arch}.nextn_predict_layers") or 0),
        "context_length": _key(file, "context_length"),
        # A multi-token prediction head is counted only if the file has its weights.
        "mtp_heads": sum(name.endswith(".nextn.eh_proj.weight") for name in file.tensors),
        "vocab_size": vocab,
        "fits": {
            "target_hidden_size": hidden,
            "vocab_size": vocab,
            "tokens_sha256": (tokenizer or {}).get("tokens_sha256"),
        },
    }
