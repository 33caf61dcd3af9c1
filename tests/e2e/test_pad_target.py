# SPDX-License-Identifier: MIT
"""`benchmarks/pad_target.py`: what is padded computes the same, in the source's own blocks."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import gguf
import numpy as np
import pytest

from helpers.tiny import make_target

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "pad_target.py"


def pad(source: Path, out: Path, *options: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(SCRIPT), str(source), str(out), *options]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def byte_rows(tensor: gguf.ReaderTensor) -> np.ndarray:
    return np.asarray(tensor.data).view(np.uint8).reshape(int(tensor.shape[1]), -1)


@pytest.mark.parametrize("dtype", ["F16", "Q4_1", "Q8_0"])
def test_a_padded_target_computes_the_same_in_the_blocks_of_its_source(dtype: str, tmp_path: Path) -> None:
    source, out = make_target(tmp_path, dtype=dtype).gguf, tmp_path / "padded.gguf"
    done = pad(source, out, "--layers", "12", "--ffn", "512", "--check")
    assert done.returncode == 0, done.stderr
    assert "64 greedy tokens equal, largest log-probability difference 0.0" in done.stdout

    before, after = ({t.name: t for t in gguf.GGUFReader(path).tensors} for path in (source, out))
    assert all(after[t.name].tensor_type == t.tensor_type for t in before.values())
    # of 12 blocks, 0 and 1 are the source's; 2 is a copy of 1 that adds nothing
    rows, wide_rows = (byte_rows(tensors["blk.1.ffn_down.weight"]) for tensors in (before, after))
    n_bytes = rows.shape[1]
    np.testing.assert_array_equal(wide_rows[:, :n_bytes], rows)
    assert wide_rows.shape == (64, 4 * n_bytes) and not wide_rows[:, n_bytes:].any()
    assert not np.asarray(after["blk.2.attn_output.weight"].data).any()


def test_a_type_for_a_quantised_source_is_refused(tmp_path: Path) -> None:
    source = make_target(tmp_path, dtype="Q4_1").gguf
    done = pad(source, tmp_path / "a.gguf", "--ffn", "512", "--type", "Q8_0")
    assert done.returncode != 0 and "has Q4_1; pad the F32, F16 or BF16 file" in done.stderr
    assert not (tmp_path / "a.gguf").exists()
