# SPDX-License-Identifier: MIT
"""Tests that the converter finds and uses the reading under which a checkpoint drafts the target's own text
best. The checkpoints are the trained demo drafter, written in the layouts of trainers whose config
contradicts the training.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from click.testing import CliRunner
from safetensors.numpy import save_file

from eaglecpp import Engine
from eaglecpp.cli.convert import convert as command
from eaglecpp.convert import Choice, open_drafter
from eaglecpp.convert.errors import ConvertError
from eaglecpp.readings import Measured, choose, convert_checkpoint
from helpers.checkpoints import FAMILIES, write_checkpoint
from helpers.random_drafter import DraftShape
from helpers.tiny import make_target
from helpers.tiny_split import rewrite

PAIR = Path(__file__).parents[2] / "examples" / "demo_model" / "pair"
TARGET, DRAFT = PAIR / "demo-target.gguf", PAIR / "demo-draft.gguf"
FIXTURES = Path(__file__).parents[1] / "fixtures"
IDS = "eagle_aux_hidden_state_layer_ids"

Write = Callable[..., Path]


@pytest.fixture(autouse=True)
def short_texts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Short texts are enough, since the wrong readings here fail at once."""
    monkeypatch.setattr("eaglecpp.readings.N_TOKENS", 64)


@pytest.fixture(scope="module")
def trained() -> tuple[dict[str, Any], dict[str, np.ndarray[Any, Any]]]:
    """Returns the demo drafter as canonical config and tensors. The drafter was trained with theta 10000 on
    the features R_2, R_7 and R_11.
    """
    draft = open_drafter(DRAFT, TARGET)
    spec = draft.spec
    shape = DraftShape(
        n_embd=spec.hidden_size,
        n_embd_target=spec.target_hidden_size,
        layers=spec.aux_layers,
        n_heads=spec.n_heads,
        n_kv_heads=spec.n_kv_heads,
        head_dim=spec.head_dim,
        n_ff=spec.intermediate_size,
        n_vocab=spec.vocab_size,
        n_draft_vocab=spec.draft_vocab_size,
        eps=spec.rms_norm_eps,
        fc_norm=spec.fc_norm,
        norm_output=spec.norm_output,
    )
    config = shape.config() | {"max_position_embeddings": spec.context_length}
    assert (spec.aux_layers, spec.rope.theta, spec.target_block_count) == ((2, 7, 11), 10000.0, 14)
    return config, {name: np.asarray(source.read(), np.float32) for name, source in draft.sources.items()}


@pytest.fixture
def write(trained: Any, tmp_path: Path) -> Write:
    """Returns a function `write(family, changed, **edit)` that writes a checkpoint of the demo drafter, with
    some tensors changed.
    """

    def run(family: str, changed: dict[str, Any] | None = None, **edit: Any) -> Path:
        config, weights = FAMILIES[family](dict(trained[0]), {**trained[1], **(changed or {})})
        directory = tmp_path / family
        directory.mkdir()
        (directory / "config.json").write_text(json.dumps({**config, **edit}), encoding="utf-8")
        save_file(weights, directory / "model.safetensors")
        return directory

    return run


def reading(out: Path) -> list[str]:
    found: list[str] = gguf.GGUFReader(out).fields["eaglecpp.readings"].contents()
    return found


def test_the_theta_of_the_training_is_found(write: Write, tmp_path: Path) -> None:
    said: list[str] = []
    report = convert_checkpoint(write("vllm", rope_theta=1e8), TARGET, tmp_path / "out.gguf", say=said.append)
    assert report.spec.rope.theta == 10000.0
    (line,) = reading(report.out)
    assert line.startswith("rope_theta=10000 (measured: ") and "with 100000000" in line
    assert next(one for one in said if "<- used" in one).startswith("rope_theta=10000 ")
    assert [path.name for path in tmp_path.glob(".eaglecpp-readings-*")] == []


def test_the_command_finds_the_layers_of_the_training(write: Write, tmp_path: Path) -> None:
    """Tests that the command finds the layers of the training. The config has post-layer ids, although its
    family writes boundary ids.
    """
    checkpoint, out = write("speculators", **{IDS: [1, 6, 10]}), tmp_path / "out.gguf"
    args = [str(checkpoint), "--target", str(TARGET), "-o", str(out), "--json"]
    result = CliRunner().invoke(command, args)
    assert result.exit_code == 0, result.output
    assert json.loads(result.stdout)["spec"]["aux_layers"] == [2, 7, 11]
    assert "layer_ids=post" in result.stderr and "<- used" in result.stderr
    assert reading(out)[0].startswith("layer_ids=post (measured: ")


def taken(out: Path, name: str) -> str:
    """Returns the chosen value of a reading, and the reason."""
    (line,) = (line for line in reading(out) if line.startswith(f"{name}="))
    return line.partition(":")[0]


def test_the_fed_back_state_of_the_training_is_found(write: Write, tmp_path: Path) -> None:
    report = convert_checkpoint(write("specforge", norm_output=True), TARGET, tmp_path / "out.gguf")
    assert taken(report.out, "feed") == "feed=post (measured"


def test_the_slots_of_a_block_drafter_are_found(tmp_path: Path) -> None:
    """Tests that the slots of a block drafter are found. DeepSpec's DFlash drafts from the anchor's slot on,
    but llama.cpp's converter writes no key for the first drafting slot.
    """
    silent, out = tmp_path / "silent.gguf", tmp_path / "out.gguf"
    rewrite(FIXTURES / "demo-dflash.gguf", silent, changed={"dflash_ex.sample_from_anchor": None})
    report = convert_checkpoint(silent, TARGET, out, type="Q4_1")
    assert report.spec.block is not None and report.spec.block.anchor_first
    assert reading(out)[0].startswith("slots=anchor-first (measured: ")


def test_a_block_drafters_file_without_a_window_is_reported(
    caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    """Tests the warning for a block drafter's file without a sliding window. Other converters have left the
    windows out of published files.
    """
    caplog.set_level("WARNING", "eaglecpp.native")  # another test may have changed the log level
    changed = {"eaglecpp.converter_version": None}
    lost = rewrite(FIXTURES / "demo-dflash2.gguf", tmp_path / "lost.gguf", changed=changed)
    for draft, window, warnings in ((FIXTURES / "demo-dflash2.gguf", 0, 0), (lost, 0, 1), (lost, 512, 0)):
        caplog.clear()
        with Engine.open(TARGET, draft=draft, draft_window=window, n_ctx=256, n_threads=1):
            found = [line for line in caplog.messages if "does not set a sliding window" in line]
        assert len(found) == warnings, (draft, window, caplog.messages)


def test_without_open_choices_nothing_is_measured(write: Write, tmp_path: Path) -> None:
    said: list[str] = []
    convert_checkpoint(write("speculators"), TARGET, tmp_path / "out.gguf", say=said.append)
    given = {"rope_theta": 1e6}
    convert_checkpoint(write("vllm", **given), TARGET, tmp_path / "a.gguf", say=said.append, readings=given)
    assert said == []


def test_a_target_that_fails_leaves_the_default_and_the_reason(tmp_path: Path) -> None:
    target = make_target(tmp_path / "target").gguf
    data = target.read_bytes().replace(b"llama.", b"lamma.")  # renames the keys and the architecture
    target.write_bytes(data.replace(b"\x05\0\0\0\0\0\0\0llama", b"\x05\0\0\0\0\0\0\0lamma"))
    said: list[str] = []
    checkpoint = write_checkpoint(tmp_path / "in", "eagle", edit={"rope_theta": 5e5})
    report = convert_checkpoint(checkpoint, target, tmp_path / "out.gguf", say=said.append)
    assert reading(report.out) == ["rope_theta=500000 (default, not measured)"]
    assert any("cannot measure" in line and "lamma" in line for line in said), said


def test_an_undecided_choice_without_default_is_refused(tmp_path: Path) -> None:
    """Tests that a choice without a default is refused if it stays undecided. With random weights, no draft
    is accepted under any reading.
    """
    target = make_target(tmp_path / "target")
    checkpoint = write_checkpoint(tmp_path / "in", "vllm", DraftShape(layers=(2, 5, 7)))
    said: list[str] = []
    with pytest.raises(ConvertError, match="--reading layer_ids=boundary or --reading layer_ids=post"):
        convert_checkpoint(checkpoint, target.gguf, tmp_path / "out.gguf", say=said.append)
    assert any("no reading is clearly better" in line for line in said)


def test_a_target_of_another_width_is_the_error_and_not_the_layer_ids(tmp_path: Path) -> None:
    checkpoint = write_checkpoint(tmp_path / "in", "vllm", DraftShape(layers=(2, 5, 7)))
    with pytest.raises(ConvertError, match="does not fit: the drafter was made for hidden size"):
        convert_checkpoint(checkpoint, TARGET, tmp_path / "out.gguf")


def measured(mean: float, **readings: str) -> Measured:
    rng = np.random.default_rng(1)  # all readings are measured at the same positions
    return Measured(dict(readings), rng.uniform(1, 3, 400) + mean)


def test_an_insignificant_difference_leaves_the_default() -> None:
    choices = (Choice("feed", ("post", "pre"), ""),)
    default = measured(1.0, feed="post")
    assert choose([default, measured(1.005, feed="pre")], choices) is default


def test_the_nearest_of_equal_readings_to_the_defaults_is_chosen() -> None:
    choices = (Choice("feed", ("post", "pre"), ""), Choice("rope_theta", ("500000", "10000"), ""))
    noise = np.random.default_rng(2).normal(0, 1, 400)
    best = measured(1.0, feed="pre", rope_theta="10000")
    equal = Measured({"feed": "post", "rope_theta": "10000"}, best.lengths - 0.01 + noise)
    worse = Measured({"feed": "post", "rope_theta": "500000"}, best.lengths - 0.5)
    assert choose([worse, equal, best], choices) is equal
