# SPDX-License-Identifier: MIT
"""Tests samples from the running target: compares their labels with a full softmax, and their features with
the features of a whole prompt.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from pathlib import Path

import gguf
import numpy as np
import pytest
from numpy.typing import NDArray

from eaglecpp.engine.request import native_options
from eaglecpp.errors import DataError, MismatchError
from eaglecpp.lowlevel import Target
from eaglecpp.options import DraftOptions, ModelOptions, Strategy
from eaglecpp.train.capture.features import TargetSource, default_layers, top_labels
from eaglecpp.train.samples import TrainText
from helpers.models import Models
from helpers.tiny import TargetSpec, make_target, prompt_ids

# The caches have full precision, because samples and whole prompts are split into different batches.
MODEL = ModelOptions(n_threads=1, type_k="f32", type_v="f32", flash_attn="off")


def conversation(n_tokens: int, seed: int = 1) -> TrainText:
    tokens = np.array(prompt_ids(n_tokens, seed), np.int32)
    return TrainText(tokens, (np.arange(n_tokens) > 3).astype(np.int16))


def full_log_softmax(logits: NDArray[np.float32]) -> NDArray[np.float64]:
    wide = logits.astype(np.float64)
    wide -= wide.max(axis=1, keepdims=True)
    return np.asarray(wide - np.log(np.exp(wide).sum(axis=1, keepdims=True)))


@pytest.fixture(scope="module")
def source(models: Models) -> Iterator[TargetSource]:
    conversations = [conversation(200), conversation(17, seed=2), conversation(3, seed=3)]
    source = TargetSource(models.target, conversations, model=MODEL)
    yield source
    source.close()


def test_default_layers_are_distinct_boundaries() -> None:
    expected = {32: [2, 16, 29], 8: [2, 4, 5], 7: [2, 3, 4], 6: [1, 3, 5]}
    expected |= {4: [1, 2, 3], 3: [1, 2, 3], 2: [1, 2], 1: [1]}
    assert {n_layer: default_layers(n_layer) for n_layer in expected} == expected


@pytest.mark.parametrize("n_vocab", [50, 1000, 70_000])
def test_labels_are_the_best_of_the_full_log_softmax(n_vocab: int, rng: np.random.Generator) -> None:
    # Rounded logits are often equal. Of equal logits, the lower id comes first.
    logits = (4 * rng.standard_normal((37, n_vocab))).round(1).astype(np.float32)
    ids, logp = top_labels(logits, 20)
    full = full_log_softmax(logits)
    assert ids.tolist() == np.argsort(-logits, axis=1, kind="stable")[:, :20].tolist()
    assert np.abs(logp - np.take_along_axis(full, ids.astype(np.int64), 1)).max() < 1e-5


def test_a_nan_row_spoils_no_other() -> None:
    logits = np.arange(900, dtype=np.float32).reshape(3, 300)
    logits[1, 5] = np.nan
    ids, logp = top_labels(logits, 4)
    assert ids[[0, 2]].tolist() == [[299, 298, 297, 296]] * 2
    assert np.isfinite(logp[[0, 2]]).all()
    assert np.isnan(logp[1]).all()


def test_a_sample_equals_the_targets_output(models: Models, source: TargetSource) -> None:
    options = native_options(
        models.target, None, dataclasses.replace(MODEL, n_ctx=256), DraftOptions(), Strategy.parse("off")
    )
    target = Target(options, [2, 4, 5])
    for index, n_tokens in enumerate((200, 17, 3)):
        sample = source.sample(index)
        features, logits = target.forward(sample.tokens.tolist())
        assert logits is not None
        assert sample.features.shape == (3, n_tokens, source.n_embd)
        assert np.abs(sample.features - features).max() < 1e-4
        full = full_log_softmax(logits)
        assert (sample.label_ids[:, 0] == full.argmax(axis=1)).all()
        expected = np.take_along_axis(full, sample.label_ids.astype(np.int64), 1)
        assert np.abs(sample.label_logp - expected).max() < 1e-3
        assert sample.label_logp.shape == (n_tokens, 64)
    again = source.sample(1)  # the sample does not depend on earlier samples
    assert (again.features == source.sample(1).features).all()


def test_a_missing_layer_is_refused(models: Models) -> None:
    with pytest.raises(MismatchError, match="layer id 10"):
        # Layer id 9 is the state after the final norm.
        TargetSource(models.target, [conversation(8)], layers=[1, 10], model=MODEL)


def broken_target(directory: Path, tensor: str, value: float) -> Path:
    """Returns a tiny target with NaN or infinity in one tensor."""
    path = make_target(directory, TargetSpec(n_layers=8)).gguf
    reader = gguf.GGUFReader(path, "r+")
    next(t for t in reader.tensors if t.name == tensor).data[...] = np.float32(value)
    reader.data.flush()
    return path


@pytest.mark.parametrize(
    ("tensor", "value", "says"),
    [
        (
            "blk.2.ffn_norm.weight",
            np.nan,
            r"conversation 0: token 0: found NaN or Inf in the hidden states of layer 4",
        ),
        ("output_norm.weight", np.inf, "conversation 0: token 0: expected finite logits"),
    ],
)
def test_nan_and_infinity_are_refused_by_name(tmp_path: Path, tensor: str, value: float, says: str) -> None:
    source = TargetSource(broken_target(tmp_path, tensor, value), [conversation(12)], model=MODEL)
    with pytest.raises(DataError, match=says):
        source.sample(0)
