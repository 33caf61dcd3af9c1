# SPDX-License-Identifier: MIT
"""Builds a DraftSpec from a flat draft config, the tensors' shapes and the target.

Sizes come from the config and are later checked against every tensor (`mapping.check_tensors`). The number of
layers, biases, q/k norms and aux features come from the tensors, because published configs state them
wrongly. A flag that contradicts the tensors is an error, because following either of them could silently
change the arithmetic.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from .block import Shapes, parse_block
from .config import flag, id_list, integer, nested, number, positive, shown, wrong
from .dialects import IDS, Dialect, Seen
from .errors import ConfigError, LayerIdError, TargetError, TensorError, UnsupportedError
from .latent import has_latent, parse_latent
from .parallel import MASK_FEATURE, parse_parallel
from .readings import (
    Choice,
    Convention,
    LayerIds,
    Options,
    layer_ids_choice,
    recorded,
    resolve_layer_ids,
    settle,
    unread_notes,
)
from .rope import parse_rope
from .spec import DraftSpec, GemmaLayer
from .target_info import STOCK_LAST_BOUNDARY, TargetInfo
from .tensor import TensorSource

_TABLES = (
    "embed_tokens.weight", "lm_head.weight", "d2t", "t2d", "markov_head.markov_w1.weight",
    "markov_head.markov_w2.weight", "candidate_selector.predecessor_codebook",
    "candidate_selector.successor_codebook",
)  # fmt: skip
"""Tensors with a row for each token of the vocabulary."""
_MAX_RATES = 16
"""Maximum number of depths with a recorded acceptance rate."""
# Maximum number of padding rows in a vocabulary. The vocabularies of two model families differ by more rows.
_MAX_PADDING = 128
_OF_BLOCKS = {"slots", "block_size", "partial_rotary", "head"}
"""Readings that only apply to block drafters."""


def find_choices(
    seen: Seen, dialect: Dialect, config: Mapping[str, Any], target: TargetInfo, options: Options
) -> tuple[Choice, ...]:
    """Returns the checkpoint's ambiguities that the options do not resolve. config: the flattened config."""
    if "eaglecpp" in config:  # `eaglecpp train` wrote this config, so nothing is ambiguous
        return ()
    found = dialect.choices(seen, config)
    if dialect.reads_files and target.has_head and flag(config, "tie_word_embeddings"):
        why = (
            "the file has embeddings but no head. llama.cpp then uses the embeddings as the head, but its "
            "converter also omits a head that DeepSpec copied from the target"
        )
        found += (Choice("head", ("target", "embeddings"), why),)
    if not dialect.fuses_embedding and not dialect.is_block and options.aux_layers is None:
        ids, place, agreed = _stated_ids(seen, config)
        if not agreed:
            convention = dialect.convention(seen, place)
            found += layer_ids_choice(ids, target.block_count, dialect.title, convention)
    return tuple(choice for choice in found if choice.name not in options.readings)


def build_spec(
    seen: Seen, dialect: Dialect, shapes: Shapes, target: TargetInfo, options: Options
) -> tuple[DraftSpec, dict[str, str], tuple[str, ...]]:
    """Returns the drafter's `DraftSpec`, the reading used for each ambiguity, and notes for the user.

    shapes: tensor shapes by canonical name. Raises ConfigError, LayerIdError, TargetError.
    """
    config = dialect.flatten(seen)
    choices = find_choices(seen, dialect, config, target, options)
    readings = settle(choices, options.readings)
    other = sorted(_OF_BLOCKS & set(readings))
    if other and not dialect.is_block:
        raise ConfigError(f"reading {', '.join(other)} is for block drafters; this is an EAGLE drafter")
    if "slots" in readings:
        config["anchor_first"] = readings["slots"] == "anchor-first"
    if "block_size" in readings:
        config["block_size"] = json.loads(readings["block_size"])
    if readings.get("head") == "target":
        config["tie_word_embeddings"] = False
        shapes = {name: shape for name, shape in shapes.items() if name != "lm_head.weight"}
    hidden = integer(config, "hidden_size")
    target_hidden = integer(config, "target_hidden_size", None) or hidden
    vocab, padding_note = _vocabulary(config, target)
    n_blocks = integer(config, "num_target_layers", None) if dialect.is_block else None
    _check_target(target, target_hidden, vocab, n_blocks)
    n_heads = integer(config, "num_attention_heads")
    n_layers, layer_note = _count_layers(config, shapes)
    if dialect.fuses_embedding:
        ids = _last_state(target.block_count, hidden, target_hidden, options)
    else:
        n_aux = _count_features(shapes, target_hidden)
        ids = _layer_ids(seen, config, dialect, target.block_count, n_aux, options.aux_layers, readings)
    gemma = None
    if dialect.is_gemma:
        softcap = number(config, "final_logit_softcapping", 0.0)
        gemma = GemmaLayer(own_values=not flag(config, "attention_k_eq_v"), softcap=softcap)
    if has_latent(shapes) and (dialect.fuses_embedding or gemma is not None):
        raise UnsupportedError(f"{dialect.title} drafters with latent attention are not supported")
    parallel, parallel_note = None, ""
    if MASK_FEATURE in shapes:
        if dialect.fuses_embedding or gemma is not None or has_latent(shapes):
            raise UnsupportedError(
                f"tensor {MASK_FEATURE}: parallel drafting is supported only for EAGLE-3 drafters with "
                "ordinary attention"
            )
        parallel, parallel_note = parse_parallel(config, vocab)
    latent, latent_note = parse_latent(config) if has_latent(shapes) else (None, "")
    rope, rope_note = parse_rope(
        config,
        deepseek=latent is not None,
        theta=float(readings["rope_theta"]) if "rope_theta" in readings else None,
        unscaled=readings.get("rope_scaling") == "none",
        partial=readings.get("partial_rotary", ""),
    )
    window, sliding, window_note = _sliding(config, n_layers)
    block, block_note = None, ""
    if dialect.is_block:
        _check_block(options)
        block = parse_block(config, shapes, sliding, vocab, gemma)
        if target.block_count in ids.ids:
            block_note = "the last layer is read before the norm; Hugging Face returns it after the norm"
    _check_activation(config, dialect)
    norm_output = readings["feed"] == "post" if "feed" in readings else flag(config, "norm_output")
    # The call is long, but it keeps each field next to its rule.
    spec = DraftSpec(
        family=dialect.name,
        hidden_size=hidden,
        target_hidden_size=target_hidden,
        intermediate_size=integer(config, "intermediate_size"),
        n_layers=n_layers,
        n_heads=n_heads,
        n_kv_heads=n_heads if latent else integer(config, "num_key_value_heads", n_heads),
        head_dim=latent.key_dim if latent else _head_dim(config, hidden, n_heads),
        vocab_size=vocab,
        draft_vocab_size=_draft_vocab(config, shapes, vocab),
        context_length=integer(config, "max_position_embeddings", 2048),
        rms_norm_eps=positive(config, "rms_norm_eps", 1e-6),
        rope=rope,
        aux_layers=ids.ids,
        layer_ids_rule=ids.rule,
        target_block_count=target.block_count,
        fuses_embedding=dialect.fuses_embedding,
        gemma=gemma,
        parallel=parallel,
        block=block,
        fc_norm=_matched_flag(config, ("fc_norm", "use_aux_norm"), shapes, "fc_norm."),
        norm_output=norm_output,
        head_norm=_head_norm(norm_output, readings),
        norm_before_fc=_matched_flag(
            _norm_before_fc(seen, config), ("norm_before_fc",), shapes, "input_norm.weight"
        ),
        norm_before_residual=flag(config, "norm_before_residual"),
        qk_norm=block is not None
        or any(".self_attn.q_norm." in name or ".self_attn.k_norm." in name for name in shapes),
        has_bias=any(name.endswith(".bias") and not name.startswith("confidence_head.") for name in shapes),
        has_head="lm_head.weight" in shapes,
        has_embeddings="embed_tokens.weight" in shapes,
        logit_scale=positive(config, "logit_scale", 1.0),
        sliding_window=window,
        sliding_layers=sliding,
        latent=latent,
        held_out_rates=_held_out_rates(seen),
        readings=(*_read_before(config), *recorded(choices, options.readings, options.reasons)),
        stock_boundary_ok=target.block_count not in ids.ids or target.architecture in STOCK_LAST_BOUNDARY,
    )
    _check_shared(spec)
    if spec.rope_dim % 2:
        raise wrong(
            "partial_rotary_factor", "a share with an even number of values (RoPE rotates pairs)", rope.part
        )
    notes = (
        padding_note,
        layer_note,
        *ids.notes,
        latent_note,
        parallel_note,
        block_note,
        rope_note,
        window_note,
        _head_note(seen, config, spec),
        *unread_notes(choices, options.readings),
    )
    return spec, readings, tuple(note for note in notes if note)


def without_padding(
    sources: Mapping[str, TensorSource], config: Mapping[str, Any], target: TargetInfo
) -> dict[str, TensorSource]:
    """Returns the tensors without the padding rows above the target's vocabulary. sources: tensors by
    canonical name; config: the flattened config.
    """
    claimed, (vocab, note) = integer(config, "vocab_size"), _vocabulary(config, target)
    tables = _TABLES if note else ()
    return {
        name: replace(source, shape=(vocab, *source.shape[1:]))
        if name in tables and source.shape[:1] == (claimed,)
        else source
        for name, source in sources.items()
    }


def _vocabulary(config: Mapping[str, Any], target: TargetInfo) -> tuple[int, str]:
    """Returns the vocabulary size V, and a note if the config's vocabulary size includes padding rows. The
    target's checkpoint may have padding rows, but the target's GGUF does not. (Gemma 3's checkpoint has
    262,208 rows for 262,144 tokens.) A vocabulary map that contains a padding row is rejected.
    """
    claimed = integer(config, "vocab_size")
    if not 0 < claimed - target.vocab_size <= _MAX_PADDING:
        return claimed, ""
    note = (
        f"vocab_size in config.json is {claimed}, but the target has {target.vocab_size} tokens; the rows of "
        "the other tokens are omitted"
    )
    return target.vocab_size, note


def _check_target(target: TargetInfo, target_hidden: int, vocab: int, n_blocks: int | None) -> None:
    """Raises TargetError if the target does not fit the drafter. n_blocks: number of the drafter's layers,
    None = unknown.
    """
    if target.hidden_size != target_hidden:
        raise TargetError(
            f"target {target.path} does not fit: the drafter was made for hidden size {target_hidden}, but "
            f"the target has {target.hidden_size}"
        )
    if target.vocab_size != vocab:
        raise TargetError(
            f"target {target.path} does not fit: the drafter was made for a vocabulary of {vocab} tokens, "
            f"but the target has {target.vocab_size}"
        )
    if n_blocks not in (None, target.block_count):
        raise TargetError(
            f"target {target.path} does not fit: the drafter was made for a model of {n_blocks} layers, but "
            f"the target has {target.block_count}"
        )


def _count_layers(config: Mapping[str, Any], shapes: Shapes) -> tuple[int, str]:
    found = {int(match[1]) for name in shapes if (match := re.match(r"layers\.(\d{1,4})\.", name))}
    count = max(found, default=0) + 1
    if count > 256:
        raise TensorError(f"layers.{count - 1}.*: expected at most 256 layers, found {count}")
    claimed = integer(config, "num_hidden_layers", None)
    if claimed in (None, count):
        return count, ""
    return (
        count,
        f"num_hidden_layers in config.json is {claimed}, but the tensors have {count} layers; using {count}",
    )


def _count_features(shapes: Shapes, target_hidden: int) -> int:
    shape = shapes.get("fc.weight")
    if shape is None or len(shape) != 2:
        return 3  # a missing or mis-shaped tensor is reported later, together with all other such tensors
    if shape[1] == 0 or shape[1] % target_hidden:
        raise TensorError(
            f"tensor fc.weight {list(shape)}: expected a number of columns divisible by {target_hidden}, the "
            f"target's hidden size, found {shape[1]}. If the target is wider than the drafter, set "
            "target_hidden_size in config.json"
        )
    return shape[1] // target_hidden


def _stated_ids(seen: Seen, config: Mapping[str, Any]) -> tuple[tuple[int, ...] | None, str, bool]:
    """Returns the layer ids, the place in the config where they are, and whether the config states the same
    layers in two places, each with its own convention. Raises LayerIdError if the two places name different
    layers.
    """
    top, nested = id_list(config, IDS), id_list(seen.eagle_config, IDS, "config.json: eagle_config.")
    agreed = bool(top and nested and top == tuple(k + 1 for k in nested))
    if top and nested and not agreed:
        raise LayerIdError(
            f"config.json: {IDS} is {list(top)} at the top level and {list(nested)} in eagle_config. The "
            "two keys count layers differently; set the layers with --aux-layers"
        )
    return top or nested, "config" if top else "eagle_config", agreed


def _layer_ids(
    seen: Seen,
    config: Mapping[str, Any],
    dialect: Dialect,
    n_blocks: int,
    n_aux: int,
    given: Sequence[int] | None,
    readings: Mapping[str, str],
) -> LayerIds:
    reading = readings.get("layer_ids")
    forced: Convention | None = None if reading is None else "post" if reading == "post" else "boundary"
    if given is not None:
        return resolve_layer_ids(None, n_blocks, n_aux, given=given, forced=forced)
    if dialect.is_block:  # the dialect of a block drafter defines the convention of its layer ids
        ids, convention = id_list(config, IDS), dialect.convention(seen, "config")
        forced = forced or convention
        return resolve_layer_ids(ids, n_blocks, n_aux, convention=convention, forced=forced)
    ids, place, agreed = _stated_ids(seen, config)
    convention = dialect.convention(seen, place)
    if agreed:
        forced = "boundary"
    return resolve_layer_ids(ids, n_blocks, n_aux, convention=convention, forced=forced)


def _check_block(options: Options) -> None:
    """Raises ConfigError for readings that do not apply to block drafters."""
    other = sorted(set(options.readings) - _OF_BLOCKS - {"rope_theta", "rope_scaling", "layer_ids"})
    if other:
        raise ConfigError(f"reading {', '.join(other)} is for EAGLE drafters; this is a block drafter")


def _last_state(n_blocks: int, hidden: int, target_hidden: int, options: Options) -> LayerIds:
    """Returns the layer id of EAGLE-1 and 2, whose feature is always the target's last hidden state after the
    final norm.
    """
    if options.aux_layers or set(options.readings) - {"rope_theta", "rope_scaling"}:
        raise LayerIdError(
            "--aux-layers and all readings except rope_theta and rope_scaling are for EAGLE-3. EAGLE-1 and "
            "2 always read the target's last hidden state; remove these options"
        )
    if hidden != target_hidden:
        raise TensorError(
            f"config.json: hidden_size: expected {target_hidden}, the target's hidden size, found {hidden}"
        )
    return LayerIds((n_blocks + 1,), "final")


def _held_out_rates(seen: Seen) -> tuple[float, ...]:
    """Returns the acceptance rates on held-out texts that `eaglecpp train` recorded in the config; () for
    other trainers.
    """
    rates = nested(nested(seen.config, "eaglecpp"), "held_out").get("rates")
    if rates is None:
        return ()
    if not isinstance(rates, list) or not all(
        isinstance(rate, float | int) and 0.0 <= rate <= 1.0 for rate in rates
    ):
        raise wrong("eaglecpp.held_out.rates", "numbers from 0 to 1", rates)
    return tuple(float(rate) for rate in rates[:_MAX_RATES])


def _read_before(config: Mapping[str, Any]) -> tuple[str, ...]:
    """Returns the readings that an earlier conversion recorded in a drafter's GGUF, as "name=value
    (reason)".
    """
    texts = nested(config, "eaglecpp").get("readings")
    return tuple(text for text in texts if isinstance(text, str)) if isinstance(texts, list) else ()


def _head_dim(config: Mapping[str, Any], hidden: int, n_heads: int) -> int:
    given = integer(config, "head_dim", None)
    if given is None and hidden % n_heads:
        raise ConfigError(
            f"config.json: head_dim is missing, and hidden_size {hidden} is not divisible by {n_heads} "
            "heads; add head_dim"
        )
    head_dim = given or hidden // n_heads
    if head_dim % 2:
        raise wrong("head_dim", "an even number (RoPE rotates pairs)", head_dim)
    return head_dim


def _draft_vocab(config: Mapping[str, Any], shapes: Shapes, vocab: int) -> int:
    """Returns the size of the draft vocabulary: from the config, else from tensors with a row per draft
    token, else the size of the target's vocabulary.
    """
    given = integer(config, "draft_vocab_size", None)
    if given is None:
        rows = (shapes.get(name) for name in ("lm_head.weight", "d2t"))
        given = next((shape[0] for shape in rows if shape), vocab)
    if given == integer(config, "vocab_size"):
        return vocab
    if given > vocab:
        raise wrong("draft_vocab_size", f"at most vocab_size {vocab}", given)
    return given


def _matched_flag(config: Mapping[str, Any], keys: Sequence[str], shapes: Shapes, prefix: str) -> bool:
    """Returns a switch of the config. Raises ConfigError if the switch is on without its tensors, or off with
    its tensors.
    """
    value = any(flag(config, key) for key in keys)
    tensors = sorted(name for name in shapes if name.startswith(prefix))
    if value and not tensors:
        raise ConfigError(f"config.json: {keys[0]} is true, but the checkpoint has no tensor {prefix}*")
    if tensors and not value:
        raise ConfigError(
            f"the checkpoint has the tensor {tensors[0]}, but config.json does not set {keys[0]}. If the "
            f"drafter was trained with {keys[0]}, set it to true; otherwise remove the tensor"
        )
    return value


def _norm_before_fc(seen: Seen, config: Mapping[str, Any]) -> dict[str, Any]:
    nested, top = seen.eagle_config.get("norm_before_fc"), config.get("norm_before_fc")
    if nested is not None and top is not None and nested != top:
        raise ConfigError(
            f"config.json: norm_before_fc is {shown(top)} at the top level and {shown(nested)} in "
            "eagle_config; keep the value that the drafter was trained with"
        )
    return {"norm_before_fc": top if nested is None else nested}


def _head_norm(norm_output: bool, readings: Mapping[str, str]) -> bool:
    if readings.get("head_norm") != "no":
        return True
    if norm_output:
        raise ConfigError(
            "readings head_norm=no and feed=post (or norm_output) contradict each other: without a norm "
            "before the head, no normed state can be fed back. Remove one of them"
        )
    return False


def _check_activation(config: Mapping[str, Any], dialect: Dialect) -> None:
    name = config.get("hidden_act")
    if name not in dialect.activations:
        raise UnsupportedError(
            f"config.json: hidden_act: expected {dialect.activations[-1]}, found {shown(name)}"
        )


def _sliding(config: Mapping[str, Any], n_layers: int) -> tuple[int | None, tuple[bool, ...], str]:
    """Returns the width of the sliding window, and for each layer whether it uses the window.

    If the config has a window but no layer_types, no layer uses the window, as in the llama code of inference
    engines.
    """
    window = integer(config, "sliding_window", None)
    types = config.get("layer_types")
    if types is None:
        if not flag(config, "use_sliding_window"):
            note = f"no layer uses sliding_window {window}; all have full attention" if window else ""
            return None, (False,) * n_layers, note
        raise ConfigError(
            "config.json: use_sliding_window is true, but layer_types is missing, so the sliding layers are "
            'unknown; add layer_types, such as ["sliding_attention"]'
        )
    sliding = _sliding_layers(types, n_layers)
    if any(sliding) and (window is None or config.get("use_sliding_window") is False):
        raise ConfigError(
            "config.json: layer_types has sliding_attention, but sliding_window is not set or "
            "use_sliding_window is false"
        )
    return (window if any(sliding) else None), sliding, ""


def _sliding_layers(types: Any, n_layers: int) -> tuple[bool, ...]:
    """Returns for each layer True if the key layer_types gives it a sliding window.

    A list with more entries than layers was copied from the target's config. Such a list is accepted if all
    its values are equal.
    """
    known = {"sliding_attention": True, "full_attention": False}
    sound = isinstance(types, list) and all(isinstance(t, str) and t in known for t in types)
    if not sound or len(types) < n_layers or (len(types) > n_layers and len(set(types)) > 1):
        raise wrong("layer_types", f"{n_layers} entries, full_attention or sliding_attention", types)
    return tuple(known[t] for t in types[:n_layers])


def _head_note(seen: Seen, config: Mapping[str, Any], spec: DraftSpec) -> str:
    """Returns a note if the checkpoint has a head for all tokens although tie_word_embeddings is set. A head
    for a draft vocabulary cannot be tied to the embeddings, so it needs no note.
    """
    could_be = spec.draft_vocab_size == spec.vocab_size and seen.shape("lm_head.weight") is not None
    if not (could_be and flag(config, "tie_word_embeddings")):
        return ""
    return "tie_word_embeddings is true, but the checkpoint has its own lm_head.weight, which is used"


def _check_shared(spec: DraftSpec) -> None:
    """Raises TensorError if the drafter needs another size of a tensor that it shares with the target."""
    problems = []
    if not spec.has_head and (
        spec.draft_vocab_size != spec.vocab_size or spec.hidden_size != spec.target_hidden_size
    ):
        problems.append("lm_head.weight")
    if not spec.has_embeddings and spec.hidden_size != spec.target_hidden_size:
        problems.append("embed_tokens.weight")
    if problems:
        raise TensorError(
            f"the checkpoint has no {' and no '.join(problems)}, and the target's do not fit: the drafter "
            f"has hidden size {spec.hidden_size} and {spec.draft_vocab_size} tokens, the target "
            f"{spec.target_hidden_size} and {spec.vocab_size}"
        )
