# SPDX-License-Identifier: MIT
"""`keys.py` is the list of truth: files, documentation and the table agree."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import gguf
import pytest

from eaglecpp.convert import ConvertReport
from eaglecpp.convert.keys import DFLASH, DFLASH_EX, EAGLE, EAGLE3, EAGLE31, KEYS, TENSORS
from eaglecpp.convert.metadata import GGUF_TYPES
from helpers.checkpoints import write_checkpoint
from helpers.random_block import BlockShape
from helpers.random_drafter import DraftShape, LatentShape

Convert = Callable[..., ConvertReport]
DOCS = Path(__file__).parents[3] / "docs" / "gguf-format.md"
EVERYTHING = DraftShape(
    fc_norm=True, norm_output=True, norm_before_fc=True, norm_before_residual=True, qk_norm=True,
    attention_bias=True, mlp_bias=True, fc_bias=True, n_layers=2, window=64,
    rope={"rope_type": "yarn", "factor": 2.0, "original_max_position_embeddings": 64, "attention_factor": 1.0,
          "extrapolation_factor": 0.9, "beta_fast": 16.0, "beta_slow": 2.0},
)  # fmt: skip
LATENT = replace(EVERYTHING, latent=LatentShape(), qk_norm=False, attention_bias=False)
LATENT = replace(LATENT, rope={k: v for k, v in EVERYTHING.rope.items() if k != "attention_factor"})
LATENT_KEYS = ("_lora_rank", "_mla", "attention.scale")


def test_documentation_names_exactly_the_listed_keys_and_tensors() -> None:
    rows = re.findall(r"^\| `([^`]+)` \|", DOCS.read_text(encoding="utf-8"), re.MULTILINE)
    assert sorted(rows) == sorted([key.name for key in KEYS] + [tensor.name for tensor in TENSORS])


def test_documentation_gives_the_listed_types() -> None:
    text = DOCS.read_text(encoding="utf-8")
    for key in KEYS:
        assert re.search(rf"^\| `{re.escape(key.name)}` \| {re.escape(key.type)} \|", text, re.MULTILINE), (
            key.name
        )


EAGLE1 = DraftShape(eagle1=True, own_head=False, n_draft_vocab=367)
GEMMA = DraftShape(gemma="keys", n_draft_vocab=367)
PARALLEL = DraftShape(n_parallel=6)
HEADLESS = DraftShape(qk_norm=True)  # of the norm before the head
PARALLEL_KEYS = {"{arch}.mask_token_id", "{arch}.parallel_depth"}
GEMMAS_KEYS = {
    "{arch}.attention.scale",
    "{arch}.attention.value_norm",
    "{arch}.hidden_activation",
    "{arch}.embedding_scale",
    "{arch}.final_logit_softcapping",
}


def can_have(shape: DraftShape, name: str) -> bool:
    """Whether an `eagle31` file of one of the shapes above, Gemma's apart, has this optional key."""
    if name.endswith(LATENT_KEYS):
        return shape.latent is not None
    return name not in GEMMAS_KEYS | PARALLEL_KEYS | {"{arch}.head_norm"} and "factor" not in name


@pytest.mark.parametrize(
    ("arch", "shape"), [(EAGLE, EAGLE1), (EAGLE3, DraftShape()), (EAGLE31, EVERYTHING), (EAGLE31, LATENT)]
)
def test_a_file_holds_every_key_it_must_and_none_that_is_not_listed(
    arch: str, shape: DraftShape, convert: Convert, tmp_path: Path
) -> None:
    measured = {"eaglecpp": {"held_out": {"length": 2.0, "rates": [0.5, 0.25]}}}
    edit = {"logit_scale": 0.5, **measured} if arch == EAGLE31 else None
    checkpoint = write_checkpoint(tmp_path / "in", "vllm", shape, edit=edit)
    given = {"rope_theta": "20000"} if arch == EAGLE31 else None
    reader = gguf.GGUFReader(convert(checkpoint, readings=given).out)
    found = {name.replace(f"{arch}.", "{arch}.", 1): field for name, field in reader.fields.items()}
    listed = {key.name: key for key in KEYS if arch in key.archs}
    for key in listed.values():
        if key.presence != "optional" or (arch == EAGLE31 and can_have(shape, key.name)):
            kind, sub = GGUF_TYPES[key.type]
            assert found[key.name].types == [kind, *([sub] if sub else [])], key.name
    own = {name for name in found if not name.startswith(("GGUF.", "general.", "tokenizer."))}
    assert own <= listed.keys()


BLOCKS = {
    "dflash": BlockShape("dflash2", window=64),
    "dflash_ex": BlockShape("dspark", gemma="keys", extra={"output_multiplier": 0.5}),
    "patterns": BlockShape(window=64, full_layers=(1,)),
}
BLOCK_KEYS = {
    "dflash": {"attention.causal", "attention.sliding_window", "attention.sliding_window_pattern",
               "conv_kernel_size", "conv_group_size", "selector_rank", "selector_top_k"},
    "dflash_ex": {"attention.causal", "attention.scale", "attention.value_norm", "hidden_activation",
                  "embedding_scale", "final_logit_softcapping", "logit_scale"},
    "patterns": {"attention.causal_pattern", "attention.sliding_window", "attention.sliding_window_pattern"},
}  # fmt: skip
"""Optional keys of each."""


@pytest.mark.parametrize("name", BLOCKS)
def test_a_block_drafters_file_holds_its_keys_and_no_others(
    name: str, convert: Convert, tmp_path: Path
) -> None:
    report = convert(BLOCKS[name].write(tmp_path / "in"))
    arch = report.spec.architecture
    assert arch == (DFLASH if name == "dflash" else DFLASH_EX)
    found = {
        key.replace(f"{arch}.", "{arch}.", 1): field
        for key, field in gguf.GGUFReader(report.out).fields.items()
    }
    listed = {key.name: key for key in KEYS if arch in key.archs}
    must = {key.name for key in listed.values() if key.presence != "optional"}
    must |= {f"{{arch}}.{key}" for key in BLOCK_KEYS[name]}
    assert {key for key in found if key in listed or key.startswith("{arch}.")} - must <= {"general.type"}
    for key in must:
        kind, sub = GGUF_TYPES[listed[key].type]
        assert found[key].types == [kind, *([sub] if sub else [])], key


@pytest.mark.parametrize(
    ("shape", "names"),
    [(GEMMA, GEMMAS_KEYS), (PARALLEL, PARALLEL_KEYS), (HEADLESS, {"{arch}.head_norm"})],
    ids=["gemma", "parallel", "headless"],
)
def test_the_keys_of_a_kind_are_written_in_their_types(
    shape: DraftShape, names: set[str], convert: Convert, tmp_path: Path
) -> None:
    checkpoint = write_checkpoint(tmp_path / "in", shape=shape)
    aux_layers = None if shape.gemma else shape.layers
    readings = {"head_norm": "no"} if shape is HEADLESS else None
    reader = gguf.GGUFReader(convert(checkpoint, aux_layers=aux_layers, readings=readings).out)
    listed = {key.name: key for key in KEYS}
    for name in names:
        assert reader.fields[name.replace("{arch}", EAGLE31)].types == [GGUF_TYPES[listed[name].type][0]]


def test_every_listed_tensor_can_be_written(convert: Convert, tmp_path: Path) -> None:
    written = {
        re.sub(r"blk\.\d", "blk.{i}", re.sub(r"fc_norm\.\d", "fc_norm.{a}", tensor.name))
        for shape in (
            EVERYTHING,
            LATENT,
            DraftShape(rope={"rope_type": "llama3", "factor": 8.0}),
            GEMMA,
            PARALLEL,
        )
        for tensor in convert(
            write_checkpoint(tmp_path / "in", "vllm", shape), readings={"layer_ids": "boundary"}
        ).tensors
    }
    for block in BLOCKS.values():
        report = convert(block.write(tmp_path / block.kind / block.gemma))
        written |= {re.sub(r"blk\.\d", "blk.{i}", tensor.name) for tensor in report.tensors}
    assert {tensor.name for tensor in TENSORS} - written == {"blk.{i}.attn_output.bias"}
    assert written <= {tensor.name for tensor in TENSORS}


def test_names_are_listed_once() -> None:
    names = [(row.name, arch) for rows in (KEYS, TENSORS) for row in rows for arch in row.archs]
    assert len(names) == len(set(names))
