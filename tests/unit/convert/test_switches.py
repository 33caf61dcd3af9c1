# SPDX-License-Identifier: MIT
"""Tests that each switch of a drafter reaches its key and tensors. A drafter that llama.cpp would run
incorrectly becomes `eagle31`. Converted files and the documentation agree with the table in `keys.py`.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest

from eaglecpp.convert import inspect_file
from eaglecpp.convert.errors import ConvertError
from eaglecpp.convert.keys import KEYS, TENSORS
from eaglecpp.convert.metadata import GGUF_TYPES
from helpers.checkpoints import Convert, write_checkpoint
from helpers.random_block import BlockShape
from helpers.random_drafter import EAGLE1, DraftShape, LatentShape


class Written:
    """A converted file, with its keys without the architecture's prefix."""

    def __init__(self, path: Path) -> None:
        reader = gguf.GGUFReader(path)
        self.arch: str = reader.fields["general.architecture"].contents()
        self.keys = {n.removeprefix(f"{self.arch}."): f.contents() for n, f in reader.fields.items()}
        self.tensors = {t.name: np.array(t.data) for t in reader.tensors}


@pytest.fixture
def written(converted: Convert) -> Callable[..., Written]:
    def run(shape: DraftShape, *, options: dict[str, Any] | None = None, **changes: Any) -> Written:
        return Written(converted("vllm", shape, **changes, **options or {}).out)

    return run


def test_plain_eagle3_has_exactly_llama_cpps_keys(written: Callable[..., Written]) -> None:
    file = written(DraftShape())
    own = {n for n in file.keys if not n.startswith(("GGUF.", "general.", "tokenizer.", "eaglecpp."))}
    assert file.arch == "eagle3"
    assert own == {
        "block_count", "context_length", "embedding_length", "feed_forward_length", "vocab_size",
        "attention.head_count", "attention.head_count_kv", "attention.key_length", "attention.value_length",
        "attention.layer_norm_rms_epsilon", "rope.freq_base", "rope.dimension_count", "target_layers",
        "target_hidden_size", "norm_before_residual", "norm_before_fc",
    }  # fmt: skip
    assert written(DraftShape(), edit={"logit_scale": 1.0}).keys.keys() == file.keys.keys()


@pytest.mark.parametrize(
    ("switches", "key"),
    [
        ({"norm_before_residual": True}, "norm_before_residual"),
        ({"norm_before_fc": True}, "norm_before_fc"),
        ({"fc_norm": True}, "fc_norm"),
        ({"norm_output": True}, "norm_output"),
        ({"qk_norm": True}, ""),
        ({"attention_bias": True}, ""),
        ({"mlp_bias": True}, ""),
        ({"fc_bias": True}, ""),
        ({"n_layers": 2}, ""),
        ({"layers": (1, 2, 4, 5)}, ""),
        ({"window": 512}, "attention.sliding_window"),
    ],
    ids=str,
)
def test_switches_that_llama_cpp_does_not_know_make_it_eagle31(
    written: Callable[..., Written], switches: Any, key: str
) -> None:
    """Tests which drafters become `eagle31`. tests/parity compares the arithmetic of these drafters with
    PyTorch.
    """
    file = written(DraftShape(**switches), options={"readings": {"layer_ids": "boundary"}})
    assert not key or file.keys[key]
    assert ("enc.output_norm.weight" in file.tensors) == (key == "norm_before_fc")
    if key.startswith("norm_before"):
        assert file.arch == "eagle3"
        return
    assert file.arch == "eagle31"
    always = {"fc_norm", "norm_output", "norm_before_fc", "norm_before_residual", "rope.type"}
    assert always | {"draft_vocab_size"} <= file.keys.keys()


PLAIN, TWO, HEADLESS = DraftShape(), DraftShape(n_layers=2), DraftShape(n_draft_vocab=367, own_head=False)
LATER, TIED = "layers.1.input_layernorm.weight", {"edit": {"tie_word_embeddings": True}}


@pytest.mark.parametrize(
    ("shape", "changes", "name", "expected"),
    [
        (PLAIN, {"drop": ["d2t"]}, "d2t", np.flatnonzero(PLAIN.weights()["t2d"])),
        (PLAIN, TIED, "output.weight", PLAIN.weights()["lm_head.weight"]),
        (HEADLESS, TIED, "output.weight", HEADLESS.weights()["embed_tokens.weight"]),
        (
            TWO,
            {"drop": [LATER], "add": {"layers.1.hidden_norm.weight": TWO.weights()[LATER]}},
            "blk.1.attn_norm.weight",
            TWO.weights()[LATER],
        ),
    ],
    ids=["map of the mask", "own head", "tied head", "later norm"],
)
def test_the_source_of_each_tensor(
    shape: DraftShape, changes: Any, name: str, expected: Any, written: Callable[..., Written]
) -> None:
    np.testing.assert_array_equal(written(shape, **changes).tensors[name], expected)


def test_latent_attention_is_reported(convert: Convert, tmp_path: Path) -> None:
    report = convert(write_checkpoint(tmp_path / "in", "vllm", DraftShape(latent=LatentShape())))
    assert inspect_file(report.out)["latent_attention"] == {
        "kv_rank": 32, "q_rank": 24, "key_length": 20, "value_length": 16,
    }  # fmt: skip
    plain = convert(write_checkpoint(tmp_path / "plain", "vllm"))
    assert inspect_file(plain.out)["latent_attention"] is None


@pytest.mark.parametrize(
    ("family", "shape", "edit", "note"),
    [
        ("vllm", DraftShape(latent=LatentShape()), {"mla_use_nope": True}, "mla_use_nope"),
        ("vllm", DraftShape(), {"num_hidden_layers": 40}, "is 40, but the tensors have 1 layers"),
        ("vllm", DraftShape(), {"sliding_window": 4096}, "no layer uses sliding_window 4096"),
        ("specforge", DraftShape(fc_norm=True, norm_output=True), {}, "SpecForge 0.2.0"),
        (
            "vllm",
            DraftShape(n_draft_vocab=367),
            {"tie_word_embeddings": True},
            "tie_word_embeddings is true, but",
        ),
    ],
)
def test_contradicting_config_values_are_noted(
    family: str, shape: DraftShape, edit: dict[str, Any], note: str, converted: Convert
) -> None:
    report = converted(family, shape, edit=edit)
    assert any(note in found for found in report.notes), report.notes
    assert report.spec.n_layers == 1 and not any(report.spec.sliding_layers)


def test_the_last_boundary_is_plain_only_if_llama_cpp_has_it(converted: Convert) -> None:
    report = converted("vllm", DraftShape(layers=(2, 4, 8)))
    assert (report.spec.layer_ids_rule, report.spec.architecture) == ("boundary", "eagle31")


def test_the_tokenizer_of_the_target_is_copied(converted: Convert, target: Any) -> None:
    report = converted("vllm")
    ours, theirs = gguf.GGUFReader(report.out), gguf.GGUFReader(target.gguf)
    names = {name for name in theirs.fields if name.startswith("tokenizer.")}
    assert "tokenizer.chat_template" in names
    assert {name for name in ours.fields if name.startswith("tokenizer.")} == names
    for name in names:
        assert ours.fields[name].contents() == theirs.fields[name].contents()
        assert ours.fields[name].types == theirs.fields[name].types


def test_the_measured_rates_of_the_training_are_kept(written: Callable[..., Written]) -> None:
    file = written(DraftShape(), edit={"eaglecpp": {"held_out": {"length": 2.0, "rates": [0.75, 0.5, 1]}}})
    assert file.keys["eaglecpp.held_out_rates"] == [0.75, 0.5, 1.0]
    assert "eaglecpp.held_out_rates" not in written(DraftShape(), edit={"eaglecpp": {"held_out": None}}).keys


@pytest.mark.parametrize("rates", ["high", [1.5], [None], {}])
def test_invalid_rates_are_refused(written: Callable[..., Written], rates: Any) -> None:
    with pytest.raises(ConvertError, match=r"eaglecpp\.held_out\.rates: expected numbers from 0 to 1"):
        written(DraftShape(), edit={"eaglecpp": {"held_out": {"rates": rates}}})


# The table of keys


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
NORMLESS = DraftShape(qk_norm=True)  # the head of this drafter reads the states before the norm
BLOCKS = {
    "dflash": BlockShape("dflash2", window=64),
    "dflash_ex": BlockShape("dspark", gemma="keys", extra={"output_multiplier": 0.5}),
    "patterns": BlockShape(window=64, full_layers=(1,)),
    "gated": BlockShape(gated=True),
    "embeddings": BlockShape("dspark", target_head=True, sinks=True, extra={"attention_value_scale": 0.5}),
}
WRITTEN = (
    (EAGLE1, {}), (DraftShape(), {}), (EVERYTHING, {"rope_theta": "20000"}), (LATENT, {}), (GEMMA, {}),
    (PARALLEL, {}), (NORMLESS, {"head_norm": "no"}),
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
