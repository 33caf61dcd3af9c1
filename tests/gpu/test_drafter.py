# SPDX-License-Identifier: MIT
"""Compares the drafter on a device with PyTorch, for every switch, every number of rows and every type of
weights.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from eaglecpp.lowlevel import Drafter
from helpers.native import engine_options
from helpers.random_drafter import DraftShape
from helpers.reference.drafter import Drafter as Reference
from helpers.tiny import TinyTarget

from .conftest import Device

ROWS = (1, 2, 3, 4, 5, 6, 7, 8, 9, 17)
SHAPES = {
    "eagle3": DraftShape(),
    "eagle31": DraftShape(fc_norm=True, norm_output=True),
    "two-layers": DraftShape(n_layers=2),
    "three-layers-and-a-window": DraftShape(window=13, n_layers=3, full_layers=(1,)),
    "qk-norm-and-biases": DraftShape(qk_norm=True, attention_bias=True, fc_bias=True),
}
# Maximum difference of a logit, by the type of the weights. Logits are of the order of 3. The counting device
# rounds to half precision and to 8 bits in the same way as the CPU, and GPUs compute in half precision. For
# comparison, a row that is rotated to a wrong position differs by 0.14 or more.
EXACT = {"F32": 2e-3, "F16": 4e-2, "Q8_0": 0.5}
HALF = {"F32": 6e-2, "F16": 6e-2, "Q8_0": 0.5}


@pytest.fixture(scope="module")
def load(
    target: TinyTarget, device: Device, tmp_path_factory: pytest.TempPathFactory
) -> Callable[..., tuple[Drafter, Reference]]:
    def make(name: str, dtype: str, flash_attn: str) -> tuple[Drafter, Reference]:
        path = SHAPES[name].gguf(tmp_path_factory.mktemp("draft"), target.gguf, dtype)
        type_kv = "f32" if dtype == "F32" else "f16"
        options: dict[str, Any] = {"flash_attn": flash_attn, "draft_device": device.name}
        native = Drafter(str(path), engine_options(n_ctx=512, draft_type_kv=type_kv, **options))
        assert native.info["device"] == device.name
        return native, Reference.load(path.parent / "checkpoint")

    return make


def rows_of(shape: DraftShape, n_rows: int) -> tuple[np.ndarray, list[int]]:
    rng = np.random.default_rng(5)
    features = rng.normal(size=(len(shape.layers), n_rows, shape.n_embd_target)).astype(np.float32)
    return features, rng.integers(0, shape.n_vocab, n_rows).tolist()


@pytest.mark.parametrize("flash_attn", ["on", "off"])
@pytest.mark.parametrize(
    ("name", "dtype"),
    [*((name, "F32") for name in SHAPES), *((n, d) for n in ("eagle3", "eagle31") for d in ("F16", "Q8_0"))],
)
def test_logits_equal_the_reference(
    name: str, flash_attn: str, dtype: str, device: Device, load: Callable[..., tuple[Drafter, Reference]]
) -> None:
    """Tests every number of committed rows, because each number has a separate graph on a device."""
    bound = (EXACT if device.is_exact else HALF)[dtype]
    native, reference = load(name, dtype, flash_attn)
    features, tokens = rows_of(SHAPES[name], sum(ROWS))
    start, worst = 0, 0.0
    for n_rows in ROWS:
        part = slice(start, start + n_rows)
        logits, _ = native.commit(np.ascontiguousarray(features[:, part]), tokens[part])
        ref_logits, ref_state = reference.commit(torch.from_numpy(features[:, part].copy()), tokens[part])
        gap = np.abs(logits - ref_logits.numpy()).max()
        assert gap < bound, f"logits differ after {n_rows} committed rows"
        # A draft step of n_rows rows. The largest n_rows is the drafter's maximum.
        level = [(7 * i + 3) % 367 for i in range(n_rows)]
        fed = np.repeat(ref_state.numpy()[None], n_rows, 0)
        out, _ = native.extend(fed, level, [-1] * n_rows)
        ref_out, _ = reference.extend(torch.from_numpy(fed), level, [-1] * n_rows, 1)
        level_gap = np.abs(out - ref_out.numpy()).max()
        assert level_gap < bound, f"logits differ in a draft step of {n_rows} rows"
        worst = max(worst, gap, level_gap)
        reference.truncate(start + n_rows)
        native.truncate(start + n_rows)
        start += n_rows
    print(f"\nparity {device.name} {name} {dtype} fused attention {flash_attn}: {worst:.1e}")


def test_an_unknown_device_is_named(target: TinyTarget, tmp_path: Path) -> None:
    draft = SHAPES["eagle3"].gguf(tmp_path, target.gguf)
    with pytest.raises(
        ValueError, match=r"draft_device: expected auto, cpu or one of .*CPU.*, found 'Nowhere7'"
    ):
        Drafter(str(draft), engine_options(draft_device="Nowhere7"))
