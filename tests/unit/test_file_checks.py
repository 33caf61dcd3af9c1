# SPDX-License-Identifier: MIT
"""Tests that eaglecpp refuses files that llama.cpp loads, although computing with such a file would end the
process or hang it: models with invalid settings, and adapters, whose types and ranks llama.cpp does not
check. Drafter files of EAGLE-1 and 2 are read back as written and fit only one target; tests/native/gguf
tests malformed files.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import gguf
import numpy as np
import pytest

import eaglecpp
from eaglecpp import Engine
from eaglecpp._extension import core
from eaglecpp.convert import convert_checkpoint
from eaglecpp.errors import EagleError, GgufError, MismatchError, OutOfMemoryError
from eaglecpp.lowlevel import DraftFile
from eaglecpp.opening.context import free_memory
from helpers.checkpoints import write_checkpoint
from helpers.gguf_writer import finish
from helpers.lora import Factors, write_lora
from helpers.models import Models
from helpers.random_block import BlockShape
from helpers.random_drafter import EAGLE1, DraftShape
from helpers.tiny import TargetSpec, TinyTarget, make_target, target_weights, write_gguf
from helpers.tiny_split import rewrite, write_split
from helpers.tiny_tokenizer import tiny_tokenizer

SPEC = TargetSpec.of("qwen2", n_layers=2)
Settings = dict[str, int | float | list[int]]
SECTIONS: Settings = {"rope.dimension_sections": [4, 2, 2, 0]}


def write(path: Path, arch: str, settings: Settings) -> Path:
    tokenizer = tiny_tokenizer()
    write_gguf(path, SPEC, tokenizer, target_weights(SPEC, tokenizer), "F32", arch, settings)
    return path


@pytest.mark.parametrize(("arch", "settings"), [("qwen2", {}), ("qwen2vl", SECTIONS)])
def test_valid_settings_compute(tmp_path: Path, arch: str, settings: Settings) -> None:
    with Engine.open(write(tmp_path / "target.gguf", arch, settings), n_ctx=64) as engine:
        assert len(engine.generate("ab", max_tokens=2).tokens) == 2


@pytest.mark.parametrize(
    ("arch", "settings", "found"),
    [
        ("qwen2vl", {"rope.dimension_sections": [0, 0, 0, 0]}, "is 0, 0, 0, 0, expected four sizes"),
        ("qwen2vl", {"rope.dimension_sections": [0, 0, 0, 8]}, "is 0, 0, 0, 8, expected four sizes"),
        ("qwen2vl", {"rope.dimension_sections": [-4, -4, 8, 0]}, "is -4, -4, 8, 0, expected four sizes"),
        ("qwen2vl", {"rope.dimension_sections": [2**30, 2**30, 2, 0]}, "expected four sizes"),
        ("qwen2", {"rope.dimension_count": 0}, "is 0, expected an even number from 2 to the head size 16"),
        ("qwen2", {"rope.dimension_count": 15}, "is 15, expected an even number"),
        ("qwen2", {"rope.dimension_count": 32}, "is 32, expected an even number"),
        ("qwen2", {"rope.dimension_count_swa": 32}, "is 32, expected an even number"),
        ("qwen2", {"attention.key_length_swa": 8}, "is 16, expected an even number.* to the head size 8"),
        ("qwen2", {"attention.key_length": 1 << 14}, r"key_length' is 16384, but tensor 'blk\.0\.attn_k"),
        ("qwen2", {"attention.layer_norm_rms_epsilon": -1.0}, "is -1, expected 0 or more"),
        ("qwen2", {"attention.layer_norm_rms_epsilon": float("nan")}, "is nan, expected 0 or more"),
    ],
)
def test_hostile_settings_are_refused_at_opening(
    tmp_path: Path, arch: str, settings: Settings, found: str
) -> None:
    path = write(tmp_path / "target.gguf", arch, settings)
    with pytest.raises(GgufError, match=rf"target\.gguf: key '{arch}\..*{found}"):
        Engine.open(path, n_ctx=64)


@pytest.mark.parametrize("number", [-1, 4])
def test_missing_experts_are_refused(tmp_path: Path, number: int) -> None:
    """Tests that files without experts are refused, because ggml would write outside its table of experts."""
    path = tmp_path / "target.gguf"
    writer = gguf.GGUFWriter(path, "deepseek4")
    writer.add_expert_count(4)
    writer.add_tensor("blk.0.ffn_gate_tid2eid.weight", np.array([[0, 1], [2, number]], np.int32))
    finish(writer)
    with pytest.raises(GgufError, match=rf"_tid2eid.weight' contains expert {number}, but the model has 4"):
        Engine.open(path, n_ctx=64)


@pytest.mark.parametrize(
    ("arch", "there", "missing"),
    [
        ("hy_v3", ["ffn_gate_inp.weight", "ffn_down_exps.weight"], "ffn_up_exps.weight"),
        ("mimo2", ["ffn_gate_inp.weight", "ffn_gate_up_exps.weight"], "ffn_down_exps.weight"),
        ("qwen35", ["ssm_out.weight", "attn_gate.weight"], "attn_qkv.weight"),
        ("qwen3next", ["ssm_out.weight", "attn_qkv.weight"], "attn_gate.weight"),
        ("nemotron_h_moe", ["ssm_conv1d.weight"], "ssm_conv1d.bias"),
        ("granitehybrid", ["ssm_conv1d.weight"], "ssm_conv1d.bias"),
        ("falcon-h1", ["ssm_conv1d.weight"], "ssm_conv1d.bias"),
        ("glm-dsa", ["indexer.attn_q_b.weight"], "indexer.attn_k.weight"),
    ],
)
def test_tensors_of_the_graph_are_required(tmp_path: Path, arch: str, there: list[str], missing: str) -> None:
    """Tests tensors that are optional for llama.cpp's loader, although llama.cpp's graph computes with them.
    eaglecpp requires these tensors.
    """
    path = tmp_path / "target.gguf"
    writer = gguf.GGUFWriter(path, arch)
    for name in there:
        writer.add_tensor(f"blk.3.{name}", np.zeros((2, 2, 2), np.float32))
    finish(writer)
    with pytest.raises(GgufError, match=rf"'blk.3.{there[0]}' needs 'blk.3.{missing}', which is missing"):
        Engine.open(path, n_ctx=64)


@pytest.mark.parametrize("n_parts", [1, 2])
@pytest.mark.parametrize("name", ["blk.1.attn_norm.weight", "output_norm.weight", "blk.0.attn_q.bias"])
def test_added_tensors_must_be_f32(tmp_path: Path, name: str, n_parts: int) -> None:
    """Tests that tensors that are added to rows must be F32. For another type, ggml would end the process on
    a worker thread.
    """
    halved = rewrite(
        make_target(tmp_path, SPEC).gguf,
        tmp_path / "half.gguf",
        lambda tensors: tensors.update({name: tensors[name].astype(np.float16)}),
    )
    path = halved if n_parts == 1 else write_split(halved, tmp_path / "half", n_parts)[0]
    with pytest.raises(GgufError, match=rf"half.*\.gguf: tensor '{name}' has type f16, expected f32"):
        Engine.open(path, n_ctx=64, n_threads=2)


def test_too_many_tensors_are_refused_at_once(tmp_path: Path) -> None:
    path = tmp_path / "many.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    for i in range(60_000):
        writer.add_tensor(f"t{i}", np.zeros(1, np.float32))
    finish(writer)
    with pytest.raises(GgufError, match=r"many\.gguf: .* 60000.* the limit is 16384"):
        Engine.open(path, n_ctx=64)


def test_a_vocabulary_of_another_kind_is_refused(tmp_path: Path) -> None:
    target = make_target(tmp_path, SPEC).gguf
    path = rewrite(target, tmp_path / "kind.gguf", changed={"tokenizer.ggml.model": "llama"})
    with pytest.raises(GgufError, match=r"kind\.gguf: key 'tokenizer\.ggml\.model' is 'llama', but"):
        Engine.open(path, n_ctx=64)


def test_the_memory_of_a_context_is_counted_by_the_length_of_keys(tmp_path: Path) -> None:
    """Tests that the memory of a context follows from the length of keys. In this model, the length of keys
    is twice the model's width divided by the number of heads.
    """
    spec = TargetSpec(n_layers=2)
    n_ctx = int(1.3 * free_memory() / (2 * 2 * spec.n_layers * spec.n_kv_heads * spec.head_dim))
    with pytest.raises(
        OutOfMemoryError, match=rf"a context of {n_ctx + 1} tokens needs .* for keys and values"
    ):
        Engine.open(
            make_target(tmp_path, spec).gguf, n_ctx=n_ctx, type_k="f16", type_v="f16", text_drafts="off"
        )


BAD = b"\xff\xfe"


@pytest.mark.parametrize(
    "name", ["general.architecture", "general.name", "tokenizer.ggml.pre", "tokens", "tensor"]
)
def test_invalid_text_causes_an_error_that_names_the_file(tmp_path: Path, name: str) -> None:
    data = make_target(tmp_path, SPEC).gguf.read_bytes()
    old = {
        "general.architecture": b"qwen2",
        "general.name": b"general.alignment",
        "tokenizer.ggml.pre": b"tokenizer.ggml.pre",
        "tokens": b"<|",
        "tensor": b"output_norm.weight",
    }[name]
    path = tmp_path / "bytes.gguf"
    path.write_bytes(data.replace(old, BAD + old[2:]))
    try:
        with Engine.open(path, n_ctx=64) as engine:
            assert "\ufffd" in repr(engine.metadata) or engine.generate("ab", max_tokens=1)
    except EagleError as error:
        assert "bytes.gguf" in str(error)


@pytest.mark.parametrize(("option", "name"), [("draft", "blk.1.ffn_up"), ("mmproj", "output_norm")])
def test_drafters_and_projectors_are_checked_like_targets(tmp_path: Path, option: str, name: str) -> None:
    name, target = f"{name}.weight", make_target(tmp_path, SPEC).gguf
    change = lambda tensors: tensors.update({name: tensors[name].astype(np.int8)})  # noqa: E731
    wrong = rewrite(target, tmp_path / "wrong.gguf", change)
    with pytest.raises(GgufError, match=rf"wrong\.gguf: tensor '{name}' has type i8"):
        Engine.open(target, n_ctx=64, **{option: str(wrong)})  # type: ignore[arg-type]


# Adapters


DOWN, EMBEDDING = "blk.0.ffn_down.weight", "token_embd.weight"
Change = Callable[[Factors], object]


def retyped(side: str, dtype: type[np.generic]) -> Change:
    return lambda factors: factors.update({f"{DOWN}.{side}": factors[f"{DOWN}.{side}"].astype(dtype)})


def added(name: str) -> Change:
    return lambda factors: factors.update({name: np.zeros(4, np.float32)})


def reshaped(side: str, *shape: int) -> Change:
    return lambda factors: factors.update({f"{DOWN}.{side}": np.zeros(shape, np.float32)})


def refused(lora: Path, target: Path, kind: type[EagleError], text: str) -> None:
    """Checks that `create`, `check` and opening a model all refuse the adapter."""
    with pytest.raises(kind, match=text):
        core.check_lora(str(lora), str(target))
    with pytest.raises(kind, match=text):
        Engine.open(target, lora=[(str(lora), 1.0)], n_ctx=64)


@pytest.mark.parametrize(
    ("change", "kind", "text"),
    [
        *[
            (retyped(side, dtype), GgufError, rf"lora\.gguf: tensor '{DOWN}\.{side}' has type [if]")
            for side, dtype in (("lora_a", np.int8), ("lora_b", np.int32), ("lora_b", np.float64))
        ],
        (lambda factors: factors.pop(f"{DOWN}.lora_b"), GgufError, "lora_a' has no matching 'lora_b'"),
        (lambda factors: factors.pop(f"{DOWN}.lora_a"), GgufError, "lora_b' has no matching 'lora_a'"),
        (added("blk.0.other"), GgufError, "'blk.0.other': expected names that end in .lora_a or .lora_b"),
        (reshaped("lora_a", 5, 128), MismatchError, r"lora_b' \(4 x 64\) has another rank than 128 x 5"),
        (reshaped("lora_b", 63, 4), MismatchError, "is for 63 outputs, but the target's tensor has 64"),
        (reshaped("lora_a", 4, 64), MismatchError, "is for 64 inputs, but the target's tensor has 128"),
        (reshaped("lora_a", 2, 4, 128), MismatchError, "has other experts than the target's tensor 128 x 64"),
    ],
)
def test_invalid_factors_are_refused(
    change: Change, kind: type[EagleError], text: str, models: Models, tmp_path: Path
) -> None:
    write_lora(tmp_path / "lora.gguf", models.target, change=change)
    refused(tmp_path / "lora.gguf", models.target, kind, text)


def transposed(factors: Factors) -> None:
    """Transposes the factors, because llama.cpp expects for embeddings a first factor with a row per token,
    and a second factor with a row per value.
    """
    a, b = factors.pop(f"{EMBEDDING}.lora_a"), factors.pop(f"{EMBEDDING}.lora_b")
    factors |= {f"{EMBEDDING}.lora_a": b, f"{EMBEDDING}.lora_b": np.ascontiguousarray(a.T)}


def test_embeddings_are_adapted_where_llama_cpp_can(models: Models, tmp_path: Path) -> None:
    lora = tmp_path / "lora.gguf"
    write_lora(lora, models.target, only=EMBEDDING, change=transposed)
    with Engine.open(models.target, lora=[(str(lora), 1.0)], n_ctx=64) as engine:
        assert len(engine.generate("ab", max_tokens=2).tokens) == 2
    tied = rewrite(models.target, tmp_path / "tied.gguf", lambda tensors: tensors.pop("output.weight"))
    refused(lora, tied, MismatchError, "embeddings that are also the target's output")


def test_batches_with_an_adapter_are_as_exact_as_without(models: Models, tmp_path: Path) -> None:
    """Tests that batches with an adapter are as exact as batches without, also if the factors are F32.
    llama.cpp does not mark F32 factors as weights, so without care a row would depend on the other rows of
    its batch.
    """
    write_lora(lora := tmp_path / "lora.gguf", models.target)
    rows = []
    for adapters in ((), ((str(lora), 0.5),)):
        with Engine.open(
            models.target, models.draft, n_ctx=256, planner_cache=False, lora=adapters
        ) as engine:
            rows.append(engine.exactness.rows)
    assert rows[0] == rows[1] != "1"


# Drafters


def converted(folder: Path, target: TinyTarget, shape: DraftShape) -> Path:
    checkpoint = write_checkpoint(folder / "in", shape=shape)
    return convert_checkpoint(checkpoint, target.gguf, folder / "draft.gguf", type="F32").out


def test_an_eagle_file_is_read_back(target: TinyTarget, tmp_path: Path) -> None:
    path = converted(tmp_path, target, EAGLE1)
    info = DraftFile(str(rewrite(path, tmp_path / "again.gguf"))).info
    assert info == DraftFile(str(path)).info
    assert (info["arch"], info["fuses_embedding"], info["target_layers"]) == ("eagle", True, [9])
    assert (info["n_aux"], info["has_head"], info["norm_output"]) == (1, False, False)


def test_a_target_of_another_depth_does_not_fit(target: TinyTarget, tmp_path: Path) -> None:
    path = converted(tmp_path, target, EAGLE1)
    other = make_target(tmp_path / "other", TargetSpec(n_layers=6))
    with pytest.raises(MismatchError, match="id of the final norm's output: drafter 9, target 7"):
        eaglecpp.Engine.open(other.gguf, draft=path)


def test_unused_keys_are_named_at_opening(
    target: TinyTarget, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = converted(tmp_path, target, EAGLE1)
    changed = {"eagle.attention.sinks": 4, "eagle.rope.twice": False}
    draft = rewrite(path, tmp_path / "other.gguf", changed=changed)
    for file, n in ((path, 0), (draft, 1)):
        with eaglecpp.Engine.open(target.gguf, draft=file):
            assert caplog.text.count("unknown keys: eagle.attention.sinks = 4; ") == n
    assert "rope.twice" not in caplog.text


def test_a_block_drafter_without_a_head_causes_a_warning_at_opening(
    target: TinyTarget, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Tests the warning for a block drafter without a head. Files of llama.cpp's converter for DeepSpec's
    drafter have no head. With an untied target, such a file once drafted noise without a warning.
    """
    caplog.set_level("WARNING", "eaglecpp.native")  # another test may have changed the log level
    path = convert_checkpoint(
        BlockShape("dspark").write(tmp_path / "in"), target.gguf, tmp_path / "whole.gguf", type="F32"
    ).out
    for file, n in ((path, 0), (rewrite(path, tmp_path / "cut.gguf", lambda t: t.pop("output.weight")), 1)):
        with eaglecpp.Engine.open(target.gguf, draft=file):
            assert caplog.text.count("has no output head, so its embeddings") == n
