# SPDX-License-Identifier: MIT
"""The default context length, chosen from the model's trained length and the free memory.

`choose_n_ctx` takes the headers of the GGUF files and the free memory, and returns a length and the reason in
words. The rules:

- never longer than the trained length, and not shorter than 4096 unless the trained length is;
- the context (keys and values of target and drafter, the mask or the scores of one batch) may take a quarter
  of the memory that the weights leave free: it is allocated in full at opening, and other programs need
  memory as well;
- the full trained length if that fits, else the longest power of two that fits.

If the file lacks the needed keys, the length is 4096. A file that is not a GGUF also gets 4096 here, and
fails when it is opened.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from eaglecpp.errors import GgufError
from eaglecpp.human import human_bytes

if TYPE_CHECKING:
    from eaglecpp.options import ModelOptions

SAFE_N_CTX = 4096
_AT_ONCE = 32768
"""Maximum context in tokens for models that read a whole text at once. Such a model needs the attention
scores of every pair of tokens.
"""
_SHARE = 4
_ENGINE_BYTES = 100 << 20
_TYPE_BYTES = {"auto": 2.0, "f32": 4.0, "f16": 2.0, "bf16": 2.0, "q8_0": 1.0625, "q5_1": 0.75,
               "q5_0": 0.6875, "q4_1": 0.625, "q4_0": 0.5625, "iq4_nl": 0.5625}  # fmt: skip


def choose_n_ctx(
    target: Path, draft: Path | None, options: Mapping[str, Any], n_weights: int, n_free: int
) -> tuple[int, str]:
    """Returns the context length of one conversation in tokens, and the reason.

    draft: the drafter's GGUF, whose cache has the same length; options: model options by field name;
    n_weights: bytes of all loaded files; n_free: bytes of free memory on the cache's device
    """
    keys = head_keys(target)
    n_train = _count(keys, "context_length")
    whole = n_train, "everything the model was trained for"
    if not n_train:
        return SAFE_N_CTX, "the model's file has no trained context length"
    if n_train <= SAFE_N_CTX:
        return whole
    if _reads_at_once(keys):
        return min(n_train, _AT_ONCE), "the model reads a text at once and keeps no cache"
    is_fused = options.get("flash_attn") != "off"
    usual = "f16" if is_fused else "f32"
    types = [usual if options.get(name, "auto") == "auto" else options[name] for name in ("type_k", "type_v")]
    n_token = kv_bytes_per_token(keys, *types)
    if not n_token:
        return SAFE_N_CTX, "the model's file does not give its memory per token"
    if draft is not None:
        n_token += kv_bytes_per_token(head_keys(draft), "f16", "f16")
    # Each position needs memory for one column of the attention mask in F16. Without fused attention, it
    # needs a column of one layer's attention scores in F32 instead.
    n_column = 2.0 if is_fused else 4.0 * max(_per_layer(keys, "attention.head_count"))
    n_token += n_column * options.get("n_ubatch", 512)
    budget = max(n_free - n_weights, 0) // options.get("n_sequences", 1) // _SHARE
    if n_train * n_token <= budget:
        return whole
    n_ctx = max(SAFE_N_CTX, 1 << int(budget / n_token).bit_length() >> 1)
    sizes = f"{human_bytes(n_ctx * n_token)} of {human_bytes(n_free)} free memory"
    return n_ctx, f"of {n_train} that the model was trained for; the cache takes {sizes}; use -c for more"


def beyond_training(target: Path, options: Mapping[str, Any]) -> tuple[str, ...]:
    """Returns a notice if the requested context is longer than the target's trained length. Returns no notice
    if the options stretch the model's positions (RoPE scaling).
    """
    n_ctx, n_train = options.get("n_ctx") or 0, _count(head_keys(target), "context_length")
    if not 0 < n_train < n_ctx or options.get("rope_freq_base") or options.get("rope_freq_scale"):
        return ()
    return (
        f"n_ctx is {n_ctx}, but the model was trained for {n_train} tokens; its output beyond them is mostly "
        "nonsense. Remove n_ctx, or scale the positions with rope_freq_scale or rope_freq_base",
    )


def memory_needed(target: Path, options: ModelOptions, n_weights: int) -> int:
    """Returns the bytes of memory that an opened model takes: its files, the caches of all conversations, and
    a fixed amount for the engine.
    """
    keys = head_keys(target)
    n_ctx = options.n_ctx if options.n_ctx > 0 else _count(keys, "context_length") or SAFE_N_CTX
    n_token = kv_bytes_per_token(keys, options.type_k, options.type_v)
    return n_weights + int(n_token * n_ctx * options.n_sequences) + _ENGINE_BYTES


def free_for_cache(options: Mapping[str, Any]) -> int:
    """Returns the bytes of free memory for the KV cache. This is the first GPU's memory if layers are placed
    on the GPU, else the machine's memory.
    """
    gpus = _gpus_for_cache(options)
    return int(gpus[options.get("main_gpu", 0) % len(gpus)]["memory_free"]) if gpus else free_memory()


def fuses_attention(options: Mapping[str, Any]) -> bool:
    """Returns whether attention runs without memory for its scores. This is true on a GPU, and on the CPU
    with eaglecpp's kernels.
    """
    from eaglecpp.lowlevel import system_info

    if options.get("flash_attn", "auto") != "auto":
        return bool(options["flash_attn"] == "on")
    return bool(_gpus_for_cache(options)) or bool(system_info()["kernels"]["active"])


def _gpus_for_cache(options: Mapping[str, Any]) -> list[dict[str, Any]]:
    from eaglecpp.lowlevel import gpus

    return gpus() if options.get("n_gpu_layers", -1) != 0 and options.get("offload_kqv", True) else []


def free_memory() -> int:
    """Returns the bytes of memory that are available without swapping and within a container's limit; 0 if
    the system does not report them.
    """
    from eaglecpp._extension import core

    return core.available_memory()


def head_keys(path: Path) -> dict[str, Any]:
    """Returns the key-value pairs of a GGUF file, without long arrays. Returns {} for an unreadable file."""
    try:
        stat = path.stat()
        return _head_keys(path, stat.st_ino, stat.st_size, stat.st_mtime_ns)
    except (OSError, GgufError):
        return {}


@lru_cache(maxsize=8)
def _head_keys(path: Path, *_version: int) -> dict[str, Any]:
    """Returns the key-value pairs as `head_keys` does. The result is cached for each state of the file,
    because skipping the tokens of a vocabulary takes 0.1 s.
    """
    from eaglecpp.convert import read_keys

    return read_keys(path)


def unknown_keys(draft: Path) -> tuple[str, ...]:
    """Returns a notice about keys in the drafter's file that eaglecpp does not use. Keys with the value false
    or 0 are not reported.
    """
    from eaglecpp.convert import keys

    entries = head_keys(draft)
    arch = str(entries.get("general.architecture", ""))
    if arch not in keys.ALL:
        return ()
    known = {key.name.replace("{arch}", arch) for key in keys.KEYS} | {f"{arch}.rope.scaling.finetuned"}
    unknown = [name for name, value in entries.items() if name.startswith(f"{arch}.") and value]
    pairs = ", ".join(f"{name} = {entries[name]}"[:80] for name in sorted({*unknown} - known)[:8])
    why = "if they change what the drafter computes, its drafts are wrong; convert the checkpoint again"
    return (f"{draft.name} has unknown keys: {pairs}; {why}",) if pairs else ()


def kv_bytes_per_token(keys: Mapping[str, Any], type_k: str, type_v: str) -> float:
    """Returns the bytes that one position takes in the KV cache of all layers; 0 if `keys` lacks the
    dimensions. The result is too high for some models with recurrent layers.
    """
    if _reads_at_once(keys):
        return 0.0
    n_heads = _per_layer(keys, "attention.head_count")
    n_kv_heads = _per_layer(keys, "attention.head_count_kv") or n_heads
    if not n_heads or not max(n_heads):
        return 0.0
    head_dim = _count(keys, "embedding_length") // max(n_heads)
    n_k = _count(keys, "attention.key_length") or head_dim
    n_v = _count(keys, "attention.value_length") or head_dim
    if _count(keys, "attention.key_length_mla") and _count(keys, "attention.value_length_mla"):
        n_v = 0  # with latent attention, the keys contain the values
    # Qwen 3.5 stores keys in every fourth layer only. Its other layers have a recurrent state.
    share = 1 / max(_count(keys, "full_attention_interval"), 1)
    return share * sum(n_kv_heads) * (n_k * _TYPE_BYTES.get(type_k, 4.0) + n_v * _TYPE_BYTES.get(type_v, 4.0))


def _reads_at_once(keys: Mapping[str, Any]) -> bool:
    """Returns whether the model is an embedding model such as BERT, which keeps no cache."""
    return _key(keys, "attention.causal") is False


def _key(keys: Mapping[str, Any], name: str) -> Any:
    return keys.get(f"{keys.get('general.architecture', '')}.{name}")


def _count(keys: Mapping[str, Any], name: str) -> int:
    value = _key(keys, name)
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else 0


def _per_layer(keys: Mapping[str, Any], name: str) -> Sequence[int]:
    """Returns the values of a GGUF key, one per layer. In the file, the key has a list, or one value for all
    layers.
    """
    value = _key(keys, name)
    if isinstance(value, list):
        return [entry for entry in value if isinstance(entry, int)]
    return [value] * _count(keys, "block_count") if isinstance(value, int) else []
