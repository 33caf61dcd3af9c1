# SPDX-License-Identifier: MIT
"""Tests the feature cache. It returns the captured samples, loses only an unfinished capture if the process
is killed, and refuses the cache of another target. Also compares captured labels with a full softmax, and
captured features with the features of a whole prompt.
"""

from __future__ import annotations

import dataclasses
import re
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from numpy.typing import NDArray

from eaglecpp.engine.request import native_options
from eaglecpp.errors import DataError, MismatchError
from eaglecpp.lowlevel import Target
from eaglecpp.options import DraftOptions, ModelOptions, Strategy
from eaglecpp.train.capture import cache
from eaglecpp.train.capture.cache import FeatureType, open_source
from eaglecpp.train.capture.features import Capture, TargetSource, default_layers, top_labels
from eaglecpp.train.data.texts import token_hash
from eaglecpp.train.samples import TrainText
from helpers.kills import killed_after_lines
from helpers.models import Models
from helpers.tiny import TargetSpec, make_target, prompt_ids

MODEL = ModelOptions(n_threads=1)
LENGTHS = (70, 5, 33, 120, 64)
MANY = (*LENGTHS, 9, 90, 41, 17, 55, 7, 80)


def conversations(lengths: Sequence[int] = LENGTHS) -> list[TrainText]:
    return [
        TrainText(np.array(prompt_ids(n, seed), np.int32), (np.arange(n) % 7 > 2).astype(np.int16))
        for seed, n in enumerate(lengths)
    ]


def files_of(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.name != "lock"}


def captures(folder: Path) -> list[Path]:
    return sorted(folder.glob("*.npz"))


@pytest.fixture(scope="module")
def filled(models: Models, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Captures a complete cache, which tests must not change."""
    folder = tmp_path_factory.mktemp("cache") / "filled"
    open_source(models.target, conversations(), folder, model=MODEL).close()
    return folder


@pytest.fixture
def copy(filled: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(filled, tmp_path / "copy"))


@pytest.mark.parametrize(("kind", "tolerance"), [("bf16", 0.004), ("int8", 0.03)])
def test_cached_features_equal_captured_ones_within_the_error_of_the_type(
    models: Models, tmp_path: Path, kind: FeatureType, tolerance: float
) -> None:
    wanted = conversations()
    streamed = open_source(models.target, wanted, model=MODEL)
    cached = open_source(models.target, wanted, tmp_path / "c", kind, model=MODEL)
    assert isinstance(streamed, TargetSource)
    assert not isinstance(cached, TargetSource)
    assert cached.lengths == streamed.lengths == list(LENGTHS)
    for index in range(len(wanted)):
        one, other = streamed.sample(index), cached.sample(index)
        error = np.linalg.norm(one.features - other.features, axis=2)
        assert (error / np.linalg.norm(one.features, axis=2)).max() < tolerance
        assert (one.label_ids == other.label_ids).all()
        assert np.abs(np.exp(one.label_logp) - np.exp(other.label_logp)).max() < 1e-3
        assert (other.tokens == wanted[index].tokens).all()
        assert (other.turns == wanted[index].turns).all()
        assert (other.features.dtype, other.label_ids.dtype) == (np.float32, np.int32)


def test_the_size_is_announced_and_kept(models: Models, tmp_path: Path) -> None:
    plans: list[str] = []
    steps: list[tuple[int, int]] = []
    folder = tmp_path / "c"
    reports: dict[str, Any] = {
        "on_plan": lambda plan: (plans.append(plan), steps.append((-1, -1))),
        "on_progress": lambda done, total: steps.append((done, total)),
    }
    open_source(models.target, conversations(), folder, model=MODEL, **reports).close()
    (plan,) = plans
    planned = re.search(r"0 conversations cached, 5 to capture, ([\d.]+) KB", plan)
    taken = sum(path.stat().st_size for path in captures(folder)) / 1000
    assert planned and 0.9 * float(planned[1]) < taken <= float(planned[1]) + 1
    assert steps[0] == (-1, -1), "the plan must be reported before the first capture"
    assert steps[-1] == (sum(LENGTHS), sum(LENGTHS))


def test_a_cache_serves_other_splits_and_captures_new_conversations_once(models: Models, copy: Path) -> None:
    plans: list[str] = []
    before = files_of(copy)
    some = [conversations()[3], *2 * conversations((9,))]
    source = open_source(models.target, some, copy, model=MODEL, on_plan=plans.append)
    assert "1 conversation cached, 1 to capture" in plans[0]
    assert len(captures(copy)) == len(LENGTHS) + 1
    assert (source.sample(0).tokens == some[0].tokens).all()
    assert (source.sample(1).tokens == some[1].tokens).all()
    assert (source.sample(1).features == source.sample(2).features).all()
    assert files_of(copy).items() > before.items()


def test_several_threads_capture_the_same_bytes_each_with_its_own_target(
    models: Models, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    many = conversations(MANY)
    opened: list[int] = []
    twin = TargetSource.with_threads

    def counted(source: TargetSource, n_threads: int) -> TargetSource:
        opened.append(n_threads)
        return twin(source, n_threads)

    monkeypatch.setattr(TargetSource, "with_threads", counted)
    for n_threads, expected in ((1, 0), (3, 3)):
        model = replace(MODEL, n_threads=n_threads, n_gpu_layers=0)
        open_source(models.target, many, tmp_path / str(n_threads), model=model).close()
        assert opened == [1] * expected
    assert files_of(tmp_path / "1") == files_of(tmp_path / "3")


@pytest.mark.parametrize("n_threads", [1, 3])
def test_conversations_captured_before_a_bad_one_are_kept(
    models: Models, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, n_threads: int
) -> None:
    many = conversations(MANY)
    capture = TargetSource.capture

    def broken(source: TargetSource, tokens: np.ndarray) -> Capture:
        if len(tokens) == 41:
            raise DataError("token 3: it is broken")
        return capture(source, tokens)

    monkeypatch.setattr(TargetSource, "capture", broken)
    model = replace(MODEL, n_threads=n_threads, n_gpu_layers=0)
    with pytest.raises(DataError, match="conversation 7: token 3"):
        open_source(models.target, many, tmp_path, model=model).close()
    assert len(captures(tmp_path)) == 7


CHILD = """
import sys
sys.path[:0] = [{tests!r}, {here!r}]
from eaglecpp.train.capture.cache import open_source
from eaglecpp.options import ModelOptions
from test_cache import conversations
open_source(
    {target!r}, conversations(), __import__("pathlib").Path({folder!r}),
    model=ModelOptions(n_threads=1), on_progress=lambda n, total: print(n, flush=True),
)
"""


def test_a_killed_capture_continues_to_the_same_bytes(models: Models, filled: Path, tmp_path: Path) -> None:
    folder, here = tmp_path / "killed", Path(__file__).parent
    code = CHILD.format(
        tests=str(here.parents[1]), here=str(here), target=str(models.target), folder=str(folder)
    )
    killed_after_lines(code, 2)
    (folder / "part.tmp").write_bytes(b"half of a capture")
    plans: list[str] = []
    open_source(models.target, conversations(), folder, model=MODEL, on_plan=plans.append)
    assert re.search(r"[2-4] conversations cached, [1-3] to capture", plans[0])
    assert files_of(folder) == files_of(filled)


# Features that are refused


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"seed": 2}, r"another target.*target_sha256: expected [0-9a-f]{64}, found [0-9a-f]"),
        ({"layers": [1, 3, 5]}, r"layers: expected \[1, 3, 5\], found \[2, 4, 5\]"),
        ({"model": ModelOptions(n_threads=1, type_k="f32")}, "type_k: expected f32, found auto"),
        ({"kind": "int8"}, "feature_type: expected int8, found bf16"),
    ],
)
def test_a_cache_of_another_target_or_settings_is_refused(
    models: Models, copy: Path, tmp_path: Path, changes: dict[str, Any], says: str
) -> None:
    before, options = files_of(copy), {"model": MODEL} | changes
    kind, seed = options.pop("kind", "bf16"), options.pop("seed", 0)
    target = make_target(tmp_path / "other", TargetSpec(seed=seed)).gguf if seed else models.target
    with pytest.raises(DataError, match=says):
        open_source(target, conversations(), copy, kind, **options)
    assert files_of(copy) == before


def test_another_kind_of_folder_is_not_changed(models: Models, tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").write_text("dear", encoding="utf-8")
    with pytest.raises(DataError, match=r"empty folder, found 'thesis\.txt'"):
        open_source(models.target, conversations(), tmp_path, model=MODEL)
    assert sorted(p.name for p in tmp_path.iterdir() if p.name != "lock") == ["thesis.txt"]


def test_a_disk_too_small_is_reported_before_the_first_capture(
    models: Models, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage._replace(free=1000))
    monkeypatch.setattr(TargetSource, "capture", lambda *args: pytest.fail("it is captured"))
    with pytest.raises(DataError, match=r"hidden states need .* but 1.0 KB are free"):
        open_source(models.target, conversations(), tmp_path / "c", model=MODEL)


@pytest.mark.parametrize("damage", ["a bit", "cut off", "empty", "something else"])
def test_a_damaged_file_is_named(models: Models, copy: Path, damage: str) -> None:
    last = conversations()[-1]
    path = copy / f"{token_hash(last.tokens).hex()}.npz"
    data = path.read_bytes()
    changed = {"a bit": bytes([data[5000] ^ 1]).join([data[:5000], data[5001:]]), "cut off": data[:-300]}
    path.write_bytes(changed.get(damage, b"" if damage == "empty" else b"\x93NUMPY thesis"))
    source = open_source(models.target, conversations(), copy, model=MODEL)
    source.sample(0)
    with pytest.raises(DataError, match=f"{path.name}: expected a cached conversation, .* delete this file"):
        source.sample(len(LENGTHS) - 1)


def test_int8_holds_any_finite_values(rng: np.random.Generator) -> None:
    features = rng.standard_normal((2, 9, 24)).astype(np.float32)
    features *= np.float32(10.0) ** rng.integers(-2, 4, (2, 9, 1)).astype(np.float32)
    features[1, 4] = 0
    scales, whole = cache._to_int8(features)
    back = whole.astype(np.float32) * scales.astype(np.float32)[:, :, None]
    assert (np.abs(back - features) <= np.abs(features).max(axis=2, keepdims=True) / 250 + 1e-12).all()


# Samples of the running target

# The caches have full precision, because samples and whole prompts are split into different batches.
EXACT = ModelOptions(n_threads=1, type_k="f32", type_v="f32", flash_attn="off")


def full_log_softmax(logits: NDArray[np.float32]) -> NDArray[np.float64]:
    wide = logits.astype(np.float64)
    wide -= wide.max(axis=1, keepdims=True)
    return np.asarray(wide - np.log(np.exp(wide).sum(axis=1, keepdims=True)))


@pytest.fixture(scope="module")
def source(models: Models) -> Iterator[TargetSource]:
    source = TargetSource(models.target, conversations((200, 17, 3)), model=EXACT)
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
        models.target, None, dataclasses.replace(EXACT, n_ctx=256), DraftOptions(), Strategy.parse("off")
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
        TargetSource(models.target, conversations([8]), layers=[1, 10], model=EXACT)


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
    source = TargetSource(broken_target(tmp_path, tensor, value), conversations([12]), model=EXACT)
    with pytest.raises(DataError, match=says):
        source.sample(0)
