# SPDX-License-Identifier: MIT
"""A drafter's GGUF read as a checkpoint: to store it in another type, or to train it further.

Often the GGUF is all that its users have. The names are those of `keys.TENSORS`, the config is made from the
keys, in TorchSpec's layout, and weights are what the file's type stores; q and k rows return from rope's
pairs to the order of checkpoints. This reads EAGLE-3 and EAGLE 3.1 drafters with ordinary attention and
unscaled rope, llama.cpp's own files among them, and refuses the rest by name.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from gguf import GGMLQuantizationType

from .errors import CheckpointError, GgufError, UnsupportedError
from .gguf_file import GgufFile, TensorInfo, read_gguf, read_rows, type_name
from .gguf_head import Field
from .keys import EAGLE3, EAGLE31, TENSORS
from .rope import unpair_rows
from .tensor import TensorSource

_OF_THE_FILE = ("architecture", "alignment", "file_type", "quantization_version", "size_label")
_TYPE = re.compile(r"[-.](I?Q[0-9]\w*|B?F16|F32)$", re.IGNORECASE)
"""At the end of a file's name."""
_MOST = 256
"""Layers and features that a file may claim: names are made for each."""
_REFUSED = {
    "latent attention": r"attention\.(q_lora_rank|kv_lora_rank|key_length_mla|value_length_mla)",
    "a sliding window": r"attention\.sliding_window.*",
    "Gemma 4's layer": r"attention\.value_norm|hidden_activation|embedding_scale|final_logit_softcapping",
    "attention.scale": r"attention\.scale",
    "parallel drafting": r"parallel_depth|mask_token_id",
    "scaled rope": r"rope\.scaling\..*",
    "logit_scale": "logit_scale",
    "a head without a norm": "head_norm",
}
"""Keys of what is not read back; ignoring one would be another drafter."""


class ReadBack(NamedTuple):
    """name: the file's, without the type. tensors: by their names in checkpoints. general: the entries that a
    copy keeps, such as name, author and licence. note: for the user.
    """

    name: str
    config: dict[str, Any]
    tensors: dict[str, TensorSource]
    general: dict[str, Field]
    note: str


def read_drafter(path: Path) -> ReadBack:
    """What a checkpoint would say, from the GGUF made of it.

    Raises GgufError for a file that is no GGUF or lacks a key, UnsupportedError for one that is no EAGLE-3
    drafter or has what is not read back, CheckpointError for tensors that no drafter has.
    """
    file = read_gguf(path)
    arch = file.architecture
    if arch not in (EAGLE3, EAGLE31):
        raise UnsupportedError(
            f"{path}: general.architecture: expected an EAGLE-3 drafter ({EAGLE3} or {EAGLE31}), found "
            f"{arch!r}; give the checkpoint that the file was made from"
        )
    keys = [name.removeprefix(f"{arch}.") for name in file.fields if name.startswith(f"{arch}.")]
    keys += ["rope.scaling.freqs"] if "rope_freqs.weight" in file.tensors else []
    found = [what for what, rule in _REFUSED.items() if any(re.fullmatch(rule, key) for key in keys)]
    if found:
        raise UnsupportedError(
            f"{path}: a GGUF with {' and '.join(found)} cannot be read back; give the checkpoint that it was "
            "made from"
        )
    config = _config(file, arch)
    rope_dim, rope_type = file.integer(f"{arch}.rope.dimension_count"), file.text(f"{arch}.rope.type", "norm")
    if rope_dim not in (None, config["head_dim"]) or rope_type not in ("norm", "neox"):
        raise UnsupportedError(
            f"{path}: rope: expected type norm or neox over whole heads of {config['head_dim']}, found type "
            f"{rope_type!r:.20} over {rope_dim}"
        )
    tensors = _tensors(file, config, in_pairs=rope_type == "norm")
    kinds = sorted({type_name(i.type) for i in file.tensors.values() if len(i.shape) == 2})
    general = {
        name: field
        for name, field in file.fields.items()
        if name.startswith("general.") and name.removeprefix("general.") not in _OF_THE_FILE
    }
    note = f"read back from {path.name}: weights are as {', '.join(kinds)} stores them"
    return ReadBack(_TYPE.sub("", path.stem), config, tensors, general, note)


def _config(file: GgufFile, arch: str) -> dict[str, Any]:
    def integer(key: str, default: int | None = None) -> int:
        value = file.integer(f"{arch}.{key}")
        if value is None and default is None:
            raise GgufError(f"{file.path}: key {arch}.{key}: expected an integer, found nothing")
        return int(default if value is None else value)  # type: ignore[arg-type]

    def flag(key: str) -> bool:
        value = file.get(f"{arch}.{key}", False)
        if not isinstance(value, bool):
            raise GgufError(f"{file.path}: key {arch}.{key}: expected true or false, found {value!r:.40}")
        return value

    def real(key: str, default: float) -> float:
        value = file.get(f"{arch}.{key}", default)
        if not isinstance(value, int | float) or isinstance(value, bool):
            raise GgufError(f"{file.path}: key {arch}.{key}: expected a number, found {value!r:.40}")
        with np.errstate(over="ignore"):  # infinity is refused with the rest of the config
            return float(str(np.float32(value)))  # 1e-05 is meant, not 9.99999975e-06

    def several(key: str, kind: type) -> list[Any]:
        value = file.get(key, [])
        if not isinstance(value, list) or not all(isinstance(one, kind) for one in value):
            raise GgufError(
                f"{file.path}: key {key}: expected a list of {kind.__name__}, found {value!r:.40}"
            )
        return value

    hidden, n_heads = integer("embedding_length"), integer("attention.head_count")
    layers = several(f"{arch}.target_layers", int)
    vocab = integer("vocab_size", 0) or len(several("tokenizer.ggml.tokens", bytes))
    head = file.tensors.get("output.weight")
    rates = several("eaglecpp.held_out_rates", float)
    return {
        "architectures": ["LlamaForCausalLMEagle3"],
        "model_type": "llama",
        "hidden_size": hidden,
        "target_hidden_size": integer("target_hidden_size"),
        "intermediate_size": integer("feed_forward_length"),
        "num_hidden_layers": integer("block_count"),
        "num_attention_heads": n_heads,
        "num_key_value_heads": integer("attention.head_count_kv"),
        "head_dim": integer("attention.key_length", hidden // max(n_heads, 1)),
        "hidden_act": "silu",
        "rms_norm_eps": real("attention.layer_norm_rms_epsilon", 1e-6),
        "vocab_size": vocab,
        "draft_vocab_size": integer("draft_vocab_size", head.shape[0] if head else vocab),
        "max_position_embeddings": integer("context_length"),
        "rope_theta": real("rope.freq_base", 10000.0),
        "tie_word_embeddings": False,
        "fc_norm": flag("fc_norm"),
        "norm_output": flag("norm_output"),
        "norm_before_fc": flag("norm_before_fc"),
        "norm_before_residual": flag("norm_before_residual"),
        "num_aux_hidden_states": len(layers),
        # both conventions, so that nothing has to be guessed
        "eagle_aux_hidden_state_layer_ids": layers,
        "eagle_config": {"eagle_aux_hidden_state_layer_ids": [k - 1 for k in layers]},
        "eaglecpp": {
            "readings": [text.decode(errors="replace") for text in several("eaglecpp.readings", bytes)],
            **({"held_out": {"rates": rates}} if rates else {}),
        },
    }


def _tensors(file: GgufFile, config: dict[str, Any], *, in_pairs: bool) -> dict[str, TensorSource]:
    """Sources by name in checkpoints; layer 0 is `midlayer`, as TorchSpec calls it."""
    arch = file.architecture
    n_layers, n_aux = config["num_hidden_layers"], config["num_aux_hidden_states"]
    for key, n in (("block_count", n_layers), ("target_layers", n_aux)):
        if not 1 <= n <= _MOST:
            raise GgufError(f"{file.path}: key {arch}.{key}: expected 1 to {_MOST} of them, found {n}")
    names = {
        row.name.format(i=i, a=a): row.source.format(i=i, a=a)
        for row in TENSORS
        if arch in row.archs and row.source
        for i in range(n_layers if "{i}" in row.name else 1)
        for a in range(n_aux if "{a}" in row.name else 1)
    }
    unknown = sorted(set(file.tensors) - set(names))
    if unknown:
        found = ", ".join(f"{name!r:.60}" for name in unknown[:8])
        raise CheckpointError(f"{file.path}: tensors that no EAGLE-3 drafter has: {found}")
    missing = [i for i in range(n_layers) if not any(name.startswith(f"blk.{i}.") for name in file.tensors)]
    if missing:
        raise CheckpointError(
            f"{file.path}: key {arch}.block_count: expected tensors for {n_layers} layers, found none for "
            f"layer {missing[0]}"
        )
    tensors: dict[str, TensorSource] = {}
    for name, info in file.tensors.items():
        source = names[name].replace("layers.0.", "midlayer.")
        if name == "d2t":
            if info.type != GGMLQuantizationType.I64 or len(info.shape) != 1:
                raise GgufError(
                    f"{file.path}: tensor d2t: expected I64, one id for each draft token, found "
                    f"{type_name(info.type)} {list(info.shape)}"
                )
            tensors[source] = _Offsets(source, info.shape, "I64", file.path, info.offset)
            continue
        rotated = in_pairs and name.rpartition(".attn_")[2] in ("q.weight", "k.weight", "q.bias", "k.bias")
        head_rows = config["head_dim"] if rotated else 0
        if head_rows and (head_rows % 2 or info.shape[0] % head_rows):
            raise GgufError(
                f"{file.path}: tensor {name} {list(info.shape)}: expected rows of whole heads of {head_rows}"
            )
        tensors[source] = _Weights(source, info.shape, "F32", file.path, info.offset, file, info, head_rows)
    return tensors


@dataclass(frozen=True)
class _Weights(TensorSource):
    """A tensor of the file in float32. head_rows: rows of one head to take out of pairs, else 0."""

    file: GgufFile
    info: TensorInfo
    head_rows: int

    def read_rows(self, start: int, stop: int) -> npt.NDArray[Any]:
        if not self.head_rows:
            return read_rows(self.file, self.info.name, start, stop)
        size = self.head_rows
        first, last = start // size * size, -(-stop // size) * size
        rows = read_rows(self.file, self.info.name, first, last)
        return unpair_rows(rows, size)[start - first : stop - first]


@dataclass(frozen=True)
class _Offsets(TensorSource):
    """`d2t` as checkpoints have it: how far each draft id is from its target id."""

    def read_rows(self, start: int, stop: int) -> npt.NDArray[Any]:
        return TensorSource.read_rows(self, start, stop) - np.arange(start, stop)
