# SPDX-License-Identifier: MIT
"""Drafter files of other forms than EAGLE-3's: what `eagle` files must hold, and what forks wrote."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest

import eaglecpp
from eaglecpp.convert import convert_checkpoint
from eaglecpp.errors import EagleError, GgufError, MismatchError, UnsupportedError
from eaglecpp.lowlevel import DraftFile
from helpers.checkpoints import write_checkpoint
from helpers.gguf_writer import finish
from helpers.random_drafter import DraftShape
from helpers.tiny import TargetSpec, TinyTarget, make_target

EAGLE1 = DraftShape(eagle1=True, own_head=False, n_draft_vocab=367)
Rewrite = Callable[..., Path]


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> TinyTarget:
    return make_target(tmp_path_factory.mktemp("target"))


def converted(folder: Path, target: TinyTarget, shape: DraftShape) -> Path:
    checkpoint = write_checkpoint(folder / "in", shape=shape)
    return convert_checkpoint(checkpoint, target.gguf, folder / "draft.gguf", type="F32").out


def rewritten(
    path: Path,
    keys: Mapping[str, Any] | None = None,
    names: Mapping[str, str] | None = None,
    add: Mapping[str, Any] | None = None,
    rename_keys: Mapping[str, str] | None = None,
) -> Path:
    """The file again. keys: values over its own, None drops one; names: of tensors, "" drops one."""
    reader, changed = gguf.GGUFReader(path), keys or {}
    writer = gguf.GGUFWriter(
        path.with_name("changed.gguf"), str(reader.fields["general.architecture"].contents())
    )
    for name, field in reader.fields.items():
        if name.startswith("GGUF.") or name == "general.architecture" or changed.get(name, 0) is None:
            continue
        sub = field.types[1] if len(field.types) > 1 else None
        value = changed.get(name, field.contents())
        writer.add_key_value((rename_keys or {}).get(name, name), value, field.types[0], sub_type=sub)
    for tensor in reader.tensors:
        name = (names or {}).get(tensor.name, tensor.name)
        if name:
            writer.add_tensor(name, np.array(tensor.data))
    for name, value in (add or {}).items():
        writer.add_tensor(name, value)
    finish(writer)
    return path.with_name("changed.gguf")


def test_an_eagle_file_is_read_as_it_was_written(target: TinyTarget, tmp_path: Path) -> None:
    path = converted(tmp_path, target, EAGLE1)
    info = DraftFile(str(rewritten(path))).info
    assert info == DraftFile(str(path)).info
    assert (info["arch"], info["fuses_embedding"], info["target_layers"]) == ("eagle", True, [9])
    assert (info["n_aux"], info["has_head"], info["norm_output"]) == (1, False, False)


FLAWS: dict[str, tuple[dict[str, Any], type[EagleError], str]] = {
    "no switch": ({"keys": {"eagle.norm_output": None}}, GgufError, "'eagle.norm_output' is missing"),
    "another feature": ({"keys": {"eagle.target_layers": [8]}}, GgufError, "expected the one id 9"),
    "two features": ({"keys": {"eagle.target_layers": [8, 9]}}, GgufError, "expected the one id 9"),
    "another width": ({"keys": {"eagle.target_hidden_size": 32}}, GgufError, "as wide as its target"),
    "half of the norms": (
        {"keys": {"eagle.norm_output": True}},
        GgufError,
        "missing tensor 'blk.0.attn_norm.weight'",
    ),
    "a norm too many": (
        {"add": {"output_norm.weight": np.ones(64, np.float32)}},
        GgufError,
        "unknown tensor 'output_norm.weight'",
    ),
    "q norms": (
        {"add": {"blk.0.attn_q_norm.weight": np.ones(16, np.float32)}},
        GgufError,
        "unknown tensor 'blk.0.attn_q_norm.weight'",
    ),
    "a norm of Gemma's": (
        {"add": {"blk.0.post_ffw_norm.weight": np.ones(64, np.float32)}},
        GgufError,
        "unknown tensor 'blk.0.post_ffw_norm.weight'",
    ),
    "no fc": ({"names": {"fc.weight": ""}}, GgufError, "missing tensor 'fc.weight'"),
}


@pytest.mark.parametrize("name", FLAWS)
def test_a_flawed_eagle_file_is_refused(name: str, target: TinyTarget, tmp_path: Path) -> None:
    changes, error, message = FLAWS[name]
    with pytest.raises(error, match=message):
        DraftFile(str(rewritten(converted(tmp_path, target, EAGLE1), **changes)))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"keys": {"eagle31.head_norm": None}}, "missing tensor 'output_norm.weight'"),
        ({"keys": {"eagle31.norm_output": True}}, "contradict each other"),
        ({"add": {"output_norm.weight": np.ones(64, np.float32)}}, "unknown tensor 'output_norm.weight'"),
    ],
)
def test_a_head_without_a_norm_is_one_only_where_the_file_says_so(
    changes: dict[str, Any], message: str, target: TinyTarget, tmp_path: Path
) -> None:
    checkpoint = write_checkpoint(tmp_path / "in", "vllm")
    out = tmp_path / "draft.gguf"
    convert_checkpoint(checkpoint, target.gguf, out, "F32", readings={"head_norm": "no"})
    assert DraftFile(str(rewritten(out))).info["head_norm"] is False
    with pytest.raises(GgufError, match=message):
        DraftFile(str(rewritten(out, **changes)))


GEMMA_FLAWS: dict[str, tuple[dict[str, Any], type[EagleError], str]] = {
    "activation": (
        {"eagle31.hidden_activation": "relu"},
        UnsupportedError,
        "expected silu or gelu, found 'relu'",
    ),
    "scale": ({"eagle31.attention.scale": 0.0}, GgufError, "expected a positive number"),
    "softcap": ({"eagle31.final_logit_softcapping": -5.0}, GgufError, "expected a positive number"),
    "values": ({"eagle31.attention.value_norm": False}, GgufError, "missing tensor 'blk.0.attn_v.weight'"),
}


@pytest.mark.parametrize("name", GEMMA_FLAWS)
def test_a_flawed_switch_of_gemmas_layer_is_refused(name: str, target: TinyTarget, tmp_path: Path) -> None:
    keys, error, message = GEMMA_FLAWS[name]
    path = converted(tmp_path, target, DraftShape(gemma="keys", n_draft_vocab=367))
    with pytest.raises(error, match=message):
        DraftFile(str(rewritten(path, keys)))


@pytest.mark.parametrize(
    "changes",
    [
        {"rename_keys": {"eagle3.target_layers": "eagle3.extract_layers"}},
        {"names": {"blk.0.attn_norm_2.weight": "blk.0.hidden_norm.weight"}},
        {"names": {"d2t": "d2t.weight"}},
    ],
    ids=["ids", "norm", "table"],
)
def test_what_forks_of_llama_cpp_wrote_is_refused_with_the_reason(
    changes: dict[str, Any], target: TinyTarget, tmp_path: Path
) -> None:
    path = rewritten(converted(tmp_path, target, DraftShape()), **changes)
    with pytest.raises(
        UnsupportedError, match=r"written by a fork of llama.cpp.*different things.*convert the checkpoint"
    ):
        DraftFile(str(path))


def test_a_target_of_another_depth_does_not_fit(target: TinyTarget, tmp_path: Path) -> None:
    path = converted(tmp_path, target, EAGLE1)
    other = make_target(tmp_path / "other", TargetSpec(n_layers=6))
    with pytest.raises(MismatchError, match="layer id after the final norm: drafter 9, target 7"):
        eaglecpp.Engine.open(other.gguf, draft=path)
