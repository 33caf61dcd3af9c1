# SPDX-License-Identifier: MIT
"""A drafter's GGUF is read as a checkpoint: converted again it is the same file, and what cannot be read back
is refused by name.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest

from eaglecpp.convert import ConvertError, ConvertReport, open_drafter, read_gguf
from helpers.checkpoints import rewrite_config, write_checkpoint
from helpers.random_drafter import DraftShape, LatentShape
from helpers.tiny import TinyTarget

Convert = Callable[..., ConvertReport]
SOURCE = (
    "general.name",
    "eaglecpp.source",
    "eaglecpp.source.sha256",
    "eaglecpp.family",
    "eaglecpp.layer_ids",
)
"""Keys that say where a file is from."""
LLAMA3 = {
    "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}  # fmt: skip


def contents(path: Path) -> tuple[dict[str, Any], dict[str, bytes]]:
    """Keys, without those that say where it is from, and tensors as they lie in the file."""
    file, data = read_gguf(path), path.read_bytes()
    keys = {name: field.value for name, field in file.fields.items() if name not in SOURCE}
    return keys, {name: data[t.offset : t.offset + t.n_bytes] for name, t in file.tensors.items()}


@pytest.mark.parametrize("type", ["F32", "Q8_0"])
@pytest.mark.parametrize(
    "shape",
    [
        DraftShape(),
        DraftShape(fc_norm=True, norm_output=True),
        DraftShape(norm_before_residual=True, norm_before_fc=True),
        DraftShape(qk_norm=True, fc_norm=True),
        DraftShape(attention_bias=True, mlp_bias=True, fc_bias=True),
        DraftShape(layers=(1, 3, 5, 8), n_layers=2),
        DraftShape(n_draft_vocab=367, own_head=False, own_embedding=False),
    ],
    ids=["eagle3", "eagle31", "norms", "qk_norm", "biases", "layers", "the target's head"],
)
def test_converted_again_it_is_the_same_file(
    shape: DraftShape, type: str, convert: Convert, tmp_path: Path
) -> None:
    first = convert(write_checkpoint(tmp_path / "in", "vllm", shape), type=type).out
    again = convert(first, out=tmp_path / "again.gguf", type=type).out
    assert contents(again) == contents(first)


def test_a_held_out_measurement_survives(convert: Convert, tmp_path: Path) -> None:
    rates = [0.5, 0.25]
    checkpoint = write_checkpoint(tmp_path / "in", "torchspec", DraftShape())
    rewrite_config(checkpoint, eaglecpp={"held_out": {"rates": rates}})
    again = convert(convert(checkpoint).out, out=tmp_path / "again.gguf").out
    assert read_gguf(again).get("eaglecpp.held_out_rates") == rates


def test_rows_are_read_from_anywhere(convert: Convert, target: TinyTarget, tmp_path: Path) -> None:
    """A large matrix is read in parts that may begin in the middle of a head."""
    shape = DraftShape(fc_norm=True)
    path = convert(write_checkpoint(tmp_path / "in", "vllm", shape)).out
    ours = open_drafter(path, target.gguf).sources
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
def test_what_cannot_be_read_back_is_refused(
    shape: DraftShape, config: dict[str, Any], what: str, convert: Convert, tmp_path: Path
) -> None:
    checkpoint = write_checkpoint(tmp_path / "in", "vllm", shape)
    rewrite_config(checkpoint, **config)
    path = convert(checkpoint).out
    with pytest.raises(ConvertError, match=f"{what} cannot be read back"):
        convert(path, out=tmp_path / "again.gguf")
    assert not (tmp_path / "again.gguf").exists()


def test_a_target_is_no_drafter(convert: Convert, target: TinyTarget) -> None:
    with pytest.raises(ConvertError, match=r"expected an EAGLE-3 drafter .*, found 'llama'"):
        convert(target.gguf)


def test_a_file_is_not_converted_onto_itself(convert: Convert, tmp_path: Path) -> None:
    path = convert(write_checkpoint(tmp_path / "in", "vllm", DraftShape())).out
    before = path.read_bytes()
    with pytest.raises(ConvertError, match="this conversion reads that file"):
        convert(path, out=path)
    assert path.read_bytes() == before


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("eagle31.block_count", 1 << 30, "block_count: expected 1 to 256"),
        ("eagle31.target_layers", [2] * 300, "target_layers: expected 1 to 256"),
        ("eagle31.fc_norm", "yes", "fc_norm: expected true or false"),
        ("eagle31.embedding_length", None, "embedding_length: expected an integer, found nothing"),
        ("eagle31.attention.head_count", 0, "num_attention_heads"),
        ("eagle31.attention.key_length", 7, "whole heads of 7"),
        ("eagle31.draft_vocab_size", 5, "d2t|lm_head"),
        ("eaglecpp.held_out_rates", [float("nan")], "rates"),
    ],
)
def test_a_files_own_word_is_checked(
    key: str, value: Any, message: str, convert: Convert, tmp_path: Path
) -> None:
    path = convert(write_checkpoint(tmp_path / "in", "vllm", DraftShape(fc_norm=True))).out
    changed = rewritten(path, tmp_path / "changed.gguf", {key: value})
    with pytest.raises(ConvertError, match=message):
        convert(changed, out=tmp_path / "again.gguf")


def test_a_truncated_file(convert: Convert, tmp_path: Path) -> None:
    path = convert(write_checkpoint(tmp_path / "in", "vllm", DraftShape())).out
    for keep in (4, 100, path.stat().st_size - 1):
        short = tmp_path / "short.gguf"
        short.write_bytes(path.read_bytes()[:keep])
        with pytest.raises(ConvertError, match=r"short\.gguf"):
            convert(short, out=tmp_path / "again.gguf")


def rewritten(path: Path, out: Path, changes: dict[str, Any]) -> Path:
    """The same file with other values of some keys; None = without the key."""
    reader = gguf.GGUFReader(path)
    writer = gguf.GGUFWriter(out, reader.fields["general.architecture"].contents())
    values = {name: field.contents() for name, field in reader.fields.items()} | changes
    for name, value in values.items():
        if name.startswith("GGUF.") or name == "general.architecture" or value is None:
            continue
        kind = gguf.GGUFValueType.get_type(value)
        if name in reader.fields and name not in changes:
            kind = reader.fields[name].types[0]
        if kind is gguf.GGUFValueType.ARRAY:
            writer.add_array(name, value)
        else:
            kind = gguf.GGUFValueType.UINT32 if kind is gguf.GGUFValueType.INT32 else kind
            writer.add_key_value(name, value, kind)
    for tensor in reader.tensors:
        writer.add_tensor(tensor.name, np.array(tensor.data), raw_dtype=tensor.tensor_type)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return out
