# SPDX-License-Identifier: MIT
"""How long a context to open by default: depends on the model's own length and the free memory.

Takes the header of the GGUF file and a number of bytes, returns a length and the reason in words. The rule:

- never longer than the model was trained for, never shorter than 4096 where the model allows that much;
- keys, values and the scores of one batch may take a quarter of the memory that the weights leave free:
  they are allocated in full when the model is opened, and other programs need memory as well;
- of 8192, 16384 and 32768, the longest one that fits. More only on request: every doubling costs start-up
  time, and few conversations need it.

If a file does not say, the answer is 4096; a file that is not a GGUF gets the same answer here, and its error
when it is opened.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from eaglecpp.errors import GgufError
from eaglecpp.human import human_memory

if TYPE_CHECKING:
    from eaglecpp.options import ModelOptions

SAFE_N_CTX = 4096
_STEPS = (32768, 16384, 8192)
_SHARE = 4
_ENGINE_BYTES = 100 << 20
_TYPE_BYTES = {"auto": 2.0, "f32": 4.0, "f16": 2.0, "bf16": 2.0, "q8_0": 1.0625, "q5_1": 0.75,
               "q5_0": 0.6875, "q4_1": 0.625, "q4_0": 0.5625, "iq4_nl": 0.5625}  # fmt: skip


def choose_n_ctx(target: Path, options: Mapping[str, Any], n_weights: int, n_free: int) -> tuple[int, str]:
    """The context length of one conversation with a target GGUF in tokens, and why it is that.

    options: of the model, by field name; n_weights: bytes of all that is loaded; n_free: bytes of free memory
    where the cache goes
    """
    keys = head_keys(target)
    n_train = _count(keys, "context_length")
    whole = n_train, "everything the model was trained for"
    if not n_train:
        return SAFE_N_CTX, "the model does not say what context length it was trained for"
    if n_train <= SAFE_N_CTX:
        return whole
    if _reads_at_once(keys):
        return min(n_train, _STEPS[0]), "a text is read at once, and nothing of it is kept"
    # what "auto" is without flash attention on the CPU; on a GPU the larger of two guesses
    usual = "f32" if options.get("flash_attn") == "off" else "f16"
    types = [usual if options.get(name, "auto") == "auto" else options[name] for name in ("type_k", "type_v")]
    n_token = kv_bytes_per_token(keys, *types)
    if not n_token:
        return SAFE_N_CTX, "the model does not say how much memory its context takes"
    # and a column of attention scores: F32, one layer at a time
    n_heads = _per_layer(keys, "attention.head_count")
    n_token += 4.0 * max(n_heads) * options.get("n_ubatch", 512)
    budget = max(n_free - n_weights, 0) // options.get("n_sequences", 1) // _SHARE
    for n_ctx in (n_train, *_STEPS):
        if n_ctx <= min(n_train, _STEPS[0]) and n_ctx * n_token <= budget:
            break
    else:
        n_ctx = SAFE_N_CTX
    why = f"it needs {human_memory(n_ctx * n_token)} of {human_memory(n_free)} free memory"
    return whole if n_ctx == n_train else (n_ctx, why)


def memory_needed(target: Path, options: ModelOptions, n_weights: int) -> int:
    """Bytes that a model takes once it is open: its files, the caches of all conversations, and what every
    engine has.
    """
    keys = head_keys(target)
    n_ctx = options.n_ctx if options.n_ctx > 0 else _count(keys, "context_length") or SAFE_N_CTX
    n_token = kv_bytes_per_token(keys, options.type_k, options.type_v)
    return n_weights + int(n_token * n_ctx * options.n_sequences) + _ENGINE_BYTES


def free_for_cache(options: Mapping[str, Any]) -> int:
    """Free memory where the KV cache goes: the first GPU's, if layers go there, else the machine's."""
    from eaglecpp.lowlevel import gpus

    found = gpus()
    if found and options.get("n_gpu_layers", -1) != 0 and options.get("offload_kqv", True):
        return int(found[options.get("main_gpu", 0) % len(found)]["memory_free"])
    return free_memory()


def free_memory() -> int:
    """Bytes of memory that can be had without swapping."""
    import psutil

    return int(psutil.virtual_memory().available)


def head_keys(path: Path) -> dict[str, Any]:
    """The keys of a GGUF file without long arrays, strings as text; empty when it cannot be read."""
    from eaglecpp.convert import read_keys

    try:
        return read_keys(path)
    except GgufError:
        return {}


def kv_bytes_per_token(keys: Mapping[str, Any], type_k: str, type_v: str) -> float:
    """What keys and values of one position take in all layers, 0 when the file does not say. Too much for
    models with windows or recurrent layers.
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
        n_v = 0  # latent attention: values are a part of what is kept as keys
    return sum(n_kv_heads) * (n_k * _TYPE_BYTES.get(type_k, 4.0) + n_v * _TYPE_BYTES.get(type_v, 4.0))


def _reads_at_once(keys: Mapping[str, Any]) -> bool:
    """An embedding model such as BERT, which keeps no cache."""
    return _key(keys, "attention.causal") is False


def _key(keys: Mapping[str, Any], name: str) -> Any:
    return keys.get(f"{keys.get('general.architecture', '')}.{name}")


def _count(keys: Mapping[str, Any], name: str) -> int:
    value = _key(keys, name)
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else 0


def _per_layer(keys: Mapping[str, Any], name: str) -> Sequence[int]:
    """One value per layer, whether the file has one or a list."""
    value = _key(keys, name)
    if isinstance(value, list):
        return [entry for entry in value if isinstance(entry, int)]
    return [value] * _count(keys, "block_count") if isinstance(value, int) else []
