# SPDX-License-Identifier: MIT
"""Drafter files of other forms than EAGLE-3's: what `eagle` files must hold, and what forks wrote."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import eaglecpp
from eaglecpp.convert import convert_checkpoint
from eaglecpp.errors import GgufError, MismatchError, UnsupportedError
from eaglecpp.lowlevel import DraftFile
from helpers.checkpoints import write_checkpoint
from helpers.random_drafter import DraftShape
from helpers.tiny import TargetSpec, TinyTarget, make_target
from helpers.tiny_split import Tensors, rewrite

EAGLE1 = DraftShape(eagle1=True, own_head=False, n_draft_vocab=367)
Change = Callable[[Tensors], object]


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> TinyTarget:
    return make_target(tmp_path_factory.mktemp("target"))


def converted(folder: Path, target: TinyTarget, shape: DraftShape) -> Path:
    checkpoint = write_checkpoint(folder / "in", shape=shape)
    return convert_checkpoint(checkpoint, target.gguf, folder / "draft.gguf", type="F32").out


def nothing(tensors: Tensors) -> None:
    """Leaves the tensors as they are."""


def added(name: str, n: int = 64) -> Change:
    return lambda tensors: tensors.update({name: np.ones(n, np.float32)})


def renamed(name: str, other: str) -> Change:
    return lambda tensors: tensors.update({other: tensors.pop(name)})


def test_an_eagle_file_is_read_as_it_was_written(target: TinyTarget, tmp_path: Path) -> None:
    path = converted(tmp_path, target, EAGLE1)
    info = DraftFile(str(rewrite(path, tmp_path / "again.gguf"))).info
    assert info == DraftFile(str(path)).info
    assert (info["arch"], info["fuses_embedding"], info["target_layers"]) == ("eagle", True, [9])
    assert (info["n_aux"], info["has_head"], info["norm_output"]) == (1, False, False)


GEMMA = DraftShape(gemma="keys", n_draft_vocab=367)


@pytest.mark.parametrize(
    ("shape", "keys", "change", "message"),
    [
        (EAGLE1, {"eagle.norm_output": None}, nothing, "'eagle.norm_output' is missing"),
        (EAGLE1, {"eagle.target_layers": [8]}, nothing, "expected the one id 9"),
        (EAGLE1, {"eagle.target_layers": [8, 9]}, nothing, "expected the one id 9"),
        (EAGLE1, {"eagle.target_hidden_size": 32}, nothing, "as wide as its target"),
        (EAGLE1, {"eagle.norm_output": True}, nothing, "missing tensor 'blk.0.attn_norm.weight'"),
        (EAGLE1, {}, added("output_norm.weight"), "unknown tensor 'output_norm.weight'"),
        (EAGLE1, {}, added("blk.0.attn_q_norm.weight", 16), "unknown tensor 'blk.0.attn_q_norm.weight'"),
        (EAGLE1, {}, added("blk.0.post_ffw_norm.weight"), "unknown tensor 'blk.0.post_ffw_norm.weight'"),
        (EAGLE1, {}, lambda tensors: tensors.pop("fc.weight"), "missing tensor 'fc.weight'"),
        (GEMMA, {"eagle31.hidden_activation": "relu"}, nothing, "gelu_pytorch_tanh, found 'relu'"),
        (GEMMA, {"eagle31.attention.scale": 0.0}, nothing, "expected a positive number"),
        (GEMMA, {"eagle31.final_logit_softcapping": -5.0}, nothing, "expected a positive number"),
        (GEMMA, {"eagle31.attention.value_norm": False}, nothing, "missing tensor 'blk.0.attn_v.weight'"),
    ],
)
def test_a_flawed_file_is_refused(
    shape: DraftShape,
    keys: dict[str, Any],
    change: Change,
    message: str,
    target: TinyTarget,
    tmp_path: Path,
) -> None:
    path = converted(tmp_path, target, shape)
    kind = UnsupportedError if "relu" in message else GgufError
    with pytest.raises(kind, match=message):
        DraftFile(str(rewrite(path, tmp_path / "changed.gguf", change, keys)))


@pytest.mark.parametrize(
    ("keys", "change", "message"),
    [
        ({"eagle31.head_norm": None}, nothing, "missing tensor 'output_norm.weight'"),
        ({"eagle31.norm_output": True}, nothing, "contradict each other"),
        ({}, added("output_norm.weight"), "unknown tensor 'output_norm.weight'"),
    ],
)
def test_a_head_without_a_norm_is_one_only_where_the_file_says_so(
    keys: dict[str, Any], change: Change, message: str, target: TinyTarget, tmp_path: Path
) -> None:
    checkpoint = write_checkpoint(tmp_path / "in", "vllm")
    out = tmp_path / "draft.gguf"
    convert_checkpoint(checkpoint, target.gguf, out, "F32", readings={"head_norm": "no"})
    again = tmp_path / "again.gguf"
    assert DraftFile(str(rewrite(out, again))).info["head_norm"] is False
    with pytest.raises(GgufError, match=message):
        DraftFile(str(rewrite(out, again, change, keys)))


@pytest.mark.parametrize(
    ("names", "change"),
    [
        ({"eagle3.target_layers": "eagle3.extract_layers"}, nothing),
        ({}, renamed("blk.0.attn_norm_2.weight", "blk.0.hidden_norm.weight")),
        ({}, renamed("d2t", "d2t.weight")),
    ],
    ids=["ids", "norm", "table"],
)
def test_what_forks_of_llama_cpp_wrote_is_refused_with_the_reason(
    names: dict[str, str], change: Change, target: TinyTarget, tmp_path: Path
) -> None:
    path = converted(tmp_path, target, DraftShape())
    path = rewrite(path, tmp_path / "changed.gguf", change, names=names)
    with pytest.raises(
        UnsupportedError, match=r"written by a fork of llama.cpp.*different things.*convert the checkpoint"
    ):
        DraftFile(str(path))


def test_a_target_of_another_depth_does_not_fit(target: TinyTarget, tmp_path: Path) -> None:
    path = converted(tmp_path, target, EAGLE1)
    other = make_target(tmp_path / "other", TargetSpec(n_layers=6))
    with pytest.raises(MismatchError, match="layer id after the final norm: drafter 9, target 7"):
        eaglecpp.Engine.open(other.gguf, draft=path)
