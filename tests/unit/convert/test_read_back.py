# SPDX-License-Identifier: MIT
"""Tests that a drafter's GGUF can be read as a checkpoint. Converting the GGUF again gives the same file. The
refusal of an unsupported file names the unsupported feature.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from eaglecpp.convert import open_choices, open_drafter, read_gguf
from eaglecpp.convert.errors import EagleError
from helpers.checkpoints import Convert, write_checkpoint
from helpers.random_block import BlockShape
from helpers.random_drafter import LLAMA3, DraftShape, LatentShape
from helpers.tiny import TinyTarget
from helpers.tiny_split import rewrite

Change = Callable[[Any], object]
ORIGIN = ("source", "source.sha256", "family", "layer_ids")
SOURCE = ("general.name", *(f"eaglecpp.{name}" for name in ORIGIN))
"""Keys that describe the file's origin."""


def contents(path: Path) -> tuple[dict[str, Any], dict[str, bytes]]:
    """Returns the contents of a GGUF: its keys, except keys about its origin, and its tensors in their stored
    form.
    """
    file, data = read_gguf(path), path.read_bytes()
    keys = {name: field.value for name, field in file.fields.items() if name not in SOURCE}
    return keys, {name: data[t.offset : t.offset + t.n_bytes] for name, t in file.tensors.items()}


DRAFTERS: dict[str, DraftShape | BlockShape] = {
    "eagle3": DraftShape(),
    "eagle31": DraftShape(fc_norm=True, norm_output=True),
    "norms": DraftShape(norm_before_residual=True, norm_before_fc=True),
    "qk_norm": DraftShape(qk_norm=True, fc_norm=True),
    "biases": DraftShape(attention_bias=True, mlp_bias=True, fc_bias=True),
    "layers": DraftShape(layers=(1, 3, 5, 8), n_layers=2),
    "the target's head": DraftShape(n_draft_vocab=367, own_head=False, own_embedding=False),
    "dflash": BlockShape(own_tables=False),
    "dflash tied": BlockShape(own_tables=True, causal=True),
    "window": BlockShape(window=6, full_layers=(1,)),
    "window, all see all": BlockShape(window=6, causal=False),
    "gated": BlockShape(gated=True, window=6),
    "dspark": BlockShape("dspark"),
    "dspark reduced": BlockShape("dspark", n_draft_vocab=200, confidence=False),
    "rank 0": BlockShape("dspark", rank=0, confidence=False),
    "dflash2": BlockShape("dflash2", extra={"output_multiplier": 0.5, "input_embedding_scale": 2.0}),
}
Make = Callable[..., Path]


@pytest.fixture
def make(convert: Convert, tmp_path: Path) -> Make:
    """Returns a function `make(name)` that writes the file of one of `DRAFTERS`."""
    return lambda name, type="F32": convert(DRAFTERS[name].write(tmp_path / "in"), type=type).out


@pytest.mark.parametrize("type", ["F32", "Q8_0"])
@pytest.mark.parametrize("name", DRAFTERS)
def test_converting_it_again_gives_the_same_file(
    name: str, type: str, make: Make, convert: Convert, tmp_path: Path
) -> None:
    first = make(name, type)
    assert contents(convert(first, out=tmp_path / "again.gguf", type=type).out) == contents(first)


def test_a_file_without_the_first_drafting_slot_leaves_a_choice(
    make: Make, convert: Convert, target: TinyTarget, tmp_path: Path
) -> None:
    """Tests a file that does not state the first drafting slot: llama.cpp's converter writes this key only if
    the drafter has a Markov head.
    """
    first = make("rank 0")
    assert open_choices(first, target.gguf) == ()
    silent = tmp_path / "silent.gguf"
    rewrite(first, silent, changed={"dflash_ex.sample_from_anchor": None})
    (choice,) = open_choices(silent, target.gguf)
    assert choice.values == ("in-place", "anchor-first")
    spec = open_drafter(silent, target.gguf).spec
    assert spec.block is not None and not spec.block.anchor_first
    file = read_gguf(convert(silent, out=tmp_path / "reply.gguf", readings={"slots": "anchor-first"}).out)
    assert file.get("dflash_ex.sample_from_anchor") is True
    assert file.get("eaglecpp.readings") == [b"slots=anchor-first (given)"]
    with pytest.raises(EagleError, match="reading slots is for block drafters"):
        convert(write_checkpoint(tmp_path / "eagle", "vllm", DraftShape()), readings={"slots": "in-place"})


def test_rows_are_read_from_any_offset(convert: Convert, target: TinyTarget, tmp_path: Path) -> None:
    """Tests reading rows from any offset, because a large matrix is read in parts that may begin in the
    middle of a head.
    """
    shape = DraftShape(fc_norm=True)
    ours = open_drafter(convert(write_checkpoint(tmp_path / "in", "vllm", shape)).out, target.gguf).sources
    theirs = open_drafter(tmp_path / "in", target.gguf).sources
    assert set(theirs) - {"t2d"} == set(ours)
    for name, source in ours.items():
        n = source.n_rows
        whole = theirs[name].read()
        np.testing.assert_array_equal(source.read(), whole, err_msg=name)
        np.testing.assert_array_equal(source.read_rows(n // 3, n - 1), whole[n // 3 : n - 1], err_msg=name)


@pytest.mark.parametrize(
    ("shape", "config", "what"),
    [
        (DraftShape(latent=LatentShape()), {}, "latent attention"),
        (DraftShape(window=4), {}, "a sliding window"),
        (DraftShape(), {"logit_scale": 2.0}, "logit_scale"),
        (DraftShape(rope={"rope_type": "linear", "factor": 2.0}), {}, "scaled rope"),
        (DraftShape(rope=LLAMA3), {}, "scaled rope"),
    ],
    ids=["latent", "window", "logit_scale", "linear", "llama3"],
)
def test_unreadable_drafters_are_refused(
    shape: DraftShape, config: dict[str, Any], what: str, convert: Convert, tmp_path: Path
) -> None:
    path = convert(write_checkpoint(tmp_path / "in", "vllm", shape, edit=config)).out
    with pytest.raises(EagleError, match=f"{what}.* cannot be read back"):
        convert(path, out=tmp_path / "again.gguf")
    assert not (tmp_path / "again.gguf").exists()


def test_a_target_is_not_a_drafter(convert: Convert, target: TinyTarget) -> None:
    with pytest.raises(EagleError, match=r"expected an EAGLE-3 drafter .*, found 'llama'"):
        convert(target.gguf)


def with_tensor(name: str, change: Callable[[Any], Any]) -> Change:
    return lambda tensors: tensors.update({name: change(tensors[name])})


def retyped(name: str, dtype: Any) -> Change:
    """Tests tensors of types for which ggml has no conversion function. Calling the missing function would
    end the process.
    """
    return with_tensor(name, lambda values: values.astype(dtype))


NO_FLOATS = "cannot convert this type to floats"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"eagle31.block_count": 1 << 30}, "block_count: expected 1 to 256"),
        ({"eagle31.block_count": 2}, "block_count is 2, but layer 1 has no tensors"),
        ({"eagle31.target_layers": [2] * 300}, "target_layers: expected 1 to 256"),
        ({"eagle31.fc_norm": "yes"}, "fc_norm: expected true or false"),
        ({"eagle31.embedding_length": None}, "embedding_length: expected an integer, found nothing"),
        ({"eagle31.attention.head_count": 0}, "num_attention_heads"),
        ({"eagle31.attention.key_length": 7}, "expected RoPE of type norm or neox over all 7 values"),
        ({"eagle31.rope.dimension_count": 4}, "all 16 values of a head, found type 'norm' over 4"),
        ({"eagle31.rope.type": "other"}, "found type 'other'"),
        ({"eagle31.hidden_activation": "gelu"}, "Gemma 4's layer cannot be read back"),
        ({"eagle31.embedding_scale": 8.0}, "Gemma 4's layer cannot be read back"),
        ({"eagle31.final_logit_softcapping": 30.0}, "Gemma 4's layer cannot be read back"),
        ({"eagle31.attention.scale": 1.0}, "attention.scale cannot be read back"),
        ({"eagle31.mask_token_id": 3}, "parallel drafting cannot be read back"),
        ({"eagle31.rope.scaling.factor": 2.0}, "scaled rope cannot be read back"),
        ({"eagle31.draft_vocab_size": 5}, "d2t|lm_head"),
        ({"eaglecpp.held_out_rates": [float("nan")]}, "rates"),
        ({"eagle31.vocab_size": None, "tokenizer.ggml.tokens": 7}, "tokens: expected a list"),
        ({"dflash.block_count": 1 << 30}, "block_count: expected 1 to 256"),
        ({"dflash.attention.causal_pattern": [True, False]}, r"causal_pattern: expected \[False, False\]"),
        ({"dflash.attention.causal_pattern": [True] * 9}, "the layers with a sliding window"),
        ({"dflash.attention.sliding_window_pattern": [True] * 9}, "sliding_window is not set"),
        ({"dflash.block_size": 1 << 20}, "block_size: expected 2 to 64 positions"),
        ({"dflash.conv_kernel_size": "two"}, "conv_kernel_size: expected an integer"),
        (retyped("output.weight", np.int8), f"tensor output.weight: .* {NO_FLOATS}"),
        (retyped("blk.0.attn_q.weight", np.int32), f"tensor blk.0.attn_q.weight: .* {NO_FLOATS}"),
        (retyped("d2t", np.int32), "tensor d2t: expected I64, .*, found I32"),
        (with_tensor("d2t", lambda ids: ids.reshape(-1, 2)), "tensor d2t: expected I64, one id for each"),
        (with_tensor("d2t", lambda ids: ids[:1]), "d2t: expected shape"),
        (with_tensor("d2t", lambda ids: ids * (1 << 40)), "outside the target vocabulary|d2t"),
        (with_tensor("d2t", lambda ids: np.where(np.arange(160) == 1, (1 << 63) - 1, ids)), "d2t"),
    ],
)
def test_a_files_own_values_are_checked(
    change: dict[str, Any] | Change, message: str, make: Make, convert: Convert, tmp_path: Path
) -> None:
    """Tests files with invalid values. Reading such a file raises an error that names the file."""
    is_block = not callable(change) and any(key.startswith("dflash") for key in change)
    first, path, out = make("dflash" if is_block else "eagle31"), tmp_path / "bad.gguf", tmp_path / "again"
    rewrite(first, path, change) if callable(change) else rewrite(first, path, changed=change)
    with pytest.raises(EagleError, match=message) as caught:
        convert(path, out=out)
    assert str(path) in str(caught.value) and not out.exists()


def test_a_copy_keeps_what_the_file_says(make: Make, convert: Convert, tmp_path: Path) -> None:
    path = make("eagle3")
    said = {"general.license": "apache-2.0", "general.author": "somebody", "general.name": "Drafter"}
    changed = rewrite(path, tmp_path / "d-F32.gguf", changed=said | {"eaglecpp.held_out_rates": [0.5, 0.25]})
    again = convert(changed, out=tmp_path / "d-Q8_0.gguf", type="Q8_0")
    file = read_gguf(again.out)
    assert {key: file.text(key, "") for key in said} == said
    assert file.get("eaglecpp.held_out_rates") == [0.5, 0.25]
    assert file.text("eaglecpp.source", "") == "d"
    assert any("the precision of F32" in note for note in again.notes)


def test_numbers_keep_all_digits_of_their_type(make: Make, convert: Convert, tmp_path: Path) -> None:
    path = make("eagle3")
    theta = float(np.float32(2804339835.0))
    changed = rewrite(path, tmp_path / "changed.gguf", changed={"eagle3.rope.freq_base": theta})
    assert read_gguf(convert(changed, out=tmp_path / "again.gguf").out).get("eagle3.rope.freq_base") == theta


def test_llama_cpps_converter_leaves_out_optional_keys(make: Make, convert: Convert, tmp_path: Path) -> None:
    path = make("eagle3")
    optional = ("vocab_size", "attention.key_length", "rope.dimension_count", "norm_before_fc")
    changed = rewrite(path, tmp_path / "changed.gguf", changed={f"eagle3.{key}": None for key in optional})
    assert contents(convert(changed, out=tmp_path / "again.gguf").out) == contents(path)
