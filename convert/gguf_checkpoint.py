# SPDX-License-Identifier: MIT
"""Reads a drafter's GGUF as a checkpoint, to store it in another type or to train it further.

Users often have only the GGUF. The tensors have the names in `keys.TENSORS`, and the config has TorchSpec's
layout. Weights have the values that the file's tensor type stores. The rows of q and k are permuted from
rope's pairs back to the order of checkpoints. Supported are EAGLE-3, EAGLE 3.1 and block drafters with
ordinary attention and unscaled rope, including files of llama.cpp's converter. A file with any other feature
raises an error that names the feature.
"""

from __future__ import annotations

import re
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from gguf import GGMLQuantizationType

from .errors import CheckpointError, GgufError, UnsupportedError
from .gguf_file import GgufFile, read_gguf, read_rows, type_name
from .gguf_head import Field
from .keys import BLOCKS, EAGLE3, EAGLE31, TENSORS
from .rope import halves
from .tensor import TensorSource, computed, stacked

_OF_THE_FILE = ("architecture", "alignment", "file_type", "quantization_version", "size_label")
_TYPE = re.compile(r"[-.](I?Q[0-9]\w*|B?F16|F32)$", re.IGNORECASE)
"""Matches a tensor type at the end of a file's name."""
BLOCK_FILE = "BlockDrafterFile"
"""Class name in `architectures` of the config that is built for a block drafter's GGUF."""
_MOST = 256
"""Maximum number of layers and of features in a file. The limit is needed because the reader creates names
for each layer and feature.
"""
_REFUSED = {
    "latent attention": r"attention\.(q_lora_rank|kv_lora_rank|key_length_mla|value_length_mla)",
    "Gemma 4's layer": r"attention\.value_norm|hidden_activation",
    "attention.scale": r"attention\.scale",
    "scaled rope": r"rope\.scaling\..*",
}
"""Keys of unsupported features. A file with such a key is rejected, because ignoring the key would change the
drafter.
"""
_REFUSED_EAGLE = {
    "a sliding window": r"attention\.sliding_window.*",
    "Gemma 4's layer": r"attention\.value_norm|hidden_activation|embedding_scale|final_logit_softcapping",
    "parallel drafting": r"parallel_depth|mask_token_id",
    "logit_scale": "logit_scale",
    "a head without a norm": "head_norm",
}


class ReadBack(NamedTuple):
    """A drafter's GGUF in the form of a checkpoint. name: the file's name without the tensor type; tensors:
    tensors by their names in checkpoints; general: metadata that a copy keeps, such as name, author and
    licence; note: a note for the user
    """

    name: str
    config: dict[str, Any]
    tensors: dict[str, TensorSource]
    general: dict[str, Field]
    note: str


def read_drafter(path: Path) -> ReadBack:
    """Returns a checkpoint from which a conversion makes the same GGUF.

    Raises GgufError for a file that is not a GGUF or lacks a key, UnsupportedError for a file that is not an
    EAGLE-3 or block drafter or has unsupported features, CheckpointError for unknown or missing tensors.
    """
    file = read_gguf(path)
    arch = file.architecture
    if arch not in (EAGLE3, EAGLE31, *BLOCKS):
        raise UnsupportedError(
            f"{path}: general.architecture: expected an EAGLE-3 drafter ({EAGLE3} or {EAGLE31}) or a block "
            f"drafter ({' or '.join(BLOCKS)}), found {arch!r}; use the checkpoint that the file was made from"
        )
    keys = [name.removeprefix(f"{arch}.") for name in file.fields if name.startswith(f"{arch}.")]
    keys += ["rope.scaling.freqs"] if "rope_freqs.weight" in file.tensors else []
    rules = _REFUSED if arch in BLOCKS else _REFUSED | _REFUSED_EAGLE
    features = [what for what, rule in rules.items() if any(re.fullmatch(rule, key) for key in keys)]
    if features:
        raise UnsupportedError(
            f"{path}: a GGUF with {' and '.join(features)} cannot be read back; use the checkpoint that it "
            "was made from"
        )
    config = _config(file, arch)
    rope_dim = file.integer(f"{arch}.rope.dimension_count")
    rope_type = file.text(f"{arch}.rope.type", "neox" if arch in BLOCKS else "norm")
    if rope_dim not in (None, config["head_dim"]) or rope_type not in ("norm", "neox"):
        raise UnsupportedError(
            f"{path}: expected RoPE of type norm or neox over all {config['head_dim']} values of a head, "
            f"found type {rope_type!r:.20} over {rope_dim} values"
        )
    tensors = _tensors(file, config, in_pairs=rope_type == "norm")
    kinds = sorted({type_name(i.type) for i in file.tensors.values() if len(i.shape) == 2})
    general = {
        name: field
        for name, field in file.fields.items()
        if name.startswith("general.") and name.removeprefix("general.") not in _OF_THE_FILE
    }
    note = f"read back from {path.name}: the weights have the precision of {', '.join(kinds)}"
    return ReadBack(_TYPE.sub("", path.stem), config, tensors, general, note)


def _config(file: GgufFile, arch: str) -> dict[str, Any]:
    def value(kind: Any, expected: str, key: str, default: Any = None) -> Any:
        found = file.get(f"{arch}.{key}", default)
        if not isinstance(found, kind) or (isinstance(found, bool) and kind is not bool):
            shown = "nothing" if found is None else f"{found!r:.40}"
            raise GgufError(f"{file.path}: key {arch}.{key}: expected {expected}, found {shown}")
        return found

    integer, flag = partial(value, int, "an integer"), partial(value, bool, "true or false", default=False)

    def real(key: str, default: float) -> float:
        number = value(int | float, "a number", key, default)
        with np.errstate(over="ignore"):  # an infinite value is rejected later, together with the config
            return float(str(np.float32(number)))  # this conversion turns 9.99999975e-06 into 1e-05

    def several(key: str, kind: type) -> list[Any]:
        value = file.get(key, [])
        if not isinstance(value, list) or not all(isinstance(one, kind) for one in value):
            raise GgufError(
                f"{file.path}: key {key}: expected a list of {kind.__name__}, found {value!r:.40}"
            )
        return value

    hidden, n_heads = integer("embedding_length"), integer("attention.head_count")
    layers = several(f"{arch}.target_layers", int)
    n_layers = integer("block_count")
    for key, n in (("block_count", n_layers), ("target_layers", len(layers))):
        if not 1 <= n <= _MOST:
            raise GgufError(f"{file.path}: key {arch}.{key}: expected 1 to {_MOST}, found {n}")
    vocab = integer("vocab_size", 0) or len(several("tokenizer.ggml.tokens", bytes))
    head = file.tensors.get("output.weight")
    rates = several("eaglecpp.held_out_rates", float)
    config = {
        "architectures": ["LlamaForCausalLMEagle3"],
        "model_type": "llama",
        "hidden_size": hidden,
        "target_hidden_size": integer("target_hidden_size", hidden if arch in BLOCKS else None),
        "intermediate_size": integer("feed_forward_length"),
        "num_hidden_layers": n_layers,
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
        # The layer ids are written in both conventions, so they are not ambiguous.
        "eagle_aux_hidden_state_layer_ids": layers,
        "eagle_config": {"eagle_aux_hidden_state_layer_ids": [k - 1 for k in layers]},
        "eaglecpp": {
            "readings": [text.decode(errors="replace") for text in several("eaglecpp.readings", bytes)],
            **({"held_out": {"rates": rates}} if rates else {}),
        },
    }
    if arch not in BLOCKS:
        return config
    window = integer("attention.sliding_window", 0)
    slides = several(f"{arch}.attention.sliding_window_pattern", bool) or [window > 0] * n_layers
    is_causal = flag("attention.causal", default="blk.0.attn_gate.weight" in file.tensors)
    causal = several(f"{arch}.attention.causal_pattern", bool) or [is_causal] * n_layers
    if len(causal) != n_layers or (len(set(causal)) > 1 and causal != slides):
        raise UnsupportedError(
            f"{file.path}: key {arch}.attention.causal_pattern: expected {slides}, the layers with a sliding "
            f"window, found {causal}; use the checkpoint that the file was made from"
        )
    is_stated = f"{arch}.sample_from_anchor" in file.fields
    has_markov = "markov_w1.weight" in file.tensors
    block_config = {
        "architectures": [BLOCK_FILE],
        "block_size": file.integer(f"{arch}.block_size") or 16,  # llama.cpp takes 16 for a missing block size
        "mask_token_id": file.integer("tokenizer.ggml.mask_token_id"),
        "sample_from_anchor": flag("sample_from_anchor") if is_stated else True if has_markov else None,
        "num_target_layers": file.integer("eaglecpp.target.block_count"),
        "target_layer_ids": [k - 1 for k in layers],
        "is_causal": causal[0] if len(set(causal)) == 1 else None,
        "layer_types": [f"{'sliding' if s else 'full'}_attention" for s in slides],
        "sliding_window": window or None,
        "input_embedding_scale": real("embedding_scale", 1.0),
        "final_logit_softcapping": real("final_logit_softcapping", 0.0),
        "output_multiplier": real("logit_scale", 1.0),
        "attention_value_scale": real("attention.value_scale", 1.0),
        "tie_word_embeddings": head is None
        and "token_embd.weight" in file.tensors
        and not flag("target_head"),
        # A file without its first drafting slot may follow other conventions than `eaglecpp train`.
        "eaglecpp": config["eaglecpp"] if is_stated else None,
    }
    sizes = ("conv_kernel_size", "conv_group_size", "selector_rank", "selector_top_k")
    block_config |= {name: file.integer(f"{arch}.{name}") for name in sizes}
    return {name: value for name, value in (config | block_config).items() if value is not None}


def _tensors(file: GgufFile, config: dict[str, Any], *, in_pairs: bool) -> dict[str, TensorSource]:
    """Returns the GGUF's tensors by their names in checkpoints. Layer 0 is named `midlayer`, as in
    TorchSpec.
    """
    arch = file.architecture
    n_layers, n_aux = config["num_hidden_layers"], config["num_aux_hidden_states"]
    names = {
        row.name.format(i=i, a=a): row.source.format(i=i, a=a)
        for row in TENSORS
        if arch in row.archs and row.source
        for i in range(n_layers if "{i}" in row.name else 1)
        for a in range(n_aux if "{a}" in row.name else 1)
    }
    unknown = sorted(set(file.tensors) - set(names))
    if unknown:
        shown = ", ".join(f"{name!r:.60}" for name in unknown[:8])
        kind = "block" if arch in BLOCKS else "EAGLE-3"
        raise CheckpointError(f"{file.path}: unknown tensors for a drafter of kind {kind}: {shown}")
    missing = [i for i in range(n_layers) if not any(name.startswith(f"blk.{i}.") for name in file.tensors)]
    if missing:
        raise CheckpointError(
            f"{file.path}: {arch}.block_count is {n_layers}, but layer {missing[0]} has no tensors"
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
            ids = TensorSource(source, info.shape, "I64", file.path, info.offset)
            tensors[source] = computed(ids, partial(_offsets, ids))
            continue
        rotated = in_pairs and name.rpartition(".attn_")[2] in ("q.weight", "k.weight", "q.bias", "k.bias")
        head_rows = config["head_dim"] if rotated else 0
        if head_rows and (head_rows % 2 or info.shape[0] % head_rows):
            raise GgufError(
                f"{file.path}: tensor {name} {list(info.shape)}: expected a number of rows divisible by "
                f"{head_rows}, the rows of a head"
            )
        values = TensorSource(source, info.shape, "F32", file.path, info.offset)
        values = computed(values, partial(read_rows, file, name))
        if name == "conf_proj.weight" and len(info.shape) == 1:
            values = stacked([values])
        tensors[source] = halves(values, head_rows) if head_rows else values
    return tensors


def _offsets(ids: TensorSource, start: int, stop: int) -> npt.NDArray[Any]:
    """Returns rows of `d2t` in the form of checkpoints, as offsets from draft id to target id."""
    return ids.read_rows(start, stop) - np.arange(start, stop)
