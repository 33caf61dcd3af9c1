# SPDX-License-Identifier: MIT
"""Tests that converted files and the documentation agree with the table in `keys.py`."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import gguf

from eaglecpp.convert.keys import KEYS, TENSORS
from eaglecpp.convert.metadata import GGUF_TYPES
from helpers.checkpoints import Convert, write_checkpoint
from helpers.random_block import BlockShape
from helpers.random_drafter import EAGLE1, DraftShape, LatentShape

DOCS = Path(__file__).parents[3] / "docs" / "gguf-format.md"
EVERYTHING = DraftShape(
    fc_norm=True, norm_output=True, norm_before_fc=True, norm_before_residual=True, qk_norm=True,
    attention_bias=True, mlp_bias=True, fc_bias=True, n_layers=2, window=64,
    rope={"rope_type": "yarn", "factor": 2.0, "original_max_position_embeddings": 64, "attention_factor": 1.0,
          "extrapolation_factor": 0.9, "beta_fast": 16.0, "beta_slow": 2.0},
)  # fmt: skip
LATENT = replace(EVERYTHING, latent=LatentShape(), qk_norm=False, attention_bias=False)
LATENT = replace(LATENT, rope={k: v for k, v in EVERYTHING.rope.items() if k != "attention_factor"})


def test_documentation_names_exactly_the_listed_keys_and_tensors_and_their_types() -> None:
    rows = re.findall(r"^\| `([^`]+)` \| ([^|]*?) \|", DOCS.read_text(encoding="utf-8"), re.MULTILINE)
    assert sorted(name for name, _ in rows) == sorted(row.name for row in (*KEYS, *TENSORS))
    assert {(key.name, key.type) for key in KEYS} <= set(rows)


GEMMA = DraftShape(gemma="keys", n_draft_vocab=367)
PARALLEL = DraftShape(n_parallel=6)
HEADLESS = DraftShape(qk_norm=True)  # the head of this drafter reads the states before the norm
BLOCKS = {
    "dflash": BlockShape("dflash2", window=64),
    "dflash_ex": BlockShape("dspark", gemma="keys", extra={"output_multiplier": 0.5}),
    "patterns": BlockShape(window=64, full_layers=(1,)),
    "gated": BlockShape(gated=True),
    "embeddings": BlockShape("dspark", target_head=True, sinks=True, extra={"attention_value_scale": 0.5}),
}
WRITTEN = (
    (EAGLE1, {}), (DraftShape(), {}), (EVERYTHING, {"rope_theta": "20000"}), (LATENT, {}), (GEMMA, {}),
    (PARALLEL, {}), (HEADLESS, {"head_norm": "no"}),
    (DraftShape(rope={"rope_type": "llama3", "factor": 8.0}), {}),
)  # fmt: skip


def test_every_listed_key_and_tensor_can_be_written_and_no_other(convert: Convert, tmp_path: Path) -> None:
    keys, tensors = set(), set()
    edit = {"logit_scale": 0.5, "eaglecpp": {"held_out": {"length": 2.0, "rates": [0.5, 0.25]}}}
    made = []
    for i, (shape, readings) in enumerate(WRITTEN):
        changes = edit if shape is EVERYTHING else {}
        checkpoint = write_checkpoint(tmp_path / str(i), shape=shape, edit=changes)
        given = readings if shape.eagle1 or shape.gemma else {"layer_ids": "boundary", **readings}
        made.append((checkpoint, given))
    made += [(block.write(tmp_path / name), {}) for name, block in BLOCKS.items()]
    for checkpoint, given in made:
        report = convert(checkpoint, readings=given)
        arch, fields = report.spec.architecture, gguf.GGUFReader(report.out).fields
        listed = {key.name: key for key in KEYS if arch in key.archs}
        found = {name.replace(f"{arch}.", "{arch}.", 1): field.types for name, field in fields.items()}
        own = {name for name in found if not name.startswith(("GGUF.", "general.", "tokenizer."))}
        assert own <= listed.keys()
        assert {key.name for key in listed.values() if key.presence != "optional"} <= found.keys()
        for name in found.keys() & listed.keys():
            kind, sub = GGUF_TYPES[listed[name].type]
            assert found[name] == [kind, *([sub] if sub else [])], name
        keys |= found.keys() & listed.keys()
        names = (re.sub(r"fc_norm\.\d", "fc_norm.{a}", tensor.name) for tensor in report.tensors)
        tensors |= {re.sub(r"blk\.\d", "blk.{i}", name) for name in names}
    assert keys == {key.name for key in KEYS}
    assert tensors == {tensor.name for tensor in TENSORS} - {"blk.{i}.attn_output.bias"}


def test_names_are_listed_once() -> None:
    names = [(row.name, arch) for rows in (KEYS, TENSORS) for row in rows for arch in row.archs]
    assert len(names) == len(set(names))
